// Package elf reads from a shared object its requirements on the machine that loads it.
//
// It reads from a stream that only runs forward, for example a deflated member of a zip file of
// several GB. It needs no temporary file, and its memory does not grow with the size of the
// object. It reads the stream twice: first to find the section headers, which are at the end, and
// then to pass every section to its reader. If the section names are far from the section headers,
// it needs a third pass.
//
// The layout follows the System V ABI (gABI, chapters 4 and 5), and the Linux Standard Base, Core,
// chapter 10, for GNU extensions. The package treats every object as hostile: it checks each offset
// and size before use, and bounds the memory that it holds.
//
// It takes its constants from package debug/elf, and not its reader, for three reasons. That reader
// needs io.ReaderAt: each member of a wheel, up to several GB, would have to be unpacked to a file
// first. It "is not designed to be hardened against adversarial inputs" (its documentation):
// elf.NewFile copies the name of each section, so an object of 390 KB with 2,000 headers that share one
// name takes 500 MB, one of 5 MB some 64 GB, and no limit on the bytes that it is given bounds that;
// its lists of symbols and versions do the same. And it believes the section headers, which the loader
// ignores: agree (describe.go) rejects objects in which the two differ.
package elf

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io"
)

// Open starts a reading of the object at its first byte. Read calls it up to four times and
// closes each stream that it returns.
type Open func() (io.ReadCloser, error)

// Sink returns the writer for the bytes of a section; nil skips the section. Read calls it once
// for each section that has bytes in the file, in the order of the file and before it writes the
// first byte. It then writes the bytes in the order of the file. An error of the writer ends the
// reading.
type Sink func(Section) io.Writer

// Section is a section that has bytes in the file.
type Section struct {
	Name   string
	Type   elf.SectionType
	Flags  elf.SectionFlag // SHF_COMPRESSED: the bytes are handed over as they are stored
	Addr   uint64          // load address, or 0
	Offset uint64          // in the file
	Size   uint64          // in the file
	// Machine is the object's machine: see Object.
	Machine string

	index      int // in the section headers
	link, info uint32
	entry      uint64 // size of its entries
}

// Executable reports whether the section is loaded as code.
func (s Section) Executable() bool { return s.Flags&elf.SHF_EXECINSTR != 0 }

// stored reports whether the section has bytes in the file.
func (s Section) stored() bool {
	return s.Type != elf.SHT_NULL && s.Type != elf.SHT_NOBITS && s.Size > 0
}

func (s Section) end() uint64 { return s.Offset + s.Size }

// label returns the section's name for errors.
func (s Section) label() string {
	if s.Name == "" {
		return fmt.Sprintf("section %d", s.index)
	}
	return fmt.Sprintf("section %q", s.Name)
}

// Object describes the needs and offers of an ELF object. Lists are in the order of the file
// unless stated otherwise, and never nil if the object was read.
type Object struct {
	// Machine is the processor as `uname -m` and wheel tags call it ("x86_64", "aarch64"). If no
	// wheel tag has it, Machine is the name of the ELF constant ("cuda", "bpf") or "machine 1234".
	Machine string
	// Unread is the reason why nothing else was read: the object is not for 64-bit little-endian
	// Linux, or has no section headers. It is empty for all others.
	Unread string

	// Align is the largest kernel page size with which the object can be loaded: the smallest
	// alignment of a loaded segment, or 0 without such a segment.
	Align uint64

	Needs   []string // DT_NEEDED
	RPath   []string // DT_RPATH, its directories
	RunPath []string // DT_RUNPATH, its directories
	// Versions are the symbol versions that the object needs of each library, sorted:
	// "libc.so.6": ["GLIBC_2.2.5", "GLIBC_2.34"]. As in auditwheel, they include
	// weak ones, which the loader does not require.
	Versions map[string][]string

	Stripped bool // neither a symbol table nor debug sections, as after strip --strip-all
	// CXX11ABI reports which std::string and std::list the names of its dynamic symbols use.
	// Imported names take precedence over defined names. It is true if any name is of GCC 5 or later,
	// false if all are older, and nil if the object uses neither, or imports none and defines both, as
	// libstdc++ does.
	CXX11ABI *bool
	// IFuncs reports that the loader chooses some code when it loads the object, by a function
	// that asks the CPU (GNU indirect functions).
	IFuncs bool
	// Unique reports whether it defines a process-wide unique symbol (STB_GNU_UNIQUE): all objects use
	// the same definition, even if they were loaded with RTLD_LOCAL.
	Unique bool
	// AsksCPU are the dynamic symbols, imported or its own, that exist only to
	// ask which instructions the CPU has, sorted. An object that asks by an
	// instruction or by a hidden copy of libgcc's functions has none.
	AsksCPU []string
	Torch   Torch // what it imports of torch
}

// FormatError reports an object that violates the format or contradicts itself.
type FormatError struct {
	Where  string // the part of the object: `section ".dynamic"`
	Offset uint64 // in the file
	Why    string
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("%s at 0x%x: %s", e.Where, e.Offset, e.Why)
}

func formatError(where string, offset uint64, why string, args ...any) error {
	return &FormatError{where, offset, fmt.Sprintf(why, args...)}
}

// These limits bound the memory for one object.
const (
	maxKept     = 64 << 20 // bytes of tables and strings held at a time
	maxLists    = 1 << 20  // bytes of the dynamic table, and of the versions; libtorch has 656 and 1056
	maxSections = 1 << 18
	maxName     = 4096    // bytes of one name
	maxNames    = 4 << 20 // bytes of all names that are returned, and the overhead of each
)

// IsELF reports whether a file that begins with head is an ELF object.
func IsELF(head []byte) bool { return bytes.HasPrefix(head, []byte(elf.ELFMAG)) }

// Read reads an object of size bytes. A violation of the format is a *FormatError. If the length
// of the stream differs from size, the error wraps io.ErrUnexpectedEOF or says so.
func Read(open Open, size int64, sink Sink) (*Object, error) {
	if size < 0 {
		return nil, fmt.Errorf("ELF object of %d bytes", size)
	}
	f := &file{open: open, size: uint64(size)}
	defer f.close()
	raw, err := f.fetch(0, min(headerSize, f.size))
	if err != nil {
		return nil, err
	}
	h, err := parseHeader(raw)
	if err != nil {
		return nil, err
	}
	o := &Object{Machine: h.machine.name, Unread: h.unread}
	if o.Unread != "" {
		return o, nil
	}
	l, err := readLayout(f, h, raw)
	if err != nil {
		return nil, err
	}
	p, err := newParts(l, f.seen)
	if err != nil {
		return nil, err
	}
	if err := f.walk(p.spans(sink)); err != nil {
		return nil, err
	}
	if err := p.describe(o); err != nil {
		return nil, err
	}
	return o, nil
}
