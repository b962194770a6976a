package elf

import "bytes"

// same refuses bytes that differ from those of the first reading.
type same struct {
	table
	done int
}

func (s *same) Write(p []byte) (int, error) {
	if !bytes.HasPrefix(s.data[s.done:], p) {
		return 0, formatError(s.name, s.off+uint64(s.done), "the second reading differs from the first")
	}
	s.done += len(p)
	return len(p), nil
}

// records cuts the bytes written to it into entries of size bytes. It ignores an incomplete entry
// at the end.
type records struct {
	size int
	each func(index int, entry []byte) error
	next int    // index of the next entry
	rest []byte // of an entry that is not complete yet
}

func (r *records) Write(p []byte) (int, error) {
	n := len(p)
	if len(r.rest) > 0 {
		missing := min(r.size-len(r.rest), len(p))
		r.rest = append(r.rest, p[:missing]...)
		p = p[missing:]
		if len(r.rest) < r.size {
			return n, nil
		}
		if err := r.entry(r.rest); err != nil {
			return 0, err
		}
		r.rest = r.rest[:0]
	}
	for ; len(p) >= r.size; p = p[r.size:] {
		if err := r.entry(p[:r.size]); err != nil {
			return 0, err
		}
	}
	r.rest = append(r.rest, p...)
	return n, nil
}

func (r *records) entry(raw []byte) error {
	r.next++
	return r.each(r.next-1, raw)
}
