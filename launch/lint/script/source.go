package script

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// source is the text of a shell: the file, or the word after bash -c.
type source struct {
	text  []byte
	chars []Char // of text, or nil for the file itself
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

// template matches a template engine's placeholders, {{ nodes }}, and its statements, {% if x %}.
var template = regexp.MustCompile(`\$?\{\{[^{}\n]+\}\}|(?m:^[ \t]*\{%[^\n]*?%\}[ \t]*\n)|\{%[^\n]*?%\}`)

// fillIn matches a placeholder for the user: <your partition>.
var fillIn = regexp.MustCompile(`<[A-Za-z_](?:[^<>\n]*[^<>\s])?>`)

// newSource makes a file's source. Each span becomes one unknown word; template statements are dropped.
func newSource(text []byte, spans [][]int) *source {
	spans = slices.SortedFunc(slices.Values(append(template.FindAllIndex(text, -1), spans...)), func(a, b []int) int {
		return cmp.Compare(a[0], b[0])
	})
	if len(spans) == 0 {
		return &source{text: text}
	}
	var w Word
	at := 0
	literal := func(end int) {
		for ; at < end; at++ {
			w.Chars = append(w.Chars, Char{Byte: text[at], At: at})
		}
	}
	for _, span := range spans {
		if span[0] < at {
			continue // within another span
		}
		literal(span[0])
		name := string(text[span[0]:span[1]])
		if !strings.HasPrefix(strings.TrimSpace(name), "{%") {
			w.Chars = append(w.Chars, Char{Ref: &Ref{text: name}, At: at})
		}
		at = span[1]
	}
	literal(len(text))
	return sourceOf(w)
}

// readFile parses a file and finds its unfilled placeholders, which bash reads as redirections.
func readFile(text []byte) (src *source, file *syntax.File, unfilled [][]int, err error) {
	for opened := 0; ; {
		src = newSource(text, unfilled)
		file, err = src.parseShell()
		if stop := openHereDocument.FindSubmatch([]byte(fmt.Sprint(err))); stop != nil && opened < maxOpened { // it ends with the file
			opened++
			text = slices.Concat(text, []byte("\n"), stop[1], []byte("\n"))
			continue
		}
		more := fillIns(src, file, err, text)
		if len(more) == 0 || len(unfilled) > maxUnfilled {
			return src, file, unfilled, err
		}
		unfilled = append(unfilled, more...)
	}
}

// openHereDocument matches the parser's error about a here-document without its end, which bash accepts.
var openHereDocument = regexp.MustCompile("unclosed here-document `(.*)`$")

// Limits of how often a file is parsed.
const (
	maxUnfilled = 50 // placeholders
	maxOpened   = 5  // here-documents without an end
)

// fillIns finds placeholders among the redirections, or in the line with the syntax error.
func fillIns(src *source, file *syntax.File, err error, text []byte) (found [][]int) {
	seen := map[int]bool{}
	add := func(from, to int) {
		for _, span := range fillIn.FindAllIndex(text[from:to], -1) {
			span = []int{from + span[0], from + span[1]}
			if !seen[span[0]] && !src.isUnknown(span[0]) {
				seen[span[0]], found = true, append(found, span)
			}
		}
	}
	lineOf := func(at int) (from, to int) {
		from = bytes.LastIndexByte(text[:at], '\n') + 1
		if n := bytes.IndexByte(text[at:], '\n'); n >= 0 {
			return from, at + n
		}
		return from, len(text)
	}
	if parse, ok := err.(syntax.ParseError); ok { //nolint:errorlint // the parser returns it as it is
		if at := src.placeOf(parse.Pos); at < len(text) {
			add(lineOf(at))
		}
		return found
	}
	if err != nil {
		return nil
	}
	syntax.Walk(file, func(n syntax.Node) bool {
		if r, ok := n.(*syntax.Redirect); ok && r.Op == syntax.RdrIn && r.N == nil {
			at := src.placeOf(r.OpPos)
			_, end := lineOf(at)
			if span := fillIn.FindIndex(text[at:end]); span != nil && span[0] == 0 && !isRedirections(text[at:end], span[1]) {
				add(at, at+span[1])
			}
		}
		return true
	})
	return found
}

// isRedirections reports whether <a>b, whose first end bytes look like a placeholder, is two redirections.
func isRedirections(text []byte, end int) bool {
	const ends = " \t\"';|&)/:,=" // what may follow a placeholder
	return end < len(text) && !bytes.ContainsAny(text[:end], " \t") && strings.IndexByte(ends, text[end]) < 0
}

// isUnknown reports whether the byte at a position of the file is the beginning of an unknown word.
func (s *source) isUnknown(at int) bool {
	i, found := slices.BinarySearchFunc(s.chars, at, func(c Char, at int) int { return cmp.Compare(c.At, at) })
	return found && s.chars[i].Ref != nil
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

// openComment matches a line whose comment ends with a backslash, also behind whole quoted words. The parser, unlike a
// shell, joins it with the next line.
var openComment = regexp.MustCompile(`^(?:(?:[^'"#]|'[^']*'|"(?:[^"\\]|\\.)*")*[ \t])?#`)

// quotedName matches the beginning of an element "NAME"=value. The parser, unlike bash, does not take it in an array.
var quotedName = regexp.MustCompile(`(?m)((?:^|[ \t(]))"(\w+)"=`)

func (s *source) parseShell() (*syntax.File, error) {
	text := slices.Clone(s.text)
	end := 0
	for line := range bytes.Lines(text) {
		end += len(line)
		if line, ok := bytes.CutSuffix(line, []byte("\\\n")); ok && openComment.Match(line) {
			text[end-2] = ' '
		}
	}
	parser := syntax.NewParser(syntax.Variant(syntax.LangBash), syntax.KeepComments(true))
	file, err := parser.Parse(bytes.NewReader(text), "")
	if parse := (syntax.ParseError{}); errors.As(err, &parse) && strings.Contains(parse.Text, "array element") {
		return parser.Parse(bytes.NewReader(quotedName.ReplaceAll(text, []byte(`${1}\${2}\=`))), "") // of the same length
	}
	return file, err
}

// offset converts a parser's position to an index into the text.
func (s *source) offset(p syntax.Pos) int { return min(int(p.Offset()), len(s.text)) }

// between returns the text between two of the parser's positions.
func (s *source) between(from, to syntax.Pos) []byte { return s.text[s.offset(from):s.offset(to)] }

// placeOf converts a parser's position to a position in the file.
func (s *source) placeOf(p syntax.Pos) int { return s.placeOfByte(s.offset(p)) }
