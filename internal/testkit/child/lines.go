package child

import (
	"bytes"
	"strings"
)

// Lines is an io.Writer that passes on whole lines, without their ends.
type Lines struct {
	each func(line string)
	rest []byte
}

// NewLines returns a writer that calls each once for every line.
func NewLines(each func(line string)) *Lines { return &Lines{each: each} }

// Write never fails.
func (l *Lines) Write(p []byte) (int, error) {
	l.rest = append(l.rest, p...)
	for {
		line, rest, whole := bytes.Cut(l.rest, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		l.each(string(line))
		l.rest = rest
	}
}

// Tail keeps the last lines of an output.
type Tail struct {
	Most  int // lines
	lines []string
}

// Add adds a line.
func (t *Tail) Add(line string) {
	if t.lines = append(t.lines, line); len(t.lines) > t.Most {
		t.lines = t.lines[1:]
	}
}

// String returns the kept lines.
func (t *Tail) String() string { return strings.Join(t.lines, "\n") }

// LastLines returns the last lines of a text.
func LastLines(text []byte, most int) string {
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}
