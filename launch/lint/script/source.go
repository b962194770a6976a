package script

import (
	"bytes"

	"mvdan.cc/sh/v3/syntax"
)

// source is the text of a shell: the file, or the word after bash -c.
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

// charAt returns the i-th byte of the text with its position in the file.
func (s *source) charAt(i int) Char {
	if s.chars == nil {
		return Char{Byte: s.text[i], At: i}
	}
	c := s.chars[i]
	return Char{Byte: c.Byte, Ref: c.Ref, At: c.At}
}

// placeOfByte returns the position of the i-th byte in the file.
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
	return syntax.NewParser(syntax.Variant(syntax.LangBash), syntax.KeepComments(true)).Parse(bytes.NewReader(s.text), "")
}

// offset converts a parser's position to an index into the text.
func (s *source) offset(p syntax.Pos) int { return min(int(p.Offset()), len(s.text)) }

// between returns the text between two of the parser's positions.
func (s *source) between(from, to syntax.Pos) []byte { return s.text[s.offset(from):s.offset(to)] }

// placeOf converts a parser's position to a position in the file.
func (s *source) placeOf(p syntax.Pos) int { return s.placeOfByte(s.offset(p)) }
