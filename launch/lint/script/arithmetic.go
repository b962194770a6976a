package script

import (
	"slices"
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// evalArithmetic computes an expression of known values, and adds its unknown variables
// to uses.
func (e expander) evalArithmetic(x syntax.ArithmExpr, uses *[]*Ref) (n int, known bool) {
	if !e.enterLevel() {
		return 0, false
	}
	defer e.leaveLevel()
	switch x := x.(type) {
	case *syntax.ParenArithm:
		return e.evalArithmetic(x.X, uses)
	case *syntax.UnaryArithm:
		n, known = e.evalArithmetic(x.X, uses)
		return -n, known && x.Op == syntax.Minus
	case *syntax.BinaryArithm:
		a, okA := e.evalArithmetic(x.X, uses)
		b, okB := e.evalArithmetic(x.Y, uses)
		if !okA || !okB {
			return 0, false
		}
		switch x.Op {
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
	case *syntax.Word:
		return e.evalOperand(x, uses)
	}
	return 0, false
}

// maxRandom is the greatest value of RANDOM.
const maxRandom = 32767

// greatestValue returns the greatest value of a sum of numbers, rests (X % 20000) and RANDOM;
// 0 for another expression.
func greatestValue(x syntax.ArithmExpr) int {
	switch x := x.(type) {
	case *syntax.ParenArithm:
		return greatestValue(x.X)
	case *syntax.Word:
		text := x.Lit()
		if p, ok := x.Parts[0].(*syntax.ParamExp); ok && len(x.Parts) == 1 {
			text = p.Param.Value
		}
		if text == "RANDOM" {
			return maxRandom
		}
		n, _ := strconv.Atoi(text) //nolint:errcheck // 0 for another word
		return n
	case *syntax.BinaryArithm:
		a, b := greatestValue(x.X), greatestValue(x.Y)
		switch {
		case x.Op == syntax.Rem && a > 0 && b > 0:
			return min(a, b-1)
		case x.Op == syntax.Rem && b > 0:
			return b - 1
		case x.Op == syntax.Add && a > 0 && b > 0:
			return a + b
		}
	}
	return 0
}

// evalOperand evaluates a number, $NAME or NAME.
func (e expander) evalOperand(w *syntax.Word, uses *[]*Ref) (n int, known bool) {
	value := joinChars(e.expandWord(w, inQuotes), e.src.placeOf(w.Pos()))
	if n, ok := arithmeticInt(value); ok {
		return n, true
	}
	if name, ok := value.Literal(); ok && syntax.ValidName(name) {
		v := e.env.vars[name]
		if v != nil && !v.unknown && v.array == nil {
			if n, ok := arithmeticInt(v.value); ok {
				return n, true
			}
			value = v.value
		} else {
			value = Word{Chars: e.unknownText(w.Pos(), e.variableRef(name, v), inQuotes), At: value.At}
		}
	}
	if uses != nil {
		for _, r := range value.Refs() {
			*uses = addUses(*uses, r)
		}
	}
	return 0, false
}

// arithmeticInt returns a word as a number of an expression. Behind a leading zero, which means
// another base, the number is not known.
func arithmeticInt(w Word) (int, bool) {
	n, ok := w.Int()
	text, _ := w.Literal()
	digits := strings.TrimLeft(strings.TrimSpace(text), "+-")
	return n, ok && (len(digits) == 1 || digits[0] != '0')
}

// addUses adds a variable, or the variables of an expression.
func addUses(uses []*Ref, r *Ref) []*Ref {
	found := r.Uses
	if len(found) == 0 {
		found = []*Ref{r}
	}
	for _, one := range found {
		if len(uses) < maxUses && !slices.Contains(uses, one) {
			uses = append(uses, one)
		}
	}
	return uses
}
