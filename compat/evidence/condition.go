package evidence

import (
	"errors"
	"strconv"
	"strings"
)

// value is the value of a condition: a number, or the part of the condition that is undecided.
type value struct {
	certain bool
	number  int64
	text    string
}

func certain(n int64) value { return value{true, n, strconv.FormatInt(n, 10)} }

func truth(b bool) value {
	if b {
		return certain(1)
	}
	return certain(0)
}

// decide returns the value of a condition of #if, #ifdef, #ifndef or #else. A condition that it cannot parse stays as it is.
func decide(kind string, words []string, macro macroOf) value {
	p := parser{words: words, macro: macro}
	var v value
	var err error
	switch {
	case kind == "se":
		return certain(1)
	case kind == "if":
		v, err = p.binary(0, 0)
	case len(words) == 0:
		err = errCondition
	default:
		if v = p.defined(); kind == "ifndef" {
			v = not(v)
		}
	}
	if err != nil || len(p.words) > 0 {
		return value{text: strings.Join(words, " ")}
	}
	return v
}

// parser reads the expression of a condition.
type parser struct {
	words []string
	macro macroOf
}

var errCondition = errors.New("not a condition")

// levels are the binary operators in ascending order of precedence.
func levels() [][]string {
	return [][]string{
		{"||", "or"},
		{"&&", "and"},
		{"|", "bitor"},
		{"^", "xor"},
		{"&", "bitand"},
		{"==", "!=", "not_eq"},
		{"<", ">", "<=", ">="},
		{"<<", ">>"},
		{"+", "-"},
		{"*", "/", "%"},
	}
}

// next consumes the next word if it is one of these.
func (p *parser) next(of ...string) (string, bool) {
	for _, word := range of {
		if len(p.words) > 0 && p.words[0] == word {
			p.words = p.words[1:]
			return word, true
		}
	}
	return "", false
}

// binary parses an expression of operators of a level of precedence and higher ones.
func (p *parser) binary(level, depth int) (value, error) {
	all := levels()
	if level == len(all) {
		return p.unary(depth + 1)
	}
	left, err := p.binary(level+1, depth)
	for err == nil {
		operator, ok := p.next(all[level]...)
		if !ok {
			break
		}
		var right value
		if right, err = p.binary(level+1, depth); err == nil {
			left, err = combine(operator, left, right)
		}
	}
	return left, err
}

func (p *parser) unary(depth int) (value, error) {
	if depth > maxDepth || len(p.words) == 0 {
		return value{}, errCondition
	}
	if operator, ok := p.next("!", "not", "-", "+", "~", "compl"); ok {
		v, err := p.unary(depth + 1)
		switch {
		case err != nil:
			return v, err
		case operator == "!", operator == "not":
			return not(v), nil
		case !v.certain:
			return value{text: operator + " " + v.text}, nil
		case operator == "-":
			return certain(-v.number), nil
		case operator == "+":
			return v, nil
		}
		return certain(^v.number), nil
	}
	if _, ok := p.next("("); ok {
		v, err := p.binary(0, depth)
		if _, closed := p.next(")"); err == nil && !closed {
			err = errCondition
		}
		return v, err
	}
	return p.operand()
}

// operand reads a number, a macro, or a call.
func (p *parser) operand() (value, error) {
	word := p.words[0]
	switch {
	case word[0] >= '0' && word[0] <= '9':
		p.words = p.words[1:]
		n, err := strconv.ParseInt(strings.TrimRight(strings.ReplaceAll(word, "'", ""), "uUlL"), 0, 64)
		if err != nil {
			return value{}, errCondition
		}
		return certain(n), nil
	case !isWord(word[0]) || strings.ContainsAny(word, `"'`):
		return value{}, errCondition
	case word == "defined":
		p.words = p.words[1:]
		_, open := p.next("(")
		if len(p.words) == 0 || !isWord(p.words[0][0]) {
			return value{}, errCondition
		}
		v := p.defined()
		if _, closed := p.next(")"); open && !closed {
			return value{}, errCondition
		}
		return v, nil
	}
	p.words = p.words[1:]
	if len(p.words) > 0 && p.words[0] == "(" {
		return p.call(word)
	}
	switch defined, known := p.macro(word); {
	case word == "true", known && defined:
		return certain(1), nil
	case word == "false", known:
		return certain(0), nil
	}
	return value{text: word}, nil
}

// defined reads the name of a macro.
func (p *parser) defined() value {
	name := p.words[0]
	p.words = p.words[1:]
	if defined, known := p.macro(name); known {
		return truth(defined)
	}
	return value{text: "defined(" + name + ")"}
}

// call reads the arguments of a macro, which stays as it is: __has_include(<x.h>).
func (p *parser) call(name string) (value, error) {
	text, depth := name, 0
	for i, word := range p.words {
		text += " " + word
		switch word {
		case "(":
			depth++
		case ")":
			depth--
		}
		if depth == 0 {
			p.words = p.words[i+1:]
			return value{text: text}, nil
		}
	}
	return value{}, errCondition
}

func not(v value) value {
	if v.certain {
		return truth(v.number == 0)
	}
	return value{text: "! " + v.text}
}

// combine returns the value of an operation. For && and ||, one side may be enough.
func combine(operator string, a, b value) (value, error) {
	switch operator {
	case "||", "or", "&&", "and":
		or := operator == "||" || operator == "or"
		if !or {
			operator = "&&"
		} else {
			operator = "||"
		}
		for _, sides := range [][2]value{{a, b}, {b, a}} {
			if one := sides[0]; one.certain && (one.number != 0) == or {
				return truth(or), nil
			} else if one.certain && sides[1].certain {
				return truth(sides[1].number != 0), nil
			} else if one.certain {
				return sides[1], nil
			}
		}
	}
	if !a.certain || !b.certain {
		return value{text: "( " + a.text + " " + operator + " " + b.text + " )"}, nil
	}
	x, y := a.number, b.number
	switch operator {
	case "==":
		return truth(x == y), nil
	case "!=", "not_eq":
		return truth(x != y), nil
	case "<":
		return truth(x < y), nil
	case ">":
		return truth(x > y), nil
	case "<=":
		return truth(x <= y), nil
	case ">=":
		return truth(x >= y), nil
	case "+":
		return certain(x + y), nil
	case "-":
		return certain(x - y), nil
	case "*":
		return certain(x * y), nil
	}
	return value{}, errCondition // unusual with numbers alone
}
