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

// lockedWriter takes lines from several goroutines.
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

// keptBytes is how much of a stream's beginning, and of its end, is kept to
// explain a failure: all of it is in the log.
const keptBytes = 1 << 20

// maxLine cuts a line that does not end.
const maxLine = 64 << 10

// stream passes on the lines of a program as they come, and keeps enough of
// them to say why it failed.
type stream struct {
	log  io.Writer
	step ui.Step

	rest       []byte
	head, tail strings.Builder
}

// Write takes a piece of output, which may end anywhere.
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
		s.line(string(s.rest[:i+1]))
		s.rest = s.rest[i+1:]
	}
}

// end passes on a last line that has no end.
func (s *stream) end() {
	s.line(string(s.rest))
	s.rest = nil
}

func (s *stream) line(line string) {
	if line = strings.TrimRight(line, "\r\n"); line == "" {
		return
	}
	fmt.Fprintln(s.log, line)
	s.keep(line + "\n")
	if strings.ContainsFunc(line, unicode.IsLetter) { // not the rulers and carets of a compiler
		s.step.Log(line)
	}
}

func (s *stream) keep(line string) {
	if s.head.Len() < keptBytes {
		s.head.WriteString(line)
		return
	}
	s.tail.WriteString(line)
	if s.tail.Len() > 2*keptBytes {
		end := s.tail.String()[s.tail.Len()-keptBytes:]
		s.tail.Reset()
		s.tail.WriteString(end)
	}
}

// kept is what there is to explain a failure with.
func (s *stream) kept() string { return s.head.String() + s.tail.String() }
