package script

import (
	"bytes"

	"mvdan.cc/sh/v3/syntax"
)

// source is a text that a shell reads: the file, or what a word of another
// source has become by expansion.
type source struct {
	text  []byte
	chars []Char // of text, nil for the file itself
}

// placeholder stands in a text for what is unknown. It is a letter to no
// shell, and nothing else that it understands.
const placeholder = 0x1a

// sourceOf makes a text of a word for another shell to read.
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

// char is the i-th of the text, with its place in the file.
func (s *source) char(i int) Char {
	if s.chars == nil {
		return Char{Byte: s.text[i], At: i}
	}
	c := s.chars[i]
	return Char{Byte: c.Byte, Ref: c.Ref, At: c.At, kind: c.kind}
}

// at is where in the file the i-th byte is.
func (s *source) at(i int) int {
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

func (s *source) parse() (*syntax.File, error) {
	return syntax.NewParser(syntax.Variant(syntax.LangBash), syntax.KeepComments(true)).Parse(bytes.NewReader(s.text), "")
}

// offset is a parser's position as an index into the text.
func (s *source) offset(p syntax.Pos) int { return min(int(p.Offset()), len(s.text)) }

// pos is a parser's position as a place in the file.
func (s *source) pos(p syntax.Pos) int { return s.at(s.offset(p)) }

// lines are the lines of the text, as words that hold everything.
func (s *source) lines() []Word {
	var all []Word
	start := 0
	for i := 0; i <= len(s.text); i++ {
		if i < len(s.text) && s.text[i] != '\n' {
			continue
		}
		line := Word{At: s.at(start), Chars: make([]Char, 0, i-start)}
		for j := start; j < i; j++ {
			line.Chars = append(line.Chars, s.char(j))
		}
		all = append(all, line)
		start = i + 1
	}
	return all
}
