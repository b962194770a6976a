package elf

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
)

const (
	chunk = 128 << 10 // bytes read at a time
	// window is the number of skipped bytes that a file remembers. Linkers put the section names
	// just before the section headers.
	window = 1 << 20
)

// file is an object that can be read forward, again and again.
type file struct {
	open Open
	size uint64
	r    io.ReadCloser // nil before the first reading
	pos  uint64        // offset of r
	tail []byte        // the bytes that end at tailEnd
	// tailEnd is where the last skip ended.
	tailEnd uint64
	seen    uint64 // how many bytes are known to exist
}

func (f *file) close() {
	if f.r != nil {
		_ = f.r.Close() // all bytes were read: an error of Close has no effect
		f.r = nil
	}
}

func (f *file) rewind() error {
	f.close()
	r, err := f.open()
	if err != nil {
		return err
	}
	f.r, f.pos, f.tail, f.tailEnd = r, 0, nil, 0
	return nil
}

// fetch returns the n bytes at off, which must be within the file. It rewinds only if off is before
// the current position.
func (f *file) fetch(off, n uint64) ([]byte, error) {
	if start := f.tailEnd - uint64(len(f.tail)); off >= start && off+n <= f.tailEnd {
		return f.tail[off-start:][:n], nil
	}
	if f.r == nil || off < f.pos {
		if err := f.rewind(); err != nil {
			return nil, err
		}
	}
	if off > f.pos { // go forward, and remember the last bytes before off
		kept := min(off-f.pos, window)
		n, err := io.CopyN(io.Discard, f.r, int64(off-kept-f.pos))
		if err := f.advance(uint64(n), err); err != nil {
			return nil, err
		}
		f.tail, err = f.read(kept)
		f.tailEnd = f.pos
		if err != nil {
			return nil, err
		}
	}
	return f.read(n)
}

// read returns the next n bytes. Beyond a window, memory grows only as bytes arrive.
func (f *file) read(n uint64) ([]byte, error) {
	var b bytes.Buffer
	b.Grow(int(min(n, window)) + bytes.MinRead)
	got, err := io.CopyN(&b, f.r, int64(n))
	return b.Bytes(), f.advance(uint64(got), err)
}

// advance records a read of n bytes that ended with err.
func (f *file) advance(n uint64, err error) error {
	f.pos += n
	f.seen = max(f.seen, f.pos)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("object ends after %d of %d bytes: %w", f.pos, f.size, io.ErrUnexpectedEOF)
	default:
		return fmt.Errorf("object at 0x%x: %w", f.pos, err)
	}
}

// span is a part of the file and the writer that gets its bytes.
type span struct {
	name     string
	off, end uint64
	w        io.Writer
}

// walk rereads the whole object and writes to every span its bytes.
func (f *file) walk(spans []span) error {
	slices.SortStableFunc(spans, func(a, b span) int { return cmp.Compare(a.off, b.off) })
	if err := f.rewind(); err != nil {
		return err
	}
	buf := make([]byte, chunk)
	for f.pos < f.size {
		at := f.pos
		n, err := io.ReadFull(f.r, buf[:min(chunk, f.size-at)])
		if err := f.advance(uint64(n), err); err != nil {
			return err
		}
		if spans, err = writeToSpans(spans, at, buf[:n]); err != nil {
			return err
		}
	}
	// A zip member compares its checksum when it is asked for more.
	switch _, err := io.ReadFull(f.r, buf[:1]); {
	case err == nil:
		return fmt.Errorf("object continues after its %d bytes", f.size)
	case !errors.Is(err, io.EOF):
		return fmt.Errorf("object at 0x%x: %w", f.pos, err)
	}
	return nil
}

// writeToSpans writes the bytes at offset at to the spans, which are sorted, and
// returns those that more bytes may concern.
func writeToSpans(spans []span, at uint64, bytes []byte) ([]span, error) {
	next := at + uint64(len(bytes))
	for _, s := range spans {
		if s.off >= next {
			break
		}
		from, to := max(s.off, at), min(s.end, next)
		if from >= to {
			continue
		}
		part := bytes[from-at : to-at]
		n, err := s.w.Write(part)
		if err == nil && n < len(part) {
			err = io.ErrShortWrite
		}
		if format := (*FormatError)(nil); errors.As(err, &format) {
			return nil, err // says where itself
		} else if err != nil {
			return nil, fmt.Errorf("%s at 0x%x: %w", s.name, from, err)
		}
	}
	for len(spans) > 0 && spans[0].end <= next {
		spans = spans[1:]
	}
	return spans, nil
}

// same is a writer that rejects bytes that differ from the first reading.
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
