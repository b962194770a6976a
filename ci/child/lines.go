package child

import "bytes"

// Lines is an io.Writer that hands on whole lines, without their ends.
type Lines struct {
	each func(line string)
	rest []byte
}

// NewLines returns a writer that calls each once a line.
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
