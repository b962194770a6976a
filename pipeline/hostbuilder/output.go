package hostbuilder

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
	"unicode"

	"github.com/dsbuild/dsbuild/internal/ui"
)

// lockedWriter accepts lines from several goroutines.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

// Write writes one piece whole.
func (l *lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

// keptBytes bounds the part of a stream's beginning, and of its end, that is kept in memory to
// explain a failure. The log has all of it.
const keptBytes = 1 << 20

// maxLine cuts a line that does not end.
const maxLine = 64 << 10

// stream passes on the lines of a program as they come, and keeps enough of them to explain a
// failure.
type stream struct {
	log  io.Writer
	step ui.Step

	rest       []byte
	head, tail strings.Builder
}

// Write accepts a piece of output, which may end anywhere.
func (s *stream) Write(b []byte) (int, error) {
	s.rest = append(s.rest, b...)
	for {
		i := bytes.IndexByte(s.rest, '\n')
		if i < 0 && len(s.rest) < maxLine {
			return len(b), nil
		}
		if i < 0 {
			i = len(s.rest) - 1
		}
		s.passLine(string(s.rest[:i+1]))
		s.rest = s.rest[i+1:]
	}
}

// flushLine passes on a last line that has no end.
func (s *stream) flushLine() {
	s.passLine(string(s.rest))
	s.rest = nil
}

func (s *stream) passLine(line string) {
	if line = strings.TrimRight(line, "\r\n"); line == "" {
		return
	}
	fmt.Fprintln(s.log, line)
	if s.head.Len() < keptBytes {
		s.head.WriteString(line + "\n")
	} else {
		s.tail.WriteString(line + "\n")
	}
	if s.tail.Len() > 2*keptBytes {
		end := s.tail.String()[s.tail.Len()-keptBytes:]
		s.tail.Reset()
		s.tail.WriteString(end)
	}
	if strings.ContainsFunc(line, unicode.IsLetter) { // not the rulers and carets of a compiler
		s.step.Log(line)
	}
}

// keptText returns the kept output, which explains a failure.
func (s *stream) keptText() string { return s.head.String() + s.tail.String() }
