package script

import (
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// expandFields expands words into the arguments of a command.
func (sh *shell) expandFields(words []*syntax.Word) []Word {
	var all []Word
	for _, w := range words {
		if sh.budget.isSpent() {
			return all
		}
		all = append(all, splitFields(sh.expandWord(w, false), sh.src.placeOf(w.Pos()))...)
	}
	return all
}

// expandValue expands the word of an assignment or a redirection.
func (sh *shell) expandValue(w *syntax.Word) Word {
	if w == nil {
		return Word{}
	}
	chars := slices.DeleteFunc(sh.expandWord(w, false), func(c Char) bool { return c.mark })
	return Word{Chars: chars, At: sh.src.placeOf(w.Pos())}
}

// expandWord expands a word without splitting it.
func (sh *shell) expandWord(w *syntax.Word, quoted bool) []Char {
	if w == nil || !sh.enterLevel() {
		return nil
	}
	defer sh.leaveLevel()
	var out []Char
	for _, part := range w.Parts {
		out = append(out, sh.expandPart(part, quoted)...)
		out = out[:min(len(out), maxWord)]
	}
	for _, c := range out {
		sh.budget.chars++
		if c.Ref != nil {
			sh.budget.chars += len(c.Ref.String())
		}
	}
	return out
}

func (sh *shell) expandPart(part syntax.WordPart, quoted bool) []Char {
	switch p := part.(type) {
	case *syntax.Lit:
		return sh.unescapeLiteral(sh.src.offset(p.Pos()), sh.src.offset(p.End()), quoted)
	case *syntax.SglQuoted:
		return sh.expandSingleQuoted(p)
	case *syntax.DblQuoted:
		out := []Char{{mark: true, At: sh.src.placeOf(p.Pos())}}
		for _, inner := range p.Parts {
			out = append(out, sh.expandPart(inner, true)...)
		}
		return out
	case *syntax.ParamExp:
		return sh.expandParameter(p, quoted)
	case *syntax.ArithmExp:
		sh.assignUnknown(sh.src.placeOf(p.Pos()), sh.assignedNames(p)...)
	case *syntax.ExtGlob, *syntax.BraceExp: // without expansion
		var out []Char
		for i := sh.src.offset(part.Pos()); i < sh.src.offset(part.End()); i++ {
			out = append(out, sh.charAt(i, quoted))
		}
		return out
	}
	// The output of commands, or a number.
	return sh.unknownText(part, &Ref{text: string(sh.src.between(part.Pos(), part.End()))}, quoted)
}

func (sh *shell) charAt(i int, quoted bool) Char {
	c := sh.src.charAt(i)
	c.quoted = quoted
	return c
}

// unescapeLiteral removes the backslashes of a text outside of single quotes.
func (sh *shell) unescapeLiteral(from, to int, quoted bool) []Char {
	var out []Char
	for i := from; i < to; i++ {
		c := sh.charAt(i, quoted)
		if c.Ref == nil && c.Byte == '\r' && (i+1 == len(sh.src.text) || sh.src.text[i+1] == '\n') {
			continue // a Windows line end; the parser also skips it
		}
		if c.Ref != nil || c.Byte != '\\' || i+1 >= len(sh.src.text) {
			out = append(out, c)
			continue
		}
		next := sh.charAt(i+1, true)
		switch {
		case next.Ref == nil && next.Byte == '\n':
			i++
		case !quoted, next.Ref == nil && strings.IndexByte("$`\\\"", next.Byte) >= 0:
			out = append(out, next)
			i++
		default:
			out = append(out, c)
		}
	}
	return out
}

func (sh *shell) expandSingleQuoted(p *syntax.SglQuoted) []Char {
	from, to := sh.src.offset(p.Left)+1, sh.src.offset(p.Right)
	if p.Dollar {
		from++
		if slices.Contains(sh.src.text[from:to], '\\') {
			return sh.unknownText(p, &Ref{text: string(sh.src.between(p.Pos(), p.End()))}, true)
		}
	}
	out := []Char{{mark: true, At: sh.src.placeOf(p.Left)}}
	for i := from; i < to; i++ {
		out = append(out, sh.charAt(i, true))
	}
	return out
}

// unknownText returns a Ref in place of text that is unknown before the run.
func (sh *shell) unknownText(at syntax.Node, r *Ref, quoted bool) []Char {
	r.Depth = sh.Depth
	return []Char{{Ref: r, At: sh.src.placeOf(at.Pos()), quoted: quoted}}
}

// expandParameter expands $NAME, ${NAME} and ${NAME:-word}. Elements of arrays, positional
// parameters and changed values are unknown.
func (sh *shell) expandParameter(p *syntax.ParamExp, quoted bool) []Char {
	if p.Param == nil {
		return sh.unknownText(p, &Ref{text: "${...}"}, quoted)
	}
	name := p.Param.Value
	v := sh.env.vars[name]
	r := &Ref{Name: name, Assigned: v != nil, Lost: v != nil && v.lost, Several: name == "@" || name == "*" && !quoted}
	switch {
	case p.Index != nil:
		w, _ := p.Index.(*syntax.Word)
		r.Several = w != nil && (w.Lit() == "@" || w.Lit() == "*" && !quoted)
		r.Edited = true
	case p.Excl, p.Length, p.Width, p.IsSet, p.Slice != nil, p.Repl != nil, p.Names != 0:
		r.Edited = true
	case p.Exp != nil:
		return sh.expandOperator(p, r, v, quoted)
	case v == nil || v.unknown:
	case v.unset:
		return nil
	case !quoted && sh.splitsOtherwise(v.value):
		r.Edited = true
	default:
		return copyChars(v.value, quoted)
	}
	return sh.unknownText(p, r, quoted)
}

// splitsOtherwise reports whether the script has set IFS so that the shell may split this value
// at other places than blanks.
func (sh *shell) splitsOtherwise(value Word) bool {
	ifs := sh.env.vars["IFS"]
	return ifs != nil && !ifs.unset && slices.ContainsFunc(value.Chars, func(c Char) bool {
		return c.Byte != '_' && (c.Byte < '0' || c.Byte > '9') && (c.Byte|0x20 < 'a' || c.Byte|0x20 > 'z')
	})
}

// copyChars copies a variable's value to an expansion.
func copyChars(value Word, quoted bool) []Char {
	out := slices.Clone(value.Chars)
	for i := range out {
		out[i].quoted = quoted
	}
	return out
}

// expandOperator expands ${NAME:-word} and the other operators.
func (sh *shell) expandOperator(p *syntax.ParamExp, r *Ref, v *variable, quoted bool) []Char {
	known := v != nil && !v.unknown
	op := p.Exp.Op
	// With a colon an empty value counts as unset.
	colon := op == syntax.DefaultUnsetOrNull || op == syntax.AssignUnsetOrNull ||
		op == syntax.AlternateUnsetOrNull || op == syntax.ErrorUnsetOrNull
	missing := known && (v.unset || colon && len(v.value.Chars) == 0)
	switch op {
	case syntax.DefaultUnset, syntax.DefaultUnsetOrNull, syntax.AssignUnset, syntax.AssignUnsetOrNull:
		switch {
		case known && !missing:
			return copyChars(v.value, quoted)
		case op == syntax.AssignUnset || op == syntax.AssignUnsetOrNull:
			sh.assignUnknown(sh.src.placeOf(p.Pos()), r.Name)
			fallthrough
		case !missing:
			word := sh.expandValue(p.Exp.Word)
			r.Default = &word
		default:
			return sh.expandWord(p.Exp.Word, quoted)
		}
	case syntax.AlternateUnset, syntax.AlternateUnsetOrNull:
		switch {
		case missing:
			return nil
		case known:
			return sh.expandWord(p.Exp.Word, quoted)
		}
		r.Edited = true
	case syntax.ErrorUnset, syntax.ErrorUnsetOrNull:
		if known && !missing {
			return copyChars(v.value, quoted)
		}
		r.Required = true
	default:
		r.Edited = true
	}
	return sh.unknownText(p, r, quoted)
}

// evalAssignment evaluates NAME=value and NAME+=value. Arrays and their elements are unknown.
func (sh *shell) evalAssignment(a *syntax.Assign) *Assignment {
	name, at := a.Name.Value, sh.src.placeOf(a.Pos())
	old := sh.env.vars[name]
	value := sh.expandValue(a.Value)
	if a.Value == nil {
		value.At = at
	}
	known := a.Array == nil && a.Index == nil
	switch {
	case a.Append && (old == nil || old.unknown):
		known = false
	case a.Append && known:
		value.Chars = slices.Concat(old.value.Chars, value.Chars)
		value.Chars = value.Chars[:min(len(value.Chars), maxWord)]
		sh.budget.chars += len(value.Chars)
	}
	if !known {
		value = Word{Chars: sh.unknownText(a, &Ref{Name: name, Assigned: true, Several: a.Array != nil}, true), At: at}
	}
	made := sh.newAssignment(name, value, at)
	made.Inherited = made.Inherited || a.Append && !known
	return made
}
