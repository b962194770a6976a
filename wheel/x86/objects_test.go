package x86

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/needs"
)

// sweep is one code section as the package reads it, and how objdump's reading
// compares with it.
type sweep struct {
	base   uint64
	code   []byte
	starts []bool // by offset: an instruction of the sweep begins here
	usage  Usage

	padding int // zeros between instructions

	instructions int // objdump's
	bad          int // where objdump found no instruction
	astray       int // objdump's instructions that begin within one of the sweep's
	levels       [Levels]int64

	functions int // those of .eh_frame
	missed    int // those that begin within an instruction of the sweep
}

// sweeps reads all code sections of an ELF file.
func sweeps(t *testing.T, file string) map[string]*sweep {
	t.Helper()
	f, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := map[string]*sweep{}
	for _, section := range f.Sections {
		if section.Flags&elf.SHF_EXECINSTR == 0 || section.Type != elf.SHT_PROGBITS {
			continue
		}
		code, err := section.Data()
		if err != nil {
			t.Fatal(err)
		}
		if out[section.Name] != nil {
			t.Fatalf("%s: two sections are called %s", file, section.Name)
		}
		s := &sweep{base: section.Addr, code: code, starts: make([]bool, len(code))}
		padding := false
		for i := 0; i < len(code); {
			padding = code[i] == 0 && (padding || i+1 < len(code) && code[i+1] == 0)
			if padding {
				s.padding++
				i++
				continue
			}
			s.starts[i] = true
			in, err := decodeOne(code[i:])
			if err != nil {
				in.Len = 1
			}
			i += in.Len
		}
		var scanner Scanner
		scanner.Write(code)
		scanner.Close()
		s.usage = scanner.Usage()
		out[section.Name] = s
	}
	return out
}

// compareObject holds every instruction that objdump finds in an ELF file against
// Decode; the sweep of each section against objdump's; and against the functions
// that .eh_frame lists, each of which must begin with an instruction of the sweep.
// It returns the sections.
//
// The sweeps are the same where a section holds nothing but code. Where one holds
// tables too, which objdump calls (bad) in part, they may differ in and right
// behind these: objdump starts anew at every symbol and goes on behind the
// prefixes of what it calls bad, while the Scanner knows no symbols and goes on
// with the next byte. And behind an odd number of zeros objdump goes astray where
// there is no symbol, which the Scanner does behind a lone one.
func compareObject(t *testing.T, o oracle, file string) map[string]*sweep {
	t.Helper()
	sections := sweeps(t, file)
	objdump(t, func(name string, l line) {
		s := sections[name]
		if s == nil {
			t.Fatalf("%s: no section %s", file, name)
		}
		if len(bytes.Trim(l.code, "\x00")) == 0 {
			return // padding
		}
		if l.bad() {
			s.bad++
			return
		}
		s.instructions++
		at := l.address - s.base
		if !s.starts[at] {
			s.astray++
		}
		in, err := decodeOne(s.code[at:])
		want := o.need(l)
		s.levels[want.Level]++
		if err != nil || in.Len != len(l.code) || in.Need != want {
			t.Errorf("%s: %s, %x: %x %s: %+v, %v; want %d %+v", file, name, l.address, l.code, l.text, in, err, len(l.code), want)
		}
	}, "-d", file)
	functionStarts(t, sections, file)
	for name, s := range sections {
		s.check(t, file+": "+name)
	}
	return sections
}

// functionStarts counts the functions of .eh_frame, which objdump prints as
// "… FDE cie=00000000 pc=0000000000026020..0000000000026390". That of a signal
// trampoline (mov $15,%rax; syscall) begins a byte early, for unwinders.
func functionStarts(t *testing.T, sections map[string]*sweep, file string) {
	t.Helper()
	for l := range strings.Lines(run(t, "objdump", "--dwarf=frames,no-follow-links", file)) {
		_, pc, found := strings.Cut(l, " pc=")
		from, _, _ := strings.Cut(pc, "..")
		address, err := strconv.ParseUint(from, 16, 64)
		if !found || err != nil {
			continue
		}
		for _, s := range sections {
			if address < s.base || address-s.base >= uint64(len(s.code)) {
				continue
			}
			at := address - s.base
			s.functions++
			if !s.starts[at] && !bytes.HasPrefix(s.code[at+1:], []byte{0x48, 0xc7, 0xc0, 15, 0, 0, 0}) {
				s.missed++
			}
		}
	}
}

func (s *sweep) check(t *testing.T, name string) {
	t.Helper()
	if s.instructions == 0 && len(s.code) > 0 {
		t.Errorf("%s: objdump shows nothing", name)
	}
	summary := fmt.Sprintf("%s: %s, %d instructions, %d bad; %d begin within an instruction of the sweep, and %d of %d functions",
		name, s.usage.Max(), s.instructions, s.bad, s.astray, s.missed, s.functions)
	t.Log(summary)
	if s.bad > 0 || s.padding > 0 {
		return
	}
	if s.astray > 0 || s.missed > 0 || s.usage.Invalid > 0 {
		t.Error(summary)
	}
	for level, n := range s.levels {
		if s.usage.Levels[level] != n {
			t.Errorf("%s: %d instructions of %s, objdump has %d", name, s.usage.Levels[level], Level(level), n)
		}
	}
}

// TestInstructions reads testdata/instructions.s, whose sections say what each
// instruction needs and where the assembler refuses what needs more.
func TestInstructions(t *testing.T) {
	file := filepath.Join(t.TempDir(), "instructions.o")
	run(t, "as", "-W", "-o", file, "testdata/instructions.s")
	total := 0
	for name, s := range compareObject(t, oracle{}, file) {
		total += s.instructions
		if name == ".text" && len(s.code) == 0 {
			continue
		}
		want := needOfSection(name)
		for i := 0; i < len(s.code); {
			in, err := decodeOne(s.code[i:])
			in.SSE, in.General = false, false // the sections do not tell these
			if err != nil || in.Need != want {
				t.Fatalf("%s: %x: %+v, %v", name, s.code[i:], in, err)
			}
			i += in.Len
		}
	}
	if total < 2600 {
		t.Errorf("only %d instructions", total)
	}
}

// needOfSection reads "v3.aes".
func needOfSection(name string) Need {
	level, feature, _ := strings.Cut(name, ".")
	need := Need{Level: Level(level[1] - '1')}
	switch feature {
	case "cpuid":
		need.CPUID = true
	case "xgetbv":
		need.XGETBV = true
	default:
		need.Feature = feature
	}
	return need
}

// TestCompiled compares what gcc makes of C and C++ for each level.
func TestCompiled(t *testing.T) {
	needs.Time(t)
	dir := t.TempDir()
	compile := func(cc, source string, flags ...string) string {
		file := filepath.Join(dir, strings.Join(append(flags, source), "")+".so")
		run(t, cc, append(flags, "-shared", "-fPIC", "-nostdlib", "-o", file, "testdata/"+source)...)
		return file
	}
	tool(t, "gcc")
	o := oracle{}
	for level := V1; level <= V4; level++ {
		optimize := [Levels]string{"-O2", "-O3", "-O2", "-O3"}[level]
		file := compile("gcc", "loops.c", "-march="+level.String(), optimize, "-ffast-math")
		u := compareObject(t, o, file)[".text"].usage
		if u.Max() != level || len(u.Beyond) > 0 || u.CPUID || (u.SSE == 0) != (level >= V3) {
			t.Errorf("%s %s: %+v", level, optimize, u)
		}
	}
	compareObject(t, o, compile("gcc", "loops.c", "-march=native", "-O3"))
	u := compareObject(t, o, compile("g++", "shapes.cpp", "-march=x86-64", "-O2"))[".text"].usage
	if u.Max() != V1 || len(u.Beyond) > 0 || u.CPUID {
		t.Errorf("shapes: %+v", u)
	}
	u = compareObject(t, o, compile("gcc", "intrinsics.c", "-march=x86-64", "-O2"))[".text"].usage
	if u.Max() != V4 || !u.CPUID || !u.XGETBV || strings.Join(u.Beyond, " ") != allIntrinsics {
		t.Errorf("intrinsics: %q", u.Beyond)
	}
}

const allIntrinsics = "aes amx_bf16 amx_int8 amx_tile avx512_bf16 avx512_bitalg avx512_fp16 avx512_vbmi2 " +
	"avx512_vnni avx512_vpopcntdq avx512ifma avx512vbmi avx_vnni clflushopt clwb fma4 fsgsbase gfni movdir64b " +
	"movdiri pclmulqdq pku rdpid rdrand rdseed rtm serialize sha_ni sse4a tbm vaes vpclmulqdq waitpkg xop xsavec"

// TestObjects compares shared objects of the machine, and whatever others
// DSBUILD_X86_OBJECTS lists, joined by colons.
func TestObjects(t *testing.T) {
	needs.Time(t)
	o := oracle{}
	files := []string{"/lib64/ld-linux-x86-64.so.2"}
	for _, name := range []string{"libc.so.6", "libm.so.6"} {
		files = append(files, filepath.Join("/usr/lib/x86_64-linux-gnu", name))
	}
	files = append(files, filepath.SplitList(os.Getenv("DSBUILD_X86_OBJECTS"))...)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			if _, err := os.Stat(file); err != nil {
				t.Skip(err)
			}
			compareObject(t, o, file)
		})
	}
}
