package script

import (
	"bytes"

	"mvdan.cc/sh/v3/syntax"
)

// source is a text for a shell: the file, or an expanded word of another source.
type source struct {
	text  []byte
	chars []Char // of text, nil for the file itself
}

// placeholder stands for unknown text. It has no meaning to any shell.
const placeholder = 0x1a

// sourceOf makes a source of a word, for another shell.
func sourceOf(w Word) *source {
	src := &source{text: make([]byte, len(w.Chars)), chars: w.Chars}
	for i, c := range w.Chars {
		if c.Ref != nil {
			src.text[i] = placeholder
		} else {
			src.text[i] = c.Byte
		}
	}
	return src
}

// charAt returns the i-th byte of the text, with its place in the file.
func (s *source) charAt(i int) Char {
	if s.chars == nil {
		return Char{Byte: s.text[i], At: i}
	}
	c := s.chars[i]
	return Char{Byte: c.Byte, Ref: c.Ref, At: c.At, kind: c.kind}
}

// placeOfByte returns the place of the i-th byte in the file.
func (s *source) placeOfByte(i int) int {
	if s.chars == nil {
		return i
	}
	if i < len(s.chars) {
		return s.chars[i].At
	}
	if len(s.chars) > 0 {
		return s.chars[len(s.chars)-1].At
	}
	return 0
}

func (s *source) parseShell() (*syntax.File, error) {
	parser := syntax.NewParser(syntax.Variant(syntax.LangBash), syntax.KeepComments(true))
	file, err := parser.Parse(bytes.NewReader(s.text), "")
	if err == nil {
		return file, nil
	}
	// Put a blank between the two brackets of each (( that are not closed together. To bash $(( a )
	// | b ) is a command in a subshell; the parser takes each (( for arithmetic.
	var open []int
	closed := make([]int, len(s.text)) // by place of a bracket
	for i, b := range s.text {
		switch {
		case b == '(':
			open = append(open, i)
		case b == ')' && len(open) > 0:
			closed[open[len(open)-1]] = i
			open = open[:len(open)-1]
		}
	}
	var out Word
	for i, b := range s.text {
		if i > 0 && b == '(' && s.text[i-1] == '(' && closed[i-1] != closed[i]+1 {
			out.Chars = append(out.Chars, Char{Byte: ' ', At: s.placeOfByte(i)})
		}
		out.Chars = append(out.Chars, s.charAt(i))
	}
	spaced := sourceOf(out)
	if again, failed := parser.Parse(bytes.NewReader(spaced.text), ""); failed == nil {
		*s = *spaced
		return again, nil
	}
	return file, err
}

// offset converts a parser's position to an index into the text.
func (s *source) offset(p syntax.Pos) int { return min(int(p.Offset()), len(s.text)) }

// placeOf converts a parser's position to a place in the file.
func (s *source) placeOf(p syntax.Pos) int { return s.placeOfByte(s.offset(p)) }
