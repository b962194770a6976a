package ansible

import (
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxNesting bounds literals within literals.
const maxNesting = 50

// literal is what Ansible makes of a value in an INI file: a Python literal is
// what it stands for, anything else the text as it is.
func literal(text string) any {
	p := literals{rest: strings.Trim(text, " \t")}
	value, ok := p.value(0)
	if p.space(); ok && strings.HasPrefix(p.rest, ",") { // a tuple without its parentheses
		value, ok = p.more(value)
	}
	if !ok || p.rest != "" && p.rest[0] != '#' { // a comment may follow
		return text
	}
	return value
}

// more reads the rest of a tuple that has no parentheses.
func (p *literals) more(first any) (any, bool) {
	all := []any{first}
	for strings.HasPrefix(p.rest, ",") {
		p.rest = p.rest[1:]
		if p.space(); p.rest == "" || p.rest[0] == '#' {
			break
		}
		value, ok := p.value(0)
		if !ok {
			return nil, false
		}
		all = append(all, value)
		p.space()
	}
	return all, true
}

// literals reads Python literals from the front of a text: numbers, texts,
// True, False, None, lists, tuples and dictionaries.
type literals struct{ rest string }

func (p *literals) space() { p.rest = strings.TrimLeft(p.rest, " \t\r\n\f") }

func (p *literals) value(depth int) (any, bool) {
	p.space()
	if p.rest == "" || depth > maxNesting {
		return nil, false
	}
	switch c := p.rest[0]; {
	case c == '[':
		return p.list(']', depth)
	case c == '(':
		return p.tuple(depth)
	case c == '{':
		return p.dictionary(depth)
	case c == '\'' || c == '"':
		return p.texts()
	}
	return p.word()
}

// word reads a number or a constant.
func (p *literals) word() (any, bool) {
	sign := ""
	if c := p.rest[0]; c == '+' || c == '-' {
		sign, p.rest = p.rest[:1], p.rest[1:]
		p.space()
	}
	end := strings.IndexFunc(p.rest, func(r rune) bool { return strings.ContainsRune(" \t\r\n\f,:]})[({'\"#", r) })
	if end < 0 {
		end = len(p.rest)
	}
	word := p.rest[:end]
	p.rest = p.rest[end:]
	switch sign + word {
	case "True":
		return true, true
	case "False":
		return false, true
	case "None":
		return nil, true
	}
	return number(sign, word)
}

// The forms of Python's numbers; 007 is none.
var (
	wholeNumber = regexp.MustCompile(`^(?i:0x(_?[0-9a-f])+|0o(_?[0-7])+|0b(_?[01])+|0(_?0)*|[1-9](_?[0-9])*)$`)
	realNumber  = regexp.MustCompile(`^([0-9](_?[0-9])*)?\.?([0-9](_?[0-9])*)?(?i:e[+-]?[0-9](_?[0-9])*)?$`)
)

// number reads a number as Python writes them.
func number(sign, word string) (any, bool) {
	if wholeNumber.MatchString(word) {
		n, err := strconv.ParseInt(sign+word, 0, 64)
		if strings.Trim(word, "0_") == "" {
			n, err = 0, nil
		}
		return n, err == nil
	}
	if !realNumber.MatchString(word) || !strings.ContainsAny(word, "0123456789") || !strings.ContainsAny(word, ".eE") || strings.IndexAny(word, "eE") == 0 {
		return nil, false
	}
	f, err := strconv.ParseFloat(sign+strings.ReplaceAll(word, "_", ""), 64)
	return f, err == nil
}

// texts reads texts in quotes; several one after the other are one.
func (p *literals) texts() (any, bool) {
	var all strings.Builder
	for p.rest != "" && (p.rest[0] == '\'' || p.rest[0] == '"') {
		if !p.text(&all) {
			return nil, false
		}
		p.space()
	}
	return all.String(), true
}

func (p *literals) text(to *strings.Builder) bool {
	quote := p.rest[:1]
	if strings.HasPrefix(p.rest, quote+quote+quote) {
		return false // no text in INI has several lines
	}
	p.rest = p.rest[1:]
	for p.rest != "" {
		r, size := utf8.DecodeRuneInString(p.rest)
		switch {
		case p.rest[:1] == quote:
			p.rest = p.rest[1:]
			return true
		case r == '\n':
			return false
		case r == '\\':
			if !p.escape(to) {
				return false
			}
			continue
		}
		to.WriteRune(r)
		p.rest = p.rest[size:]
	}
	return false
}

// escape reads what a \ begins.
func (p *literals) escape(to *strings.Builder) bool {
	if len(p.rest) < 2 {
		return false
	}
	c := p.rest[1]
	if i := strings.IndexByte(`\'"abfnrtv`, c); i >= 0 {
		to.WriteByte("\\'\"\a\b\f\n\r\t\v"[i])
		p.rest = p.rest[2:]
		return true
	}
	if strings.IndexByte("xuU", c) >= 0 {
		value, _, rest, err := strconv.UnquoteChar(p.rest, 0)
		if err != nil {
			return false
		}
		to.WriteRune(value)
		p.rest = rest
		return true
	}
	if c >= '0' && c <= '7' {
		n := 1
		for n < 3 && n+1 < len(p.rest) && p.rest[n+1] >= '0' && p.rest[n+1] <= '7' {
			n++
		}
		value, err := strconv.ParseInt(p.rest[1:n+1], 8, 32)
		if err != nil {
			return false
		}
		to.WriteRune(rune(value))
		p.rest = p.rest[n+1:]
		return true
	}
	if c == 'N' {
		return false // names of characters
	}
	to.WriteByte('\\') // Python keeps what it does not know
	p.rest = p.rest[1:]
	return true
}

// list reads values to the end character; a comma may follow the last.
func (p *literals) list(end byte, depth int) ([]any, bool) {
	p.rest = p.rest[1:]
	all := []any{}
	for {
		if p.space(); p.rest != "" && p.rest[0] == end {
			p.rest = p.rest[1:]
			return all, true
		}
		value, ok := p.value(depth + 1)
		if !ok || !p.comma(end) {
			return nil, false
		}
		all = append(all, value)
	}
}

// tuple reads a tuple, which Ansible makes a list; a single value in
// parentheses is that value.
func (p *literals) tuple(depth int) (any, bool) {
	before := p.rest
	all, ok := p.list(')', depth)
	if !ok {
		return nil, false
	}
	inner := strings.TrimRight(strings.TrimSuffix(before[:len(before)-len(p.rest)], ")"), " \t")
	if len(all) == 1 && !strings.HasSuffix(inner, ",") {
		return all[0], true
	}
	return all, true
}

func (p *literals) dictionary(depth int) (any, bool) {
	p.rest = p.rest[1:]
	all := map[string]any{}
	for {
		if p.space(); p.rest != "" && p.rest[0] == '}' {
			p.rest = p.rest[1:]
			return all, true
		}
		key, ok := p.value(depth + 1)
		name, isText := key.(string)
		if p.space(); !ok || !isText || !strings.HasPrefix(p.rest, ":") {
			return nil, false
		}
		p.rest = p.rest[1:]
		value, ok := p.value(depth + 1)
		if !ok || !p.comma('}') {
			return nil, false
		}
		all[name] = value
	}
}

// comma takes a comma, or nothing before the end.
func (p *literals) comma(end byte) bool {
	p.space()
	switch {
	case strings.HasPrefix(p.rest, ","):
		p.rest = p.rest[1:]
		return true
	case p.rest != "" && p.rest[0] == end:
		return true
	}
	return false
}
