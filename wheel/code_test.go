package wheel_test

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/wheel"
)

// sectioned is a shared object of n sections with that name and flags, each of
// size zeros.
func sectioned(name string, flags elf.SectionFlag, n, size int) string {
	const header, entry = 64, 64
	le := binary.LittleEndian
	names := "\x00" + name + "\x00"
	b := make([]byte, header, header+n*(size+entry)+2*entry+len(names))
	copy(b, elf.ELFMAG)
	b[elf.EI_CLASS], b[elf.EI_DATA], b[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)
	le.PutUint16(b[16:], uint16(elf.ET_DYN))
	le.PutUint16(b[18:], uint16(elf.EM_X86_64))
	b = append(b, make([]byte, n*size)...)
	namesAt := len(b)
	b = append(b, names...)
	le.PutUint64(b[40:], uint64(len(b)))
	le.PutUint16(b[58:], entry)
	section := func(name uint32, kind elf.SectionType, flags elf.SectionFlag, off, size int) {
		s := make([]byte, entry)
		le.PutUint32(s, name)
		le.PutUint32(s[4:], uint32(kind))
		le.PutUint64(s[8:], uint64(flags))
		le.PutUint64(s[24:], uint64(off))
		le.PutUint64(s[32:], uint64(size))
		b = append(b, s...)
	}
	section(0, elf.SHT_NULL, 0, 0, n+2) // more of them than the header has room for
	le.PutUint32(b[len(b)-entry+40:], 1)
	le.PutUint16(b[62:], uint16(elf.SHN_XINDEX))
	section(0, elf.SHT_STRTAB, 0, namesAt, len(names))
	for i := range n {
		section(1, elf.SHT_PROGBITS, flags, header+i*size, size)
	}
	return string(b)
}

// Neither memory nor goroutines grow with the number of sections.
func TestManySections(t *testing.T) {
	for name, c := range map[string]struct{ object, want string }{
		"code":                 {sectioned(".text", elf.SHF_ALLOC|elf.SHF_EXECINSTR, 200_000, 1), ""},
		"device code":          {sectioned(".nv_fatbin", elf.SHF_ALLOC, 4096, 8), ""},
		"too much device code": {sectioned(".nv_fatbin", elf.SHF_ALLOC, 200_000, 8), "more than 4096 sections with device code"},
	} {
		path := filepath.Join(t.TempDir(), "pkg-1.0-cp311-cp311-linux_x86_64.whl")
		wheeltest.Write(t, path, map[string]string{
			"pkg-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: pkg\nVersion: 1.0\n",
			"pkg-1.0.dist-info/WHEEL":    "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: cp311-cp311-linux_x86_64\n",
			"pkg/many.so":                c.object,
		})
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		goroutines := runtime.NumGoroutine()
		found, err := wheel.Inspect(t.Context(), path)
		runtime.ReadMemStats(&after)
		if c.want == "" && (err != nil || len(found.Extensions) != 1) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %+v, %v", name, found, err)
		}
		// 4 KiB for each section would be 780 MiB. With the race detector, pools keep less, and it is some 430.
		if used := after.TotalAlloc - before.TotalAlloc; used > 600<<20 {
			t.Errorf("%s: %d MiB were allocated, want at most 600", name, used>>20)
		}
		// One that has given its result may still be on its way out.
		left := runtime.NumGoroutine()
		for end := time.Now().Add(time.Minute); left > goroutines && time.Now().Before(end); left = runtime.NumGoroutine() {
			time.Sleep(time.Millisecond)
		}
		if left > goroutines {
			t.Errorf("%s: %d goroutines are left of %d", name, left, goroutines)
		}
	}
}

// needing is a shared object that needs a library n times.
func needing(library string, n int) string {
	const header, entry = 64, 56
	le := binary.LittleEndian
	library = "\x00" + library + "\x00"
	at := uint64(header + 2*entry)
	dynamic := make([]byte, 0, 16*(n+3))
	put := func(tag elf.DynTag, value uint64) {
		dynamic = le.AppendUint64(le.AppendUint64(dynamic, uint64(tag)), value)
	}
	for range n {
		put(elf.DT_NEEDED, 1)
	}
	put(elf.DT_STRTAB, at+uint64(cap(dynamic)))
	put(elf.DT_STRSZ, uint64(len(library)))
	put(elf.DT_NULL, 0)
	b := make([]byte, at)
	copy(b, elf.ELFMAG)
	b[elf.EI_CLASS], b[elf.EI_DATA], b[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)
	le.PutUint16(b[16:], uint16(elf.ET_DYN))
	le.PutUint16(b[18:], uint16(elf.EM_X86_64))
	le.PutUint64(b[32:], header)
	le.PutUint16(b[54:], entry)
	le.PutUint16(b[56:], 2)
	for i, p := range []struct {
		kind      elf.ProgType
		off, size uint64
	}{{elf.PT_LOAD, 0, at + uint64(len(dynamic)+len(library))}, {elf.PT_DYNAMIC, at, uint64(len(dynamic))}} {
		h := b[header+i*entry:]
		le.PutUint32(h, uint32(p.kind))
		le.PutUint64(h[8:], p.off)
		le.PutUint64(h[16:], p.off) // loaded where it lies
		le.PutUint64(h[32:], p.size)
	}
	le.PutUint64(b[40:], at+uint64(len(dynamic)+len(library)))
	le.PutUint16(b[58:], 64)
	le.PutUint16(b[60:], 3)
	sections := make([]byte, 3*64)
	for i, s := range []struct {
		kind             elf.SectionType
		at, size         uint64
		strings, entries uint64
	}{{elf.SHT_STRTAB, at + uint64(len(dynamic)), uint64(len(library)), 0, 0}, {elf.SHT_DYNAMIC, at, uint64(len(dynamic)), 1, 16}} {
		h := sections[64*(i+1):]
		le.PutUint32(h[4:], uint32(s.kind))
		le.PutUint64(h[16:], s.at)
		le.PutUint64(h[24:], s.at)
		le.PutUint64(h[32:], s.size)
		le.PutUint32(h[40:], uint32(s.strings))
		le.PutUint64(h[56:], s.entries)
	}
	return string(b) + string(dynamic) + library + string(sections)
}

// What all files of a wheel name is bounded, not only what each does.
func TestNamesAreBounded(t *testing.T) {
	for n, want := range map[int]string{1: "", 20: "take more than 67108864 bytes"} {
		files := map[string]string{
			"pkg-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: pkg\nVersion: 1.0\n",
			"pkg-1.0.dist-info/WHEEL":    "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: cp311-cp311-linux_x86_64\n",
		}
		for i := range n {
			files[fmt.Sprintf("pkg/%d.so", i)] = needing(strings.Repeat("x", 4000), 1000)
		}
		path := filepath.Join(t.TempDir(), "pkg-1.0-cp311-cp311-linux_x86_64.whl")
		wheeltest.Write(t, path, files)
		c, err := wheel.Inspect(t.Context(), path)
		if want == "" && (err != nil || len(c.Extensions) != n || len(c.Extensions[0].Needs) != 1000) {
			t.Errorf("%d files: %v, %d extensions", n, err, len(c.Extensions))
		}
		if want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%d files: %v, want %q", n, err, want)
		}
	}
}

// Code is read whatever its section is called.
func TestCodeInSectionOfDeviceCode(t *testing.T) {
	path := wheeltest.Compiled(t, t.TempDir(), wheeltest.Options{Ops: []wheeltest.Op{{
		Name: "cpu_adam", Code: "ret\n.section .nv_fatbin,\"ax\",@progbits\n.balign 8\n.long 0xba55ed50\n.short 1, 16\n.quad 128\n" +
			".short 2, 0x101\n.long 64\n.quad 64\n.long 0, 0\n.short 0, 1\n.long 80\n.long 0, 0\n.quad 0x11, 0, 0\n" +
			"vpaddd %zmm1, %zmm2, %zmm3\nret\n.balign 64, 0x90\n.fill 64\n.text",
	}}})
	e := inspect(t, path).Extensions[0]
	if e.CPU.Max != wheel.CPUv4 || !slices.Equal(e.SASS, []string{"8.0"}) {
		t.Errorf("%+v", e)
	}
}
