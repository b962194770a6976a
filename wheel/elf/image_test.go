package elf_test

import (
	delf "debug/elf"
	"encoding/binary"
	"strings"
	"testing"
)

// image is an object whose fields can be changed. Offsets of fields are those
// of the gABI: in a section header 4 is the type, 8 the flags, 16 the address,
// 24 the offset, 32 the size, 40 the link, 44 the info, 56 the entry size.
type image struct {
	testing.TB
	data []byte
}

var le = binary.LittleEndian

func newImage(t testing.TB, name string) *image { return &image{t, fixture(t, name)} }

// patched is tiny.so after some changes.
func patched(t testing.TB, change func(*image)) []byte {
	t.Helper()
	b := newImage(t, "tiny.so")
	change(b)
	return b.data
}

func (b *image) get16(at int) uint16    { return le.Uint16(b.data[at:]) }
func (b *image) get64(at int) uint64    { return le.Uint64(b.data[at:]) }
func (b *image) put16(at int, v uint16) { le.PutUint16(b.data[at:], v) }
func (b *image) put32(at int, v uint32) { le.PutUint32(b.data[at:], v) }
func (b *image) put64(at int, v uint64) { le.PutUint64(b.data[at:], v) }

// first is where the section headers begin.
func (b *image) first() int { return int(b.get64(40)) }

// section is where the header of a section is.
func (b *image) section(name string) int {
	b.Helper()
	names := b.data[b.get64(b.first()+64*int(b.get16(62))+24):]
	for i := range int(b.get16(60)) {
		at := b.first() + 64*i
		if got, _, _ := strings.Cut(string(names[le.Uint32(b.data[at:]):]), "\x00"); got == name {
			return at
		}
	}
	b.Fatalf("no section %s", name)
	return 0
}

// in is a place within a section.
func (b *image) in(section string, at int) int {
	b.Helper()
	return int(b.get64(b.section(section)+24)) + at
}

// segment is where the first program header of a kind is.
func (b *image) segment(kind delf.ProgType) int {
	b.Helper()
	for i := range int(b.get16(56)) {
		if at := 64 + 56*i; le.Uint32(b.data[at:]) == uint32(kind) {
			return at
		}
	}
	b.Fatalf("no segment %v", kind)
	return 0
}

// tag is where the first dynamic entry of a kind is, its value 8 bytes further.
func (b *image) tag(tag delf.DynTag) int {
	b.Helper()
	for at := b.in(".dynamic", 0); ; at += 16 {
		switch delf.DynTag(b.get64(at)) {
		case tag:
			return at
		case delf.DT_NULL:
			b.Fatalf("no %v", tag)
		}
	}
}

// grow appends empty sections up to a number.
func (b *image) grow(n int) {
	have := int(b.get16(60))
	b.data = append(b.data, make([]byte, 64*(n-have))...)
	b.put16(60, 0)
	b.put64(b.first()+32, uint64(n))
}
