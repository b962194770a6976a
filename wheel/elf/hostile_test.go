package elf_test

import (
	"bytes"
	delf "debug/elf"
	"errors"
	"io"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/wheel/elf"
)

// damages are changes of tiny.so and what is said of each.
func damages() map[string]struct {
	change func(*image)
	want   string
} {
	return map[string]struct {
		change func(*image)
		want   string
	}{
		// The ELF header.
		"not ELF":       {func(b *image) { b.data[3] = 'G' }, `the ELF header at 0x0: does not begin with "\x7fELF"`},
		"nothing":       {func(b *image) { b.data = nil }, `the ELF header at 0x0: does not begin with "\x7fELF"`},
		"magic alone":   {func(b *image) { b.data = b.data[:4] }, "the ELF header at 0x0: the file ends after 4 bytes"},
		"half a header": {func(b *image) { b.data = b.data[:63] }, "the ELF header at 0x0: the file ends after 63 bytes"},
		"class":         {func(b *image) { b.data[4] = 3 }, "the ELF header at 0x4: class 3 is neither 32-bit nor 64-bit"},
		"byte order": {
			func(b *image) { b.data[5] = 0 },
			"the ELF header at 0x5: byte order 0 is neither little-endian nor big-endian",
		},
		"version":            {func(b *image) { b.data[6] = 2 }, "the ELF header at 0x6: version 2 of ELF, 1 is known"},
		"program entry size": {func(b *image) { b.put16(54, 32) }, "the program headers at 0x40: 32 bytes each, not 56"},
		"programs beyond": {
			func(b *image) { b.put64(32, 1<<40) },
			"the program headers at 0x10000000000: 224 bytes, but the file ends at 0xa40",
		},
		"programs overflow": {
			func(b *image) { b.put64(32, math.MaxUint64-10) },
			"the program headers at 0xfffffffffffffff5: 224 bytes, but the file ends at 0xa40",
		},
		"programs across sections": {
			func(b *image) { b.put64(32, 0x200) },
			`the program headers at 0x200: crossed with section ".dynstr", which ends at 0x22c`,
		},

		// The section headers.
		"section entry size": {func(b *image) { b.put16(58, 40) }, "the section headers at 0x600: 40 bytes each, not 64"},
		"headers beyond": {
			func(b *image) { b.put64(40, 0xa40) },
			"the section headers at 0xa40: 64 bytes, but the file ends at 0xa40",
		},
		"headers overflow": {
			func(b *image) { b.put64(40, math.MaxUint64-63) },
			"the section headers at 0xffffffffffffffc0: 64 bytes, but the file ends at 0xa40",
		},
		"headers past the end": {
			func(b *image) { b.put16(60, 18) },
			"the section headers at 0x640: 1088 bytes, but the file ends at 0xa40",
		},
		"headers in the header": {
			func(b *image) { b.put64(40, 32); b.put16(60, 1); b.put16(62, 0) },
			"the section headers at 0x20: crossed with the ELF header, which ends at 0x40",
		},
		"no headers": {func(b *image) { b.put16(60, 0) }, "the section headers at 0x600: 0 of them, 1 to 262144 can be read"},
		"too many headers": {func(b *image) {
			b.put16(60, 0)
			b.put64(b.first()+32, 1<<18+1)
		}, "the section headers at 0x600: 262145 of them, 1 to 262144 can be read"},
		"absurdly many": {func(b *image) {
			b.put16(60, 0)
			b.put64(b.first()+32, 1<<63)
		}, "the section headers at 0x600: 9223372036854775808 of them, 1 to 262144 can be read"},

		// Their names.
		"names of none": {func(b *image) { b.put16(62, 17) }, "the ELF header at 0x3e: section names are in section 17 of 17"},
		"names no strings": {
			func(b *image) { b.put16(62, 9) },
			"the section names at 0x320: section 9 is no string table but SHT_PROGBITS",
		},
		"names beyond": {
			func(b *image) { b.put64(b.section(".shstrtab")+32, 1<<50) },
			"the section names at 0x577: 1125899906842624 bytes, but the file ends at 0xa40",
		},
		"name out of range": {
			func(b *image) { b.put32(b.section(".text"), 5000) },
			"the section names at 0x577: section 9: its name is at 5000 of 137 bytes of strings",
		},
		"name without end": {
			func(b *image) { b.put64(b.section(".shstrtab")+32, 136) },
			"the section names at 0x577: section 15: its name at 128 does not end",
		},
		"names across": {
			func(b *image) { b.put64(b.section(".shstrtab")+32, 200) },
			`the section headers at 0x600: crossed with section ".shstrtab", which ends at 0x63f`,
		},
		"hostile name": {func(b *image) {
			b.data[b.in(".shstrtab", 0)+int(le.Uint32(b.data[b.section(".text"):]))] = 27
			b.put64(b.first()+64*9+32, 1<<40)
		}, `section "\x1btext" at 0x320: 1099511627776 bytes, but the file ends at 0xa40`},
		"sections no name": {func(b *image) {
			b.put64(b.section(".text")+32, 1<<40)
			b.put16(62, 0)
		}, `section 9 at 0x320: 1099511627776 bytes, but the file ends at 0xa40`},
		"name very long": {func(b *image) {
			b.put32(b.section(".text"), 0)
			long(b, ".shstrtab")
		}, "the section names at 0xa40: section 0: its name is longer than 4096 bytes"},
		"section beyond": {
			func(b *image) { b.put64(b.section(".comment")+32, 5000) },
			`section ".comment" at 0x550: 5000 bytes, but the file ends at 0xa40`,
		},
		"section overflow": {
			func(b *image) { b.put64(b.section(".comment")+32, math.MaxUint64) },
			`section ".comment" at 0x550: 18446744073709551615 bytes, but the file ends at 0xa40`,
		},
		"section far": {
			func(b *image) { b.put64(b.section(".comment")+24, math.MaxUint64-4) },
			`section ".comment" at 0xfffffffffffffffb: 39 bytes, but the file ends at 0xa40`,
		},
		"crossed sections": {
			func(b *image) { b.put64(b.section(".text")+32, 0x80) },
			`section ".rodata" at 0x378: crossed with section ".text", which ends at 0x3a0`,
		},
		"same section twice": {
			func(b *image) { b.put64(b.section(".plt")+24, 0x320) },
			`section ".text" at 0x320: crossed with section ".plt", which ends at 0x360`,
		},
		"nested section": {func(b *image) {
			b.put64(b.section(".comment")+24, 0x340)
			b.put64(b.section(".comment")+32, 1)
		}, `section ".comment" at 0x340: crossed with section ".text", which ends at 0x375`},
		"across the header": {
			func(b *image) { b.put64(b.section(".comment")+24, 63) },
			`section ".comment" at 0x3f: crossed with the ELF header, which ends at 0x40`,
		},
		"across the headers": {
			func(b *image) { b.put64(b.section(".comment")+24, 0x700) },
			`section ".comment" at 0x700: crossed with the section headers, which ends at 0xa40`,
		},

		// The tables of the loader.
		"two dynamic tables": {func(b *image) {
			b.put32(b.section(".comment")+4, 6)
			b.put64(b.section(".comment")+32, 32)
			b.put64(b.section(".comment")+56, 16)
		}, `section ".comment" at 0x550: a second SHT_DYNAMIC in addition to section ".dynamic"`},
		"two symbol tables": {func(b *image) {
			b.put32(b.section(".comment")+4, 11)
			b.put64(b.section(".comment")+32, 24)
			b.put64(b.section(".comment")+56, 24)
		}, `section ".comment" at 0x550: a second SHT_DYNSYM in addition to section ".dynsym"`},
		"dynamic entries": {
			func(b *image) { b.put64(b.section(".dynamic")+56, 8) },
			`section ".dynamic" at 0x388: 400 bytes in entries of 8, not of 16`,
		},
		"dynamic size": {
			func(b *image) { b.put64(b.section(".dynamic")+32, 399) },
			`section ".dynamic" at 0x388: 399 bytes in entries of 16, not of 16`,
		},
		"symbol entries": {
			func(b *image) { b.put64(b.section(".dynsym")+56, 16) },
			`section ".dynsym" at 0x148: 120 bytes in entries of 16, not of 24`,
		},
		"relocation entries": {
			func(b *image) { b.put64(b.section(".rela.plt")+56, 0) },
			`section ".rela.plt" at 0x290: 72 bytes in entries of 0, not of 24`,
		},
		"strings of none": {
			func(b *image) { b.put32(b.section(".dynamic")+40, 99) },
			`section ".dynamic" at 0x388: its strings are in section 99 of 17`,
		},
		"strings no strings": {
			func(b *image) { b.put32(b.section(".dynamic")+40, 0) },
			`section ".dynamic" at 0x388: its strings are in section 0, which holds none`,
		},
		"strings of others": {
			func(b *image) { b.put32(b.section(".dynsym")+40, 16) },
			`section ".dynsym" at 0x148: its strings are in section ".shstrtab", but those of other sections are in section ".dynstr"`,
		},
		"strings without end": {
			func(b *image) { b.data[b.in(".dynstr", 0x6b)] = 'x' },
			`section ".dynstr" at 0x22b: does not end with a zero byte`,
		},
		"library out of range": {
			func(b *image) { b.put64(b.tag(delf.DT_NEEDED)+8, 0x6c) },
			`section ".dynamic" at 0x388: its name is at 108 of 108 bytes of strings`,
		},
		"rpath out of range": {
			func(b *image) { b.put64(b.tag(delf.DT_RUNPATH)+8, math.MaxUint64) },
			`section ".dynamic" at 0x388: its name is at 18446744073709551615 of 108 bytes of strings`,
		},
		"library very long": {func(b *image) {
			b.put64(b.tag(delf.DT_STRTAB)+8, 0xa40)
			long(b, ".dynstr")
		}, `section ".dynamic" at 0x388: its name is longer than 4096 bytes`},
		"symbol out of range": {
			func(b *image) { b.put32(b.in(".dynsym", 2*24), 0x6c) },
			`section ".dynsym" at 0x178: its name is at 108 of 108 bytes of strings`,
		},
		"other dynamic table": {
			func(b *image) { b.put64(b.segment(delf.PT_DYNAMIC)+8, 0x550) },
			`the dynamic segment at 0x550: is not section ".dynamic" at 0x388`,
		},
		"hidden dynamic table": {func(b *image) { b.put32(b.section(".dynamic")+4, 1) }, `the dynamic segment at 0x388: is no section`},
		"dynamic not loaded": {
			func(b *image) { b.put32(b.segment(delf.PT_DYNAMIC), 4) },
			`section ".dynamic" at 0x388: is no segment, so the loader does not see it`,
		},
		"other strings": {
			func(b *image) { b.put64(b.tag(delf.DT_STRTAB)+8, 0x1c1) },
			`section ".dynamic" at 0x388: DT_STRTAB is at address 0x1c1, section ".dynstr" at 0x1c0`,
		},
		"other symbols": {
			func(b *image) { b.put64(b.tag(delf.DT_SYMTAB)+8, 0) },
			`section ".dynamic" at 0x388: DT_SYMTAB is at address 0x0, section ".dynsym" at 0x148`,
		},
		"hidden versions": {
			func(b *image) { b.put32(b.section(".gnu.version_r")+4, 1) },
			`section ".dynamic" at 0x388: DT_VERNEED is at address 0x238, where no section is`,
		},

		// The list of versions: libm at 0, its version at 16, libc at 32, its version at 48.
		"record version": {
			func(b *image) { b.put16(b.in(".gnu.version_r", 0), 2) },
			`section ".gnu.version_r" at 0x238: is a record of version 2, 1 is known`,
		},
		"next library beyond": {
			func(b *image) { b.put32(b.in(".gnu.version_r", 12), 49) },
			`section ".gnu.version_r" at 0x269: a record begins here, the section has 64 bytes`,
		},
		"next library far": {
			func(b *image) { b.put32(b.in(".gnu.version_r", 12), math.MaxUint32) },
			`section ".gnu.version_r" at 0x100000237: a record begins here, the section has 64 bytes`,
		},
		"versions beyond": {
			func(b *image) { b.put32(b.in(".gnu.version_r", 8), 60) },
			`section ".gnu.version_r" at 0x274: a record begins here, the section has 64 bytes`,
		},
		"more versions said": {
			func(b *image) { b.put16(b.in(".gnu.version_r", 2), 2) },
			`section ".gnu.version_r" at 0x248: is version 1 of 2, the next is 0 bytes further`,
		},
		"fewer versions said": {
			func(b *image) { b.put32(b.in(".gnu.version_r", 28), 16) },
			`section ".gnu.version_r" at 0x248: is version 1 of 1, the next is 16 bytes further`,
		},
		"versions run on": {
			func(b *image) { runOn(b) },
			`section ".gnu.version_r" at 0x278: a record begins here, the section has 64 bytes`,
		},
		"versions interlocked": {
			func(b *image) { interlock(b) },
			`section ".gnu.version_r" at 0x1220: more records than there is room for: they run in circles`,
		},
		"library name": {
			func(b *image) { b.put32(b.in(".gnu.version_r", 4), 108) },
			`section ".gnu.version_r" at 0x238: its name is at 108 of 108 bytes of strings`,
		},
		"version name": {
			func(b *image) { b.put32(b.in(".gnu.version_r", 24), 1<<31) },
			`section ".gnu.version_r" at 0x238: its name is at 2147483648 of 108 bytes of strings`,
		},
	}
}

// long moves a section of strings to the end and fills it with one of 5000 bytes.
func long(b *image, section string) {
	at := b.section(section)
	b.put64(at+24, uint64(len(b.data)))
	b.put64(at+32, 5001)
	b.put64(at+16, uint64(len(b.data)))
	b.data = append(b.data, append(bytes.Repeat([]byte("x"), 5000), 0)...)
}

// runOn has the last library claim many versions, each 16 bytes further.
func runOn(b *image) {
	b.put16(b.in(".gnu.version_r", 34), 0xffff)
	b.put32(b.in(".gnu.version_r", 60), 16)
}

// interlock gives each of 64 libraries the same list of 64 versions.
func interlock(b *image) {
	at := b.section(".gnu.version_r")
	start := len(b.data)
	b.put64(at+24, uint64(start))
	b.put64(at+32, 128*16)
	b.data = append(b.data, make([]byte, 128*16)...)
	for i := range 64 {
		need, aux := start+16*i, start+16*(64+i)
		b.put16(need, 1)
		b.put16(need+2, 64)
		b.put32(need+8, uint32(16*(64-i)))
		b.put32(need+12, 16)
		if i < 63 {
			b.put32(aux+12, 16)
		}
	}
}

func TestReadRefuses(t *testing.T) {
	for name, c := range damages() {
		o, err := read(patched(t, c.change))
		var format *elf.FormatError
		if !errors.As(err, &format) || err.Error() != c.want || o != nil {
			t.Errorf("%s: %+v, %v\nwant %s", name, o, err, c.want)
		}
	}
}

// What an object claims costs nothing before it is there.
func TestMemoryOfClaims(t *testing.T) {
	short := fixture(t, "tiny.so")
	claim := func(change func(*image)) []byte { return patched(t, change) }
	for name, c := range map[string]struct {
		data []byte
		size int64
		want string
	}{
		"a stream of 2^62 bytes": {short, 1 << 62, "object ends after 2624 of"},
		"262144 section headers": {claim(func(b *image) { b.put16(60, 0); b.put64(b.first()+32, 1<<18) }), 1 << 40, "object ends after 2624 of"},
		"60 MB of strings": {claim(func(b *image) {
			at := b.section(".dynstr")
			b.put64(at+24, 1<<20)
			b.put64(at+32, 60<<20)
		}), 1 << 40, "object ends after 2624 of"},
		"65 MB of strings": {claim(func(b *image) {
			at := b.section(".dynstr")
			b.put64(at+24, 1<<20)
			b.put64(at+32, 65<<20)
		}), 1 << 40, `section ".dynstr" at 0x100000: needs 68157440 bytes of memory, `},
		"2 MB of dynamic table": {claim(func(b *image) {
			at := b.section(".dynamic")
			b.put64(at+24, 1<<20)
			b.put64(at+32, 2<<20)
		}), 1 << 40, `section ".dynamic" at 0x100000: 2097152 bytes, more than 1048576`},
		"6 GB of symbols": {claim(func(b *image) {
			at := b.section(".dynsym")
			b.put64(at+24, 1<<20)
			b.put64(at+32, 24<<28)
		}), 1 << 40, `section ".dynsym" at 0x100000: needs 2147483648 bytes of memory, `},
		"65 MB of section names": {claim(func(b *image) {
			at := b.section(".shstrtab")
			b.put64(at+24, 1<<20)
			b.put64(at+32, 65<<20)
		}), 1 << 40, `the section names at 0x100000: needs 68157440 bytes of memory, `},
	} {
		var err error
		used := allocated(func() { _, err = elf.Read(from(c.data), c.size, nil) })
		if err == nil || !strings.Contains(err.Error(), c.want) || used > 3<<20 {
			t.Errorf("%s: %d bytes of memory, %v; want %s", name, used, err, c.want)
		}
	}
}

// Lists that name the longest strings again and again are cut off.
func TestMemoryOfNames(t *testing.T) {
	b := newImage(t, "tiny.so")
	long := bytes.Repeat([]byte("x"), 4000)
	at := b.section(".dynstr")
	b.put64(at+24, uint64(len(b.data)))
	b.put64(at+32, 4001)
	b.data = append(append(b.data, long...), 0)
	at = b.section(".dynamic")
	dynamic := slices.Clone(b.data[b.in(".dynamic", 0):][:b.get64(at+32)])
	var needs []byte
	for range 10000 {
		needs = append(needs, dynamic[:8]...) // DT_NEEDED
		needs = append(needs, make([]byte, 8)...)
	}
	for _, seg := range []int{at + 24, b.segment(delf.PT_DYNAMIC) + 8} {
		b.put64(seg, uint64(len(b.data)))
		b.put64(seg+8+8*(map[bool]int{true: 0, false: 2}[seg == at+24]), uint64(len(needs)))
	}
	b.data = append(b.data, needs...)
	want := `its names take more than 4194304 bytes of memory`
	var err error
	used := allocated(func() { _, err = read(b.data) })
	if err == nil || !strings.Contains(err.Error(), want) || used > 16<<20 {
		t.Errorf("%d bytes of memory, %v; want %s", used, err, want)
	}
}

// FuzzRead holds what is read of any bytes against itself: sections in order
// and as stored, the same answer from a stream that trickles.
func FuzzRead(f *testing.F) {
	f.Add(fixture(f, "tiny.so"))
	f.Add(fixture(f, "debug.so"))
	f.Add(headless(f))
	f.Add(patched(f, interlock))
	f.Add(patched(f, func(b *image) { b.data[4] = 1 }))
	f.Fuzz(func(t *testing.T, data []byte) {
		var list []*seen
		o, err := elf.Read(from(data), int64(len(data)), note(&list))
		again, errAgain := elf.Read(func() (io.ReadCloser, error) {
			return io.NopCloser(&trickle{data: data}), nil
		}, int64(len(data)), nil)
		compareReads(t, o, again, err, errAgain)
		if err != nil {
			return
		}
		checkSeen(t, data, list)
		o.Floor("GLIBC_")
	})
}

// trickle gives 1, 2, 3 … bytes at a time.
type trickle struct {
	data []byte
	step int
}

func (r *trickle) Read(p []byte) (int, error) {
	if len(r.data) == 0 {
		return 0, io.EOF
	}
	r.step++
	n := copy(p[:min(r.step, len(p))], r.data)
	r.data = r.data[n:]
	return n, nil
}

func compareReads(t *testing.T, a, b *elf.Object, errA, errB error) {
	t.Helper()
	if (errA == nil) != (errB == nil) || errA != nil && errA.Error() != errB.Error() {
		t.Fatalf("%v\nfrom a stream that trickles %v", errA, errB)
	}
	if !reflect.DeepEqual(a, b) {
		t.Fatalf("%+v\nfrom a stream that trickles %+v", a, b)
	}
	var format *elf.FormatError
	if errA != nil && !errors.As(errA, &format) {
		t.Fatalf("%v is no FormatError, though the stream is whole", errA)
	}
}
