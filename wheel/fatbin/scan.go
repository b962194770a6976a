package fatbin

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
)

// Error reports a section that is not a sequence of fat binaries.
type Error struct {
	Offset int64 // in the section, in bytes
	Why    string
}

func (e *Error) Error() string { return fmt.Sprintf("offset %#x: %s", e.Offset, e.Why) }

func formatError(offset int64, format string, args ...any) error {
	return &Error{offset, fmt.Sprintf(format, args...)}
}

// maxEntries bounds the containers and entries of one section: the largest
// libraries have some ten thousands, and a deflated zip member can announce
// many millions in a megabyte.
const maxEntries = 1 << 20

// Scan reads a section of size bytes from r and calls visit for each entry, in
// the order of the section. It reads no more than size bytes, holds a small
// buffer, and takes time in proportion to size. The error is an *Error if the
// section is malformed, and otherwise that of r or of visit.
func Scan(r io.Reader, size int64, visit func(Entry) error) error {
	if size < 0 {
		return formatError(0, "a section of %d bytes", size)
	}
	s := &scanner{r: bufio.NewReaderSize(io.LimitReader(r, size), 32<<10), size: size, visit: visit}
	for {
		if err := s.skipZeros(); err != nil {
			return err
		}
		if s.at == s.size {
			return nil
		}
		if err := s.container(); err != nil {
			return err
		}
	}
}

type scanner struct {
	r        *bufio.Reader
	at, size int64 // position in the section, and its end
	seen     int   // containers, entries and members
	visit    func(Entry) error
	buf      [headerSize]byte
}

const (
	magic         = 0xBA55ED50
	containerSize = 16 // of a container's header
	headerSize    = 64 // of an entry's header, without the data after it
)

func (s *scanner) container() error {
	start := s.at
	if err := s.count(); err != nil {
		return err
	}
	if start%8 != 0 {
		return formatError(start, "neither padding nor a fat binary, which begins at a multiple of 8")
	}
	b, err := s.read(containerSize, s.size, "the header of a fat binary")
	if err != nil {
		return err
	}
	if m := binary.LittleEndian.Uint32(b); m != magic {
		return formatError(start, "neither padding nor a fat binary, whose first word is %#x, not %#x", uint32(magic), m)
	}
	header := int64(binary.LittleEndian.Uint16(b[6:]))
	body := binary.LittleEndian.Uint64(b[8:])
	if header < containerSize {
		return formatError(start, "the header of a fat binary says it has %d bytes, fewer than %d", header, containerSize)
	}
	if left := s.size - start - header; left < 0 || body > uint64(left) {
		return formatError(start, "a fat binary of %d and %d bytes, and the section ends in %d", header, body, s.size-start)
	}
	if err := s.skipTo(start + header); err != nil {
		return err
	}
	for end := s.at + int64(body); s.at < end; {
		if err := s.entry(end); err != nil {
			return err
		}
	}
	return nil
}

// entry reads one entry of a container that ends at end.
func (s *scanner) entry(end int64) error {
	start := s.at
	h, err := s.header(end)
	if err != nil {
		return err
	}
	if h.size < headerSize {
		return formatError(start, "the header of an entry says it has %d bytes, fewer than %d", h.size, headerSize)
	}
	if left := end - start - h.size; left < 0 || h.payload > uint64(left) {
		return formatError(start, "an entry of %d and %d bytes, and the fat binary ends in %d", h.size, h.payload, end-start)
	}
	payload := int64(h.payload)
	if err := s.emit(start, h); err != nil {
		return err
	}
	if kindOf(h.kind) == Concatenated {
		if err := s.members(start, h); err != nil {
			return err
		}
	}
	return s.skipTo(start + h.size + payload)
}

// members reads the list of members in the header of the concatenated entry at start.
func (s *scanner) members(start int64, h header) error {
	if h.options < headerSize || h.options+8 > h.size {
		return formatError(start, "a concatenated entry has its list at %d, and its header has %d bytes", h.options, h.size)
	}
	list := start + h.options
	if err := s.skipTo(list); err != nil {
		return err
	}
	b, err := s.read(8, start+h.size, "a list of entries")
	if err != nil {
		return err
	}
	n, size := binary.LittleEndian.Uint32(b), int64(binary.LittleEndian.Uint32(b[4:]))
	if size < 8 || size > h.size-h.options {
		return formatError(list, "a list of entries of %d bytes, and the header it is in ends in %d", size, h.size-h.options)
	}
	for range n { // each takes a header's bytes off the list
		if err := s.member(list + size); err != nil {
			return err
		}
	}
	if left := list + size - s.at; left != 0 {
		return formatError(s.at, "%d bytes behind the last of %d concatenated entries", left, n)
	}
	return nil
}

// member reads one entry of a list that ends at end. No field holds its length: it ends where its
// name or its options end.
func (s *scanner) member(end int64) error {
	start := s.at
	h, err := s.header(end)
	if err != nil {
		return err
	}
	if kindOf(h.kind) == Concatenated {
		return formatError(start, "a concatenated entry within another")
	}
	if err := s.emit(start, h); err != nil {
		return err
	}
	length := int64(headerSize)
	if h.name.length > 0 {
		length = max(length, h.name.end())
	}
	if h.options != 0 {
		if h.options < headerSize || h.options+8 > end-start {
			return formatError(start, "options at %d, and the list of entries ends in %d", h.options, end-start)
		}
		if err := s.skipTo(start + h.options); err != nil {
			return err
		}
		b, err := s.read(8, end, "options")
		if err != nil {
			return err
		}
		length = max(length, h.options+8, textAt(b).end())
	}
	if length > end-start {
		return formatError(start, "an entry of %d bytes, and the list of entries ends in %d", length, end-start)
	}
	return s.skipTo(start + length)
}

// header holds the fields that are read from the header of an entry or a member.
type header struct {
	kind    uint16
	size    int64 // of an entry's header
	payload uint64
	options int64 // offset
	arch    uint32
	name    text
	flags   uint64
}

// text is the place of a text, relative to the start of its entry.
type text struct{ offset, length int64 }

func textAt(b []byte) text {
	return text{int64(binary.LittleEndian.Uint32(b)), int64(binary.LittleEndian.Uint32(b[4:]))}
}

// end returns the offset after the text, its NUL and its padding.
func (t text) end() int64 { return (t.offset + t.length + 1 + 7) &^ 7 }

// header reads the fixed part of a header.
func (s *scanner) header(end int64) (header, error) {
	if err := s.count(); err != nil {
		return header{}, err
	}
	b, err := s.read(headerSize, end, "the header of an entry")
	if err != nil {
		return header{}, err
	}
	le := binary.LittleEndian
	return header{
		kind:    le.Uint16(b),
		size:    int64(le.Uint32(b[4:])),
		payload: le.Uint64(b[8:]),
		options: int64(le.Uint32(b[20:])),
		arch:    le.Uint32(b[28:]),
		name:    textAt(b[32:]),
		flags:   le.Uint64(b[40:]),
	}, nil
}

// emit hands the entry at an offset to the visitor. It writes sm_XYZ as compute capability XY.Z. With
// both flags set the narrower one counts, as for cuobjdump. Machine code has no family: a cubin does
// not say so and runs on the rest of its major in any case, and cuobjdump --list-elf names it without.
// A number has at most three digits, so the memory of a visitor stays small even for a hostile section.
func (s *scanner) emit(offset int64, h header) error {
	kind := kindOf(h.kind)
	if h.arch < 10 || h.arch > 999 {
		if kind == SASS || kind == PTX {
			return formatError(offset, "code for sm_%d, which is not a GPU", h.arch)
		}
		return s.visit(Entry{kind, ""})
	}
	suffix := ""
	switch {
	case h.flags&flagArch != 0:
		suffix = "a"
	case h.flags&flagFamily != 0 && kind != SASS:
		suffix = "f"
	}
	return s.visit(Entry{kind, fmt.Sprintf("%d.%d%s", h.arch/10, h.arch%10, suffix)})
}

// count counts the entries of a section. More than maxEntries is an error.
func (s *scanner) count() error {
	if s.seen++; s.seen > maxEntries {
		return formatError(s.at, "more than %d entries", maxEntries)
	}
	return nil
}

// skipZeros skips padding.
func (s *scanner) skipZeros() error {
	for s.at < s.size {
		b, err := s.r.ReadByte()
		if err != nil {
			return s.shortError(err)
		}
		if b != 0 {
			return s.r.UnreadByte()
		}
		s.at++
	}
	return nil
}

// read returns the next n bytes, valid until the next read.
func (s *scanner) read(n, end int64, what string) ([]byte, error) {
	if n > end-s.at {
		return nil, formatError(s.at, "%s has %d bytes, and there are %d", what, n, end-s.at)
	}
	b := s.buf[:n]
	got, err := io.ReadFull(s.r, b)
	s.at += int64(got)
	if err != nil {
		return nil, s.shortError(err)
	}
	return b, nil
}

// skipTo reads up to offset, which is within the section.
func (s *scanner) skipTo(offset int64) error {
	for s.at < offset {
		n, err := s.r.Discard(int(min(offset-s.at, math.MaxInt32)))
		s.at += int64(n)
		if err != nil {
			return s.shortError(err)
		}
	}
	return nil
}

// shortError explains why no more could be read.
func (s *scanner) shortError(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return formatError(s.at, "the section is cut off: it should have %d bytes", s.size)
	}
	return fmt.Errorf("offset %#x: %w", s.at, err)
}
