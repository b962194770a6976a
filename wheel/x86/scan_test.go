package x86

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// scan reads code that comes in pieces.
func scan(pieces ...[]byte) Usage {
	var s Scanner
	for _, p := range pieces {
		s.Write(p)
	}
	s.Close()
	return s.Usage()
}

func TestScanner(t *testing.T) {
	var s Scanner
	s.Write(code(t, "90 0f a2 66 0f 38 dc c1 c5 f8")) // nop, cpuid, aesenc, half a vzeroupper
	s.Write(code(t, "77 06 c3 62 f1"))                // its end, an invalid byte, ret, an invalid byte, int1
	s.Close()
	s.Write(code(t, "c4 e2 79 dc c1 66 0f 38 dc c1 62 f1 7c 48 58 c0 0f 01 d0"))
	s.Close()
	want := Usage{
		Levels:  [Levels]int64{7, 0, 2, 1},
		Beyond:  []string{"aes"},
		CPUID:   true,
		XGETBV:  true,
		Invalid: 2,
	}
	if got := s.Usage(); !reflect.DeepEqual(got, want) || got.Max() != V4 {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := scan(); !reflect.DeepEqual(got, Usage{}) || got.Max() != V1 {
		t.Errorf("nothing: %+v", got)
	}
}

// What is cut off at the end of a section is read byte by byte.
func TestScannerEnd(t *testing.T) {
	got := scan(code(t, "48 b8 90 90 c5 f8 77 90"))
	want := Usage{Levels: [Levels]int64{2}, Invalid: 1} // mov of 32 bits, ja
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// Behind a table in the code the sweep finds the instructions again.
func TestScannerTables(t *testing.T) {
	table := []byte(strings.Repeat("\x06\x07\xff\xff\x62\xc4\x0e\x48", 100))
	block := slices.Concat(code(t, "55 48 89 e5 c5 f8 58 c1 5d c3"), table, bytes.Repeat([]byte{0x90}, 16))
	u := scan(bytes.Repeat(block, 50))
	if u.Levels[V3] < 50 || u.Invalid == 0 {
		t.Errorf("%+v", u)
	}
}

// Between functions some linkers leave zeros, an odd number too.
func TestScannerZeros(t *testing.T) {
	f := code(t, "c5 f8 58 c1 c3")
	for n := range 16 {
		if n == 1 {
			continue // a lone zero is read as the beginning of an instruction
		}
		got := scan(slices.Concat(f, make([]byte, n), f, make([]byte, n)))
		if got.Levels[V1] != 2 || got.Levels[V3] != 2 || got.Invalid != 0 {
			t.Errorf("%d zeros: %+v", n, got)
		}
	}
	if got := scan(code(t, "00 08 90")); got.Levels[V1] != 2 { // addition to a byte
		t.Errorf("%+v", got)
	}
}

func TestScannerAllocatesNothing(t *testing.T) {
	piece := bytes.Repeat(code(t, "48 89 c0 66 0f 38 dc c1 c5 f8 77"), 1000)
	var s Scanner
	s.Write(piece[:len(piece)-1])
	if n := testing.AllocsPerRun(100, func() { s.Write(piece) }); n > 0 {
		t.Errorf("%v allocations a write", n)
	}
}

// However the code is cut, it is the same code.
func FuzzScanner(f *testing.F) {
	f.Add(code(f, "48b801020304050607086690c5f877ffff62f17c485884"), uint16(3), uint16(11))
	f.Add(bytes.Repeat([]byte{0x66}, 40), uint16(15), uint16(16))
	f.Add([]byte{0x0f}, uint16(0), uint16(1))
	f.Fuzz(func(t *testing.T, b []byte, at, every uint16) {
		whole := scan(b)
		var counted int64
		for _, l := range whole.Levels {
			counted += l
		}
		if counted+whole.Invalid > int64(len(b)) || len(bytes.Trim(b, "\x00")) > 0 && counted+whole.Invalid == 0 {
			t.Fatalf("%d instructions and %d invalid bytes in %d bytes", counted, whole.Invalid, len(b))
		}
		cut := min(int(at), len(b))
		pieces := slices.Collect(slices.Chunk(b, int(every)%32+1))
		for _, got := range []Usage{scan(b[:cut], b[cut:]), scan(pieces...)} {
			if !reflect.DeepEqual(got, whole) {
				t.Fatalf("cut: %+v, whole: %+v", got, whole)
			}
		}
	})
}

func BenchmarkScanner(b *testing.B) {
	dir := b.TempDir()
	for _, march := range []string{"x86-64", "x86-64-v4"} {
		file := filepath.Join(dir, march)
		run(b, "gcc", "-O3", "-march="+march, "-ffast-math", "-fPIC", "-nostdlib", "-c", "-o", file+".o", "testdata/loops.c")
		run(b, "objcopy", "-O", "binary", "-j", ".text", file+".o", file)
		text, err := os.ReadFile(file)
		if err != nil {
			b.Fatal(err)
		}
		text = bytes.Repeat(text, 8<<20/len(text))
		b.Run(march, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				scan(text)
			}
		})
	}
}
