package ui

import (
	"bufio"
	"io"
)

// lineReader reads lines for callers that may give up: the read goes on then, and its line is for
// the next caller.
type lineReader struct {
	in      *bufio.Reader
	lines   chan line
	reading bool // a goroutine waits for a line, though no caller may need it any more
}

type line struct {
	text string
	err  error
}

func newLineReader(in io.Reader) *lineReader {
	return &lineReader{in: bufio.NewReader(in), lines: make(chan line, 1)}
}

// next returns the channel of the next line. Whoever receives the line sets reading to false.
func (r *lineReader) next() <-chan line {
	if !r.reading {
		r.reading = true
		go func() {
			text, err := r.in.ReadString('\n')
			r.lines <- line{text, err}
		}()
	}
	return r.lines
}
