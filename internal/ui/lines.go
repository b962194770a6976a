package ui

import (
	"bufio"
	"bytes"
	"io"
)

// lineReader reads lines for callers that may give up. The read then continues, and the next caller
// gets its line.
type lineReader struct {
	in      *bufio.Reader
	lines   chan line
	reading bool // a goroutine reads a line, even if no caller waits for it any longer
}

type line struct {
	text string
	err  error
}

func newLineReader(in io.Reader) *lineReader {
	return &lineReader{in: bufio.NewReader(in), lines: make(chan line, 1)}
}

// next returns the channel of the next line. The receiver sets reading to false.
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

// LineWriter is a Writer that calls Line for each non-empty line, without surrounding spaces.
type LineWriter struct {
	Line func(string)
	rest []byte
}

// Write implements io.Writer.
func (w *LineWriter) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	for {
		line, rest, whole := bytes.Cut(w.rest, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		w.rest = rest
		w.take(line)
	}
}

// End calls Line for a last line without a newline.
func (w *LineWriter) End() {
	w.take(w.rest)
	w.rest = nil
}

func (w *LineWriter) take(line []byte) {
	if line = bytes.TrimSpace(line); len(line) > 0 {
		w.Line(string(line))
	}
}
