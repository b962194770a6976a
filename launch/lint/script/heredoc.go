package script

import (
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// hereDocument returns the expanded text of a here-document.
func (e expander) hereDocument(r *syntax.Redirect) Word {
	quoted := slices.ContainsFunc(r.Word.Parts, func(p syntax.WordPart) bool {
		_, literal := p.(*syntax.Lit)
		return !literal || strings.Contains(p.(*syntax.Lit).Value, "\\")
	})
	at := e.src.placeOf(r.Hdoc.Pos())
	var chars []Char
	if quoted {
		chars = e.rawText(e.src.offset(r.Hdoc.Pos()), e.src.offset(r.Hdoc.End()), false)
	} else {
		chars = e.expandWord(r.Hdoc, inDocument)
	}
	if r.Op == syntax.DashHdoc {
		chars = withoutTabs(chars)
	}
	return joinChars(withoutEnd(chars, e.expandValue(r.Word)), at)
}

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
