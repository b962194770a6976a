package elf_test

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/built"
	"github.com/dsbuild/dsbuild/wheel/elf"
)

// tool returns the path of a program. Where it is missing the test is
// skipped, and fails in CI.
func tool(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	switch {
	case err == nil:
		return path
	case os.Getenv("CI") == "true":
		t.Fatalf("%s is not installed", name)
	}
	t.Skipf("%s is not installed", name)
	return ""
}

func run(t testing.TB, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(tool(t, name), args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, stderr.Bytes())
	}
	return string(out)
}

func open(path string) elf.Open {
	return func() (io.ReadCloser, error) { return os.Open(path) }
}

func fileSize(t testing.TB, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// readFile reads an object and notes which sections it was shown.
func readFile(t testing.TB, path string) (*elf.Object, []*seen) {
	t.Helper()
	var list []*seen
	o, err := elf.Read(open(path), fileSize(t, path), note(&list))
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return o, list
}

// seen is a section and the sum of the bytes that came of it.
type seen struct {
	elf.Section
	n   uint64
	sum uint32
}

func (s *seen) Write(p []byte) (int, error) {
	s.n += uint64(len(p))
	s.sum = crc32.Update(s.sum, crc32.IEEETable, p)
	return len(p), nil
}

func note(list *[]*seen) elf.Sink {
	return func(s elf.Section) io.Writer {
		*list = append(*list, &seen{Section: s})
		return (*list)[len(*list)-1]
	}
}

// told is what readelf says of an object, in the words of Object.
type told struct {
	Needs, RPath, RunPath []string
	Versions              map[string][]string
	Stripped              bool
	IFuncs                bool
	sections              []string
}

func ask(t testing.TB, path string) told {
	t.Helper()
	r := told{
		Needs: []string{}, RPath: []string{}, RunPath: []string{},
		Versions: map[string][]string{},
	}
	r.askDynamic(run(t, "", "readelf", "-dW", path))
	r.askVersions(run(t, "", "readelf", "-VW", path))
	r.askSymbols(run(t, "", "readelf", "--dyn-syms", "-W", path))
	r.askSections(run(t, "", "readelf", "-SW", path))
	r.IFuncs = r.IFuncs || strings.Contains(run(t, "", "readelf", "-rW", path), "_IRELATIV")
	return r
}

func (r *told) askDynamic(out string) {
	for _, m := range regexp.MustCompile(`(?m)^ 0x[0-9a-f]+ \((\w+)\) .*\[(.*)\]$`).FindAllStringSubmatch(out, -1) {
		switch m[1] {
		case "NEEDED":
			r.Needs = append(r.Needs, m[2])
		case "RPATH":
			r.RPath = append(r.RPath, strings.Split(m[2], ":")...)
		case "RUNPATH":
			r.RunPath = append(r.RunPath, strings.Split(m[2], ":")...)
		}
	}
}

func (r *told) askVersions(out string) {
	library := ""
	for _, m := range regexp.MustCompile(`(?m)File: (\S+)  Cnt: |^  0x[0-9a-f]+:   Name: (\S+)  Flags: `).FindAllStringSubmatch(out, -1) {
		if m[1] != "" {
			library = m[1]
			continue
		}
		r.Versions[library] = append(r.Versions[library], m[2])
	}
	for library, versions := range r.Versions {
		slices.Sort(versions)
		r.Versions[library] = slices.Compact(versions)
	}
}

func (r *told) askSymbols(out string) {
	line := regexp.MustCompile(`(?m)^ *\d+: [0-9a-f]+ +\S+ (\w+|<.*?>: \d+) +(\w+|<.*?>: \d+) +\w+ +(?:\[.*?\] |<other>: \w+ )? *(\w+)`)
	for _, m := range line.FindAllStringSubmatch(out, -1) {
		if kind, bind, section := m[1], m[2], m[3]; bind != "LOCAL" && section != "UND" {
			r.IFuncs = r.IFuncs || kind == "IFUNC" || kind == "<OS specific>: 10" // where the header does not say GNU
		}
	}
}

func (r *told) askSections(out string) {
	r.Stripped = true
	type section struct {
		off  uint64
		text string
	}
	var list []section
	line := regexp.MustCompile(`(?m)^ +\[ *\d+\] (\S*) +(\S+) +([0-9a-f]{16}) ([0-9a-f]{6,}) ([0-9a-f]{6,}) [0-9a-f]{2,} +([A-Za-z]*) `)
	for _, m := range line.FindAllStringSubmatch(out, -1) {
		name, kind, flags := m[1], m[2], m[6]
		off, _ := strconv.ParseUint(m[4], 16, 64)
		size, _ := strconv.ParseUint(m[5], 16, 64)
		if kind == "NULL" || kind == "NOBITS" || size == 0 {
			continue
		}
		debug := (strings.HasPrefix(name, ".debug_") || strings.HasPrefix(name, ".zdebug_")) && !strings.Contains(flags, "A")
		r.Stripped = r.Stripped && !debug && kind != "SYMTAB"
		list = append(list, section{off, fmt.Sprintf("%s 0x%s at 0x%x, %d bytes, code %v", name, m[3], off, size, strings.Contains(flags, "X"))})
	}
	slices.SortStableFunc(list, func(a, b section) int { return int(int64(a.off) - int64(b.off)) })
	for _, s := range list {
		r.sections = append(r.sections, s.text)
	}
}

// compareReadelf holds what was read of an object against readelf, and the
// bytes of its sections against the file.
func compareReadelf(t *testing.T, path string) *elf.Object {
	t.Helper()
	o, list := readFile(t, path)
	want := ask(t, path)
	got := told{
		Needs: o.Needs, RPath: o.RPath, RunPath: o.RunPath, Versions: o.Versions,
		Stripped: o.Stripped, IFuncs: o.IFuncs,
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, s := range list {
		got.sections = append(got.sections, fmt.Sprintf("%s 0x%016x at 0x%x, %d bytes, code %v", s.Name, s.Addr, s.Offset, s.Size, s.Executable()))
		direct := crc32.NewIEEE()
		if _, err := io.Copy(direct, io.NewSectionReader(f, int64(s.Offset), int64(s.Size))); err != nil {
			t.Fatal(err)
		}
		if s.n != s.Size || s.sum != direct.Sum32() {
			t.Errorf("%s: section %s: %d bytes with sum %x came, it has %d with %x", path, s.Name, s.n, s.sum, s.Size, direct.Sum32())
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s:\nread    %+v\nreadelf %+v", path, got, want)
	}
	return o
}

// systemObjects are shared objects and programs that a Linux machine has.
func systemObjects(t *testing.T) []string {
	t.Helper()
	var list []string
	for _, pattern := range []string{
		"/lib/*-linux-gnu*/libc.so.6", "/lib/*-linux-gnu*/libm.so.6", "/lib/*-linux-gnu*/libz.so.1",
		"/usr/lib/*-linux-gnu*/libstdc++.so.6", "/usr/lib/*-linux-gnu*/libgcc_s.so.1",
		"/usr/lib/*-linux-gnu*/libpython3*.so.1.0", "/usr/lib/python3*/lib-dynload/_[a-h]*.so",
		"/usr/local/lib/libpython3*.so.1.0", "/usr/local/lib/python3*/lib-dynload/_[a-h]*.so",
		"/usr/lib64/libc.so.6", "/usr/lib64/libstdc++.so.6", "/bin/ls",
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, found...)
	}
	if len(list) == 0 {
		t.Skip("no shared objects of the system found")
	}
	return list
}

func TestReadAgreesWithReadelf(t *testing.T) {
	tool(t, "readelf")
	list := systemObjects(t)
	for _, path := range list {
		compareReadelf(t, path)
	}
	t.Logf("%d objects of the system", len(list))
}

// The wheel under test is read as inspect reads it: inflated on the way.
func TestWheel(t *testing.T) {
	tool(t, "readelf")
	path := built.Wheel(t)
	archive, err := zip.OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	objects := 0
	for _, member := range archive.File {
		if !strings.HasSuffix(member.Name, ".so") {
			continue
		}
		objects++
		o, err := elf.Read(member.Open, int64(member.UncompressedSize64), nil)
		if err != nil {
			t.Fatalf("%s: %v", member.Name, err)
		}
		unpacked := filepath.Join(t.TempDir(), "object.so")
		r, err := member.Open()
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err := errors.Join(err, r.Close(), os.WriteFile(unpacked, data, 0o600)); err != nil {
			t.Fatal(err)
		}
		if want := compareReadelf(t, unpacked); !reflect.DeepEqual(o, want) {
			t.Errorf("%s: inflated %+v\nunpacked %+v", member.Name, o, want)
		}
	}
	if objects == 0 {
		t.Errorf("%s has no shared objects", path)
	}
}
