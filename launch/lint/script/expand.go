package script

import (
	"slices"
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"github.com/dsbuild/dsbuild/internal/each"
)

// expander expands the words of a shell.
type expander struct{ *shell }

type quoting int

const (
	unquoted quoting = iota
	inQuotes         // "..."
	inDocument
)

// expandFields expands words into the arguments of a command.
func (e expander) expandFields(words []*syntax.Word) []Word {
	var all []Word
	for _, w := range words {
		if e.budget.isSpent() {
			return all
		}
		all = append(all, splitFields(e.expandWord(w, unquoted), e.src.placeOf(w.Pos()))...)
	}
	return all
}

// expandValue expands the word of an assignment or a redirection.
func (e expander) expandValue(w *syntax.Word) Word {
	if w == nil {
		return Word{}
	}
	return joinChars(e.expandWord(w, unquoted), e.src.placeOf(w.Pos()))
}

// expandWord expands a word without splitting it.
func (e expander) expandWord(w *syntax.Word, q quoting) []Char {
	if w == nil || !e.enterLevel() {
		return nil
	}
	defer e.leaveLevel()
	var out []Char
	for _, part := range w.Parts {
		out = append(out, e.expandPart(part, q)...)
		if len(out) > maxWord {
			out = out[:maxWord]
		}
	}
	for _, c := range out {
		e.budget.chars++
		if c.Ref != nil {
			e.budget.chars += len(c.Ref.String())
		}
	}
	return out
}

func (e expander) expandPart(part syntax.WordPart, q quoting) []Char {
	switch p := part.(type) {
	case *syntax.Lit:
		return e.unescapeLiteral(e.src.offset(p.Pos()), e.src.offset(p.End()), q)
	case *syntax.SglQuoted:
		return e.expandSingleQuoted(p)
	case *syntax.DblQuoted:
		out := []Char{{kind: charMark, At: e.src.placeOf(p.Pos())}}
		for _, inner := range p.Parts {
			out = append(out, e.expandPart(inner, inQuotes)...)
		}
		if len(p.Parts) == 1 && len(out) == 1 {
			if x, ok := p.Parts[0].(*syntax.ParamExp); ok && x.Param != nil && e.elementIndex(x) == "@" {
				return nil // no elements, no word
			}
		}
		return out
	case *syntax.ParamExp:
		value := e.parameterValue(p, q)
		if q == unquoted && e.splitsOtherwise(value) {
			return e.unknownText(p.Pos(), &Ref{Name: p.Param.Value, Assigned: true, Edited: true}, q)
		}
		return value
	case *syntax.CmdSubst:
		// A Ref to the output of commands.
		commands := e.commandOutput(p.Stmts)
		r := &Ref{Output: commands}
		if len(commands) > 0 {
			r.output = commands[0].Text()
			r.output = r.output[:min(len(r.output), maxRef)]
		}
		return e.unknownText(p.Pos(), r, q)
	case *syntax.ArithmExp:
		// A number, if all its parts are known. The variables that it assigns are unknown behind it.
		var uses []*Ref
		n, known := e.evalArithmetic(p.X, &uses)
		at := e.src.placeOf(p.Pos())
		e.assignUnknown(at, e.assignedNames(p)...)
		if !known {
			return e.unknownText(p.Pos(), &Ref{Uses: uses, Highest: greatestValue(p.X)}, q)
		}
		return each.Map([]byte(strconv.Itoa(n)), func(b byte) Char { return Char{Byte: b, At: at, quoted: q != unquoted} })
	case *syntax.ProcSubst:
		e.commandOutput(p.Stmts)
		return e.unknownText(p.Pos(), &Ref{}, q)
	case *syntax.ExtGlob, *syntax.BraceExp:
		return e.rawText(e.src.offset(part.Pos()), e.src.offset(part.End()), q != unquoted)
	}
	return nil
}

// rawText returns the text without expansion.
func (e expander) rawText(from, to int, quoted bool) []Char {
	var out []Char
	for i := from; i < to; i++ {
		out = append(out, e.charAt(i, quoted))
	}
	return out
}

func (e expander) charAt(i int, quoted bool) Char {
	c := e.src.charAt(i)
	c.quoted = quoted
	if c.Ref != nil {
		c.kind = charRef
	}
	return c
}

// unescapeLiteral removes the backslashes from a literal. The parser may end a literal
// between a backslash and its newline.
func (e expander) unescapeLiteral(from, to int, q quoting) []Char {
	var out []Char
	for i := from; i < to; i++ {
		c := e.charAt(i, q != unquoted)
		if c.Ref == nil && c.Byte == '\r' && (i+1 == len(e.src.text) || e.src.text[i+1] == '\n') {
			continue // a line end of Windows; the parser skips it, too
		}
		if c.Ref != nil || c.Byte != '\\' || i+1 >= len(e.src.text) {
			out = append(out, c)
			continue
		}
		next := e.charAt(i+1, true)
		switch {
		case next.Ref == nil && next.Byte == '\n':
			i++
		case q == unquoted, next.Ref == nil && strings.IndexByte("$`\\", next.Byte) >= 0, q == inQuotes && next.Ref == nil && next.Byte == '"':
			out = append(out, next)
			i++
		default:
			out = append(out, c)
		}
	}
	return out
}

func (e expander) expandSingleQuoted(p *syntax.SglQuoted) []Char {
	from, to := e.src.offset(p.Left)+1, e.src.offset(p.Right)
	if p.Dollar {
		from++
	}
	out := []Char{{kind: charMark, At: e.src.placeOf(p.Left)}}
	for i := from; i < to; i++ {
		c := e.charAt(i, true)
		if p.Dollar && c.Byte == '\\' && i+1 < to {
			i++
			c = e.charAt(i, true)
			switch at := strings.IndexByte("abeEfnrtv", c.Byte); {
			case at >= 0:
				c.Byte = "\a\b\x1b\x1b\f\n\r\t\v"[at]
			case strings.IndexByte("xuUc01234567", c.Byte) >= 0: // a character by its number
				return e.unknownText(p.Pos(), &Ref{}, inQuotes)
			case strings.IndexByte("\\'\"?", c.Byte) < 0:
				out = append(out, e.charAt(i-1, true)) // a backslash before any other character stays
			}
		}
		out = append(out, c)
	}
	return out
}

// unknownText stands for a text that only the run knows.
func (e expander) unknownText(at syntax.Pos, r *Ref, q quoting) []Char {
	r.Depth = e.depth
	return []Char{{Ref: r, At: e.src.placeOf(at), kind: charRef, quoted: q != unquoted}}
}

// commandOutput follows the commands of $(...) and returns them.
func (e expander) commandOutput(stmts []*syntax.Stmt) []*Command {
	before := len(e.script.Commands)
	sub := e.newSubshell()
	sub.captured = true
	interpreter{sub}.runStatements(stmts)
	return e.script.Commands[before:]
}

// splitsOtherwise reports whether the script has set IFS so that the shell may split this value
// into other words than at blanks.
func (e expander) splitsOtherwise(value []Char) bool {
	ifs := e.env.vars["IFS"]
	if ifs == nil || ifs.unset {
		return false
	}
	separators, known := ifs.value.Literal()
	return slices.ContainsFunc(value, func(c Char) bool {
		switch {
		case c.kind != charByte:
			return false
		case known && !ifs.unknown:
			return isBlank(c.Byte) || strings.IndexByte(separators, c.Byte) >= 0
		}
		return !(c.Byte == '_' || c.Byte >= '0' && c.Byte <= '9' || c.Byte >= 'A' && c.Byte <= 'Z' || c.Byte >= 'a' && c.Byte <= 'z')
	})
}

func (e expander) parameterValue(p *syntax.ParamExp, q quoting) []Char {
	if p.Param == nil {
		return e.unknownText(p.Pos(), &Ref{}, q)
	}
	name := p.Param.Value
	v := e.env.vars[name]
	switch {
	case p.Exp != nil:
		return e.expandOperator(p, v, q)
	case p.Excl, p.Length, p.Width, p.IsSet, p.Slice != nil && !isAll(e.elementIndex(p)), p.Repl != nil, p.Names != 0:
		return e.unknownText(p.Pos(), &Ref{Name: name, Assigned: v != nil, Edited: true}, q)
	case v == nil || v.unknown:
		r := e.variableRef(name, v)
		r.Edited = p.Slice != nil
		r.markSeveral(e.elementIndex(p), q)
		return e.unknownText(p.Pos(), r, q)
	case v.unset:
		return nil
	case p.Index != nil || v.array != nil:
		return e.expandElement(p, v, q)
	}
	return copyChars(v.value.Chars, q)
}

// variableRef returns a Ref to a variable with an unknown value.
func (e expander) variableRef(name string, v *variable) *Ref {
	r := &Ref{Name: name}
	if v != nil {
		r.Hidden = v.hidden
		r.Assigned = v.hidden == nil
	}
	return r
}

// markSeveral notes that the text may be several words: the elements of an array.
func (r *Ref) markSeveral(index string, q quoting) {
	if index == "@" || index == "*" && q == unquoted {
		r.Index = "@"
	}
}

// copyChars copies a variable's value to the place of its expansion.
func copyChars(chars []Char, q quoting) []Char {
	out := make([]Char, len(chars), len(chars)+1)
	for i, c := range chars {
		c.quoted = q != unquoted
		out[i] = c
	}
	return out
}

// elementIndex returns the index of ${A[0]}, ${A[@]} and $@, "" if there is none or it is not known.
func (e expander) elementIndex(p *syntax.ParamExp) string {
	if p.Index != nil {
		if w, ok := p.Index.(*syntax.Word); ok && (w.Lit() == "@" || w.Lit() == "*") {
			return w.Lit()
		}
		if n, known := e.evalArithmetic(p.Index, nil); known {
			return strconv.Itoa(n)
		}
		return ""
	}
	if name := p.Param.Value; isAll(name) {
		return name
	}
	return ""
}

// isAll reports whether an index means all elements.
func isAll(index string) bool { return index == "@" || index == "*" }

// expandElement expands ${A[0]}, ${A[@]}, ${A[@]:1:2} and $A.
func (e expander) expandElement(p *syntax.ParamExp, v *variable, q quoting) []Char {
	array := v.array
	if array == nil {
		array = []Word{v.value}
	}
	index := e.elementIndex(p)
	if p.Index == nil && index == "" {
		index = "0"
	}
	if p.Slice != nil {
		var known bool
		if array, known = e.sliceArray(p, array); !known {
			r := &Ref{Name: p.Param.Value, Assigned: true, Edited: true}
			r.markSeveral(index, q)
			return e.unknownText(p.Pos(), r, q)
		}
	}
	if isAll(index) {
		var out []Char
		for i, w := range array {
			switch {
			case i > 0 && index == "*" && q != unquoted:
				out = append(out, Char{Byte: ' ', At: w.At, quoted: true})
			case i > 0:
				out = append(out, Char{kind: charBreak, At: w.At})
			}
			if q != unquoted {
				out = append(out, Char{kind: charMark, At: w.At})
			}
			out = append(out, copyChars(w.Chars, q)...)
			if len(out) > maxWord {
				break
			}
		}
		return out
	}
	if n, err := strconv.Atoi(index); err == nil {
		// A negative index is safe only if no element can expand to several.
		if n < 0 && !slices.ContainsFunc(array, func(w Word) bool { return len(w.Refs()) > 0 }) {
			n += len(array)
		}
		if n >= 0 && n < len(array) {
			return copyChars(array[n].Chars, q)
		}
	}
	r := &Ref{Name: p.Param.Value, Assigned: true, Index: index}
	if len(array) == 1 && array[0].Only() != nil { // A=($(command))
		r.Output = array[0].Only().Output
	}
	return e.unknownText(p.Pos(), r, q)
}

// sliceArray returns the elements of ${A[@]:offset:length}. They are known if the numbers are, and
// no element may be several.
func (e expander) sliceArray(p *syntax.ParamExp, array []Word) (elements []Word, known bool) {
	from, known := 0, true
	if p.Slice.Offset != nil {
		from, known = e.evalArithmetic(p.Slice.Offset, nil)
	}
	length, bounded := len(array), true
	if p.Slice.Length != nil {
		length, bounded = e.evalArithmetic(p.Slice.Length, nil)
	}
	switch {
	case from < 0:
		from += len(array)
	case p.Index == nil: // $@ begins at 1; 0 is the script
		from--
	}
	several := slices.ContainsFunc(array, func(w Word) bool {
		return slices.ContainsFunc(w.Chars, func(c Char) bool { return c.Ref != nil && (!c.quoted || c.Ref.Index == "@") })
	})
	if !known || !bounded || several || from < 0 || length < 0 {
		return nil, false
	}
	from = min(from, len(array))
	return array[from : from+min(length, len(array)-from)], true
}

// expandOperator expands ${NAME:-word} and the other operators with a word.
func (e expander) expandOperator(p *syntax.ParamExp, v *variable, q quoting) []Char {
	name := p.Param.Value
	known := v != nil && !v.unknown && v.array == nil && p.Index == nil
	op := p.Exp.Op
	// With a colon an empty value counts as unset.
	colon := op == syntax.DefaultUnsetOrNull || op == syntax.AssignUnsetOrNull || op == syntax.AlternateUnsetOrNull || op == syntax.ErrorUnsetOrNull
	missing := known && (v.unset || colon && len(v.value.Chars) == 0)
	r := e.variableRef(name, v)
	switch op {
	case syntax.DefaultUnset, syntax.DefaultUnsetOrNull, syntax.AssignUnset, syntax.AssignUnsetOrNull:
		if known && !missing {
			return copyChars(v.value.Chars, q)
		}
		out := e.expandDefault(p, r, missing, q)
		if op == syntax.AssignUnset || op == syntax.AssignUnsetOrNull {
			e.setVariable(e.newAssignment(name, joinChars(out, e.src.placeOf(p.Pos())), e.src.placeOf(p.Pos())), false)
		}
		return out
	case syntax.AlternateUnset, syntax.AlternateUnsetOrNull:
		if known && missing {
			return nil
		}
		if known && p.Exp.Word != nil {
			return e.expandWord(p.Exp.Word, q)
		}
		r.Alternate = true
	case syntax.ErrorUnset, syntax.ErrorUnsetOrNull:
		if known && !missing {
			return copyChars(v.value.Chars, q)
		}
		r.Required = true
	default:
		r.Edited = true
	}
	return e.unknownText(p.Pos(), r, q)
}

// expandDefault expands ${NAME:-word} for a variable that is, or may be, missing.
func (e expander) expandDefault(p *syntax.ParamExp, r *Ref, missing bool, q quoting) []Char {
	word := Word{At: e.src.placeOf(p.Pos())}
	if p.Exp.Word != nil {
		if missing {
			return e.expandWord(p.Exp.Word, q)
		}
		word = joinChars(e.expandWord(p.Exp.Word, inQuotes), e.src.placeOf(p.Exp.Word.Pos()))
	}
	if missing {
		return nil
	}
	r.Default = &word
	return e.unknownText(p.Pos(), r, q)
}
