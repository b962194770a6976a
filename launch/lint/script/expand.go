package script

import (
	"slices"
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

type quoting int

const (
	unquoted quoting = iota
	inQuotes         // "..."
	inDocument
)

// fields expands words into those that a command gets.
func (in *interpreter) fields(words []*syntax.Word) []Word {
	var all []Word
	for _, w := range words {
		if in.budget.spent() {
			return all
		}
		all = append(all, split(in.expand(w, unquoted), in.src.pos(w.Pos()))...)
	}
	return all
}

// value expands the word of an assignment or a redirection.
func (in *interpreter) value(w *syntax.Word) Word {
	if w == nil {
		return Word{}
	}
	return whole(in.expand(w, unquoted), in.src.pos(w.Pos()))
}

// expand expands a word that is not split yet.
func (in *interpreter) expand(w *syntax.Word, q quoting) []Char {
	if w == nil || !in.enter() {
		return nil
	}
	defer in.leave()
	var out []Char
	for _, part := range w.Parts {
		out = append(out, in.part(part, q)...)
		if len(out) > maxWord {
			out = out[:maxWord]
		}
	}
	in.budget.chars += len(out)
	return out
}

func (in *interpreter) part(part syntax.WordPart, q quoting) []Char {
	switch p := part.(type) {
	case *syntax.Lit:
		return in.literal(in.src.offset(p.Pos()), in.src.offset(p.End()), q)
	case *syntax.SglQuoted:
		return in.singleQuoted(p)
	case *syntax.DblQuoted:
		out := []Char{{kind: charMark, At: in.src.pos(p.Pos())}}
		for _, inner := range p.Parts {
			out = append(out, in.part(inner, inQuotes)...)
		}
		return out
	case *syntax.ParamExp:
		return in.parameter(p, q)
	case *syntax.CmdSubst:
		return in.unknown(p.Pos(), &Ref{Output: in.substitution(p.Stmts)}, q)
	case *syntax.ArithmExp:
		return in.arithmetic(p, q)
	case *syntax.ProcSubst:
		in.substitution(p.Stmts)
		return in.unknown(p.Pos(), &Ref{}, q)
	case *syntax.ExtGlob, *syntax.BraceExp:
		return in.raw(in.src.offset(part.Pos()), in.src.offset(part.End()), q != unquoted)
	}
	return nil
}

// raw takes the text as it is.
func (in *interpreter) raw(from, to int, quoted bool) []Char {
	var out []Char
	for i := from; i < to; i++ {
		out = append(out, in.char(i, quoted))
	}
	return out
}

func (in *interpreter) char(i int, quoted bool) Char {
	c := in.src.char(i)
	c.quoted = quoted
	if c.Ref != nil {
		c.kind = charRef
	}
	return c
}

// literal takes the backslashes out of a literal. The parser may end one
// between a backslash and its newline.
func (in *interpreter) literal(from, to int, q quoting) []Char {
	var out []Char
	for i := from; i < to; i++ {
		c := in.char(i, q != unquoted)
		if c.Ref == nil && c.Byte == '\r' && (i+1 == len(in.src.text) || in.src.text[i+1] == '\n') {
			continue // the file was written on Windows; the parser passes over it, too
		}
		if c.Ref != nil || c.Byte != '\\' || i+1 >= len(in.src.text) {
			out = append(out, c)
			continue
		}
		next := in.char(i+1, true)
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

func (in *interpreter) singleQuoted(p *syntax.SglQuoted) []Char {
	from, to := in.src.offset(p.Left)+1, in.src.offset(p.Right)
	if p.Dollar {
		from++
	}
	out := []Char{{kind: charMark, At: in.src.pos(p.Left)}}
	for i := from; i < to; i++ {
		c := in.char(i, true)
		if p.Dollar && c.Byte == '\\' && i+1 < to {
			i++
			c = in.char(i, true)
			switch c.Byte {
			case 'n':
				c.Byte = '\n'
			case 't':
				c.Byte = '\t'
			}
		}
		out = append(out, c)
	}
	return out
}

// unknown is a text that only the run knows.
func (in *interpreter) unknown(at syntax.Pos, r *Ref, q quoting) []Char {
	r.Depth = in.depth
	return []Char{{Ref: r, At: in.src.pos(at), kind: charRef, quoted: q != unquoted}}
}

// substitution walks the commands of $(...) and returns them.
func (in *interpreter) substitution(stmts []*syntax.Stmt) []*Command {
	before := len(in.script.Commands)
	sub := in.fork()
	sub.captured = true
	sub.stmts(stmts)
	in.script.Commands = sub.script.Commands
	return in.script.Commands[before:]
}

func (in *interpreter) parameter(p *syntax.ParamExp, q quoting) []Char {
	if p.Param == nil {
		return in.unknown(p.Pos(), &Ref{}, q)
	}
	name := p.Param.Value
	v := in.env.vars[name]
	switch {
	case p.Exp != nil:
		return in.expansion(p, v, q)
	case p.Excl, p.Length, p.Width, p.IsSet, p.Slice != nil, p.Repl != nil, p.Names != 0:
		return in.unknown(p.Pos(), &Ref{Name: name, Assigned: v != nil, Edited: true}, q)
	case v == nil || v.unknown:
		return in.unknown(p.Pos(), in.variable(name, v), q)
	case v.unset:
		return nil
	case p.Index != nil || v.array != nil:
		return in.element(p, v, q)
	}
	return copied(v.value.Chars, q)
}

// variable is a Ref to one whose value is not known.
func (in *interpreter) variable(name string, v *variable) *Ref {
	r := &Ref{Name: name}
	if v != nil {
		r.Hidden = v.hidden
		r.Assigned = v.hidden == nil
	}
	return r
}

// copied is the value of a variable where it is expanded.
func copied(chars []Char, q quoting) []Char {
	out := make([]Char, len(chars), len(chars)+1)
	for i, c := range chars {
		c.quoted = q != unquoted
		out[i] = c
	}
	return out
}

// element expands ${A[0]}, ${A[@]} and $A.
func (in *interpreter) element(p *syntax.ParamExp, v *variable, q quoting) []Char {
	array := v.array
	if array == nil {
		array = []Word{v.value}
	}
	index := "0"
	if p.Index != nil {
		index = in.subscript(p.Index)
	} else if name := p.Param.Value; name == "@" || name == "*" {
		index = name
	}
	if index == "@" || index == "*" {
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
			out = append(out, copied(w.Chars, q)...)
			if len(out) > maxWord {
				break
			}
		}
		return out
	}
	if n, err := strconv.Atoi(index); err == nil {
		// From its end an array is counted only where no element can be several.
		if n < 0 && !slices.ContainsFunc(array, func(w Word) bool { return len(w.Refs()) > 0 }) {
			n += len(array)
		}
		if n >= 0 && n < len(array) {
			return copied(array[n].Chars, q)
		}
	}
	return in.unknown(p.Pos(), &Ref{Name: p.Param.Value, Assigned: true, Index: index, Output: arrayOutput(array)}, q)
}

// arrayOutput is the command whose output is the whole array: A=($(command)).
func arrayOutput(array []Word) []*Command {
	if len(array) != 1 || array[0].Only() == nil {
		return nil
	}
	return array[0].Only().Output
}

// subscript is the text of an index, "" if it is not known.
func (in *interpreter) subscript(x syntax.ArithmExpr) string {
	if w, ok := x.(*syntax.Word); ok && (w.Lit() == "@" || w.Lit() == "*") {
		return w.Lit()
	}
	if n, known := in.number(x, nil); known {
		return strconv.Itoa(n)
	}
	return ""
}

// expansion is ${NAME:-word} and its kin.
func (in *interpreter) expansion(p *syntax.ParamExp, v *variable, q quoting) []Char {
	name := p.Param.Value
	known := v != nil && !v.unknown && v.array == nil && p.Index == nil
	op := p.Exp.Op
	// With a colon an empty value counts as none.
	colon := op == syntax.DefaultUnsetOrNull || op == syntax.AssignUnsetOrNull || op == syntax.AlternateUnsetOrNull || op == syntax.ErrorUnsetOrNull
	missing := known && (v.unset || colon && len(v.value.Chars) == 0)
	r := in.variable(name, v)
	switch op {
	case syntax.DefaultUnset, syntax.DefaultUnsetOrNull, syntax.AssignUnset, syntax.AssignUnsetOrNull:
		if known && !missing {
			return copied(v.value.Chars, q)
		}
		out := in.fallback(p, r, missing, q)
		if op == syntax.AssignUnset || op == syntax.AssignUnsetOrNull {
			in.assign(in.newAssignment(name, whole(out, in.src.pos(p.Pos())), in.src.pos(p.Pos())), false)
		}
		return out
	case syntax.AlternateUnset, syntax.AlternateUnsetOrNull:
		if known && missing {
			return nil
		}
		if known && p.Exp.Word != nil {
			return in.expand(p.Exp.Word, q)
		}
		r.Alternate = true
	case syntax.ErrorUnset, syntax.ErrorUnsetOrNull:
		if known && !missing {
			return copied(v.value.Chars, q)
		}
		r.Required = true
	default:
		r.Edited = true
	}
	return in.unknown(p.Pos(), r, q)
}

// fallback is what ${NAME:-word} expands to where the variable is missing; it
// may be, unless that is known.
func (in *interpreter) fallback(p *syntax.ParamExp, r *Ref, missing bool, q quoting) []Char {
	word := Word{At: in.src.pos(p.Pos())}
	if p.Exp.Word != nil {
		if missing {
			return in.expand(p.Exp.Word, q)
		}
		word = whole(in.expand(p.Exp.Word, inQuotes), in.src.pos(p.Exp.Word.Pos()))
	}
	if missing {
		return nil
	}
	r.Default = &word
	return in.unknown(p.Pos(), r, q)
}

// arithmetic is $((...)): a number where everything in it is known.
func (in *interpreter) arithmetic(p *syntax.ArithmExp, q quoting) []Char {
	var uses []*Ref
	n, known := in.number(p.X, &uses)
	at := in.src.pos(p.Pos())
	if !known {
		return in.unknown(p.Pos(), &Ref{Uses: uses}, q)
	}
	var out []Char
	for _, b := range []byte(strconv.Itoa(n)) {
		out = append(out, Char{Byte: b, At: at, quoted: q != unquoted})
	}
	return out
}

// number computes what can be computed, and notes the unknown variables.
func (in *interpreter) number(x syntax.ArithmExpr, uses *[]*Ref) (n int, known bool) {
	if !in.enter() {
		return 0, false
	}
	defer in.leave()
	switch x := x.(type) {
	case *syntax.ParenArithm:
		return in.number(x.X, uses)
	case *syntax.UnaryArithm:
		n, known = in.number(x.X, uses)
		return -n, known && x.Op == syntax.Minus
	case *syntax.BinaryArithm:
		a, okA := in.number(x.X, uses)
		b, okB := in.number(x.Y, uses)
		if !okA || !okB {
			return 0, false
		}
		return compute(x.Op, a, b)
	case *syntax.Word:
		return in.operand(x, uses)
	}
	return 0, false
}

func compute(op syntax.BinAritOperator, a, b int) (n int, known bool) {
	switch op {
	case syntax.Add:
		return a + b, true
	case syntax.Sub:
		return a - b, true
	case syntax.Mul:
		return a * b, true
	case syntax.Quo:
		if b != 0 {
			return a / b, true
		}
	case syntax.Rem:
		if b != 0 {
			return a % b, true
		}
	}
	return 0, false
}

// operand is a number, $NAME or NAME.
func (in *interpreter) operand(w *syntax.Word, uses *[]*Ref) (n int, known bool) {
	value := whole(in.expand(w, inQuotes), in.src.pos(w.Pos()))
	if n, ok := value.Int(); ok {
		return n, true
	}
	if name, ok := value.Literal(); ok && syntax.ValidName(name) {
		v := in.env.vars[name]
		if v != nil && !v.unknown && v.array == nil {
			if n, ok := v.value.Int(); ok {
				return n, true
			}
			value = v.value
		} else {
			value = Word{Chars: in.unknown(w.Pos(), in.variable(name, v), inQuotes), At: value.At}
		}
	}
	if uses != nil {
		*uses = append(*uses, value.Refs()...)
	}
	return 0, false
}
