package script

import (
	"strings"
)

// withoutTabs removes tabs at the beginning of lines, as <<- does.
func withoutTabs(chars []Char) []Char {
	out, start := make([]Char, 0, len(chars)), true
	for _, c := range chars {
		if start && c.Ref == nil && c.Byte == '\t' {
			continue
		}
		start = c.Ref == nil && c.Byte == '\n'
		out = append(out, c)
	}
	return out
}

// withoutEnd removes the end line of a here-document, which the parser includes.
func withoutEnd(chars []Char, end Word) []Char {
	last := len(chars) - 1
	for last >= 0 && (chars[last].Ref != nil || chars[last].Byte != '\n') {
		last--
	}
	if strings.TrimLeft((Word{Chars: chars[last+1:]}).Text(), "\t") == end.Text() {
		return chars[:last+1]
	}
	return chars
}
