package environment

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/testkit/python"
)

// packed is an archive with a Python and some more entries.
func packed(t *testing.T, more ...tar.Header) string {
	t.Helper()
	program, err := os.ReadFile("/usr/bin/env") // an ELF file that asks for versions of glibc
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	write := func(h tar.Header, data []byte) {
		h.Size = int64(len(data))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	write(tar.Header{Name: "python/", Typeflag: tar.TypeDir, Mode: 0o755}, nil)
	write(tar.Header{Name: "python/bin/python3.11", Typeflag: tar.TypeReg, Mode: 0o755}, program)
	for _, h := range more {
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		write(h, nil)
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "python.tar.gz")
	if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// An archive with something that could reach outside its folder is refused as a whole.
func TestHostileArchives(t *testing.T) {
	t.Parallel()
	for want, more := range map[string][]tar.Header{
		`"/etc/passwd"`:               {{Name: "/etc/passwd", Typeflag: tar.TypeReg}},
		`"../out"`:                    {{Name: "../out", Typeflag: tar.TypeReg}},
		`"python/../../out"`:          {{Name: "python/../../out", Typeflag: tar.TypeReg}},
		"invalid path":                {{Name: "python/a\nb", Typeflag: tar.TypeReg}},
		"outside the archive: \"/etc": {{Name: "python/etc", Typeflag: tar.TypeSymlink, Linkname: "/etc"}},
		"outside the archive: \"../.": {{Name: "python/up", Typeflag: tar.TypeSymlink, Linkname: "../../x"}},
		"is below":                    {{Name: "python/lib", Typeflag: tar.TypeSymlink, Linkname: "bin"}, {Name: "python/lib/x", Typeflag: tar.TypeReg}},
		"to no file in the archive":   {{Name: "python/hard", Typeflag: tar.TypeLink, Linkname: "/etc/shadow"}},
		"is a device":                 {{Name: "python/null", Typeflag: tar.TypeChar}},
		"another special file":        {{Name: "python/pipe", Typeflag: tar.TypeFifo}},
		"is setuid or setgid":         {{Name: "python/su", Typeflag: tar.TypeReg, Mode: 0o4755}},
		"duplicate entry":             {{Name: "python/x", Typeflag: tar.TypeReg}, {Name: "python/./x", Typeflag: tar.TypeReg}},
		"several Python interpreters": {{Name: "other/bin/python3.12", Typeflag: tar.TypeReg}},
	} {
		_, err := OpenArchive(packed(t, more...))
		if err == nil || !strings.Contains(err.Error(), want) || fault.ExitCode(err) != 2 {
			t.Errorf("%s: %v", want, err)
		}
	}
	for _, fine := range [][]tar.Header{nil, {{Name: "python/bin/python3", Typeflag: tar.TypeSymlink, Linkname: "python3.11"}}, {{Name: "python/bin/python", Typeflag: tar.TypeLink, Linkname: "python/bin/python3.11"}}} {
		a, err := OpenArchive(packed(t, fine...))
		if err != nil || a.Python != "3.11" || a.Program != "python/bin/python3.11" || a.Machine != "x86_64" || !strings.HasPrefix(a.Glibc, "2.") {
			t.Errorf("%v, %+v", err, a)
		}
	}
}

func TestDamagedArchives(t *testing.T) {
	t.Parallel()
	whole, err := os.ReadFile(packed(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"text": []byte("no archive"), "empty": nil, "cut": whole[:len(whole)/2], "checksum": append(whole[:len(whole)-8:len(whole)-8], make([]byte, 8)...)} {
		file := filepath.Join(t.TempDir(), "python.tar.gz")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if a, err := OpenArchive(file); fault.ExitCode(err) != 2 {
			t.Errorf("%s: %v, %+v", name, err, a)
		}
	}
}

// FuzzArchive reads archives of anybody: it never writes, and what it takes is below one folder.
func FuzzArchive(f *testing.F) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := errors.Join(w.WriteHeader(&tar.Header{Name: "python/x", Typeflag: tar.TypeReg}), w.Close()); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, text []byte) {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		z.Write(text) //nolint:errcheck // into memory
		z.Close()     //nolint:errcheck // into memory
		a, err := readArchive(&b)
		if err == nil && (a.Program == "" || strings.Contains(a.List, "\t/") || strings.Contains(a.List, "..\t")) {
			t.Errorf("%+v", a)
		}
	})
}

// The keys of the file that name a Python.
func TestInterpreterKey(t *testing.T) {
	t.Parallel()
	read := func(value string) (*Spec, error) {
		return parse("/d/e.yaml", []byte("name: n\npython: 3.11\nrequirements: [a]\ninterpreter: "+value+"\n"))
	}
	for value, want := range map[string]Spec{
		"/usr/bin/python3.11":  {Interpreter: "/usr/bin/python3.11"},
		"python3.11":           {Interpreter: "python3.11"},
		"py/c-3.11.tar.gz":     {Archives: []Text{{Text: "/d/py/c-3.11.tar.gz"}}},
		"[/x/a.tgz, b.tar.gz]": {Archives: []Text{{Text: "/x/a.tgz"}, {Text: "/d/b.tar.gz"}}},
	} {
		s, err := read(value)
		if err != nil || s.Interpreter != want.Interpreter || len(s.Archives) != len(want.Archives) {
			t.Fatalf("%s: %v, %+v", value, err, s)
		}
		for i, a := range s.Archives {
			if a.Text != want.Archives[i].Text {
				t.Errorf("%s: %s", value, a.Text)
			}
		}
	}
	for value, want := range map[string]string{"x.tar.zst": "must be a .tar.gz", "[python3]": "Python archive", "{a: b}": "e.yaml:4", "a b": "e.yaml:4"} {
		if _, err := read(value); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", value, err)
		}
	}
}

// The archive must be there, and have the Python of the file and the machine of the kind.
func TestChooseInterpreter(t *testing.T) {
	t.Parallel()
	file, err := python.Archive(t.TempDir(), "/usr/bin/python3.11")
	if err != nil {
		t.Fatal(err)
	}
	k := Platform{Machine: "x86_64", Glibc: "2.40"}
	s := &Spec{Python: "3.11", Archives: []Text{{Text: file}}}
	i, err := s.chooseInterpreter(k, filepath.Dir(file))
	if err != nil || i.check() != nil || i.Path != filepath.Base(file) {
		t.Fatalf("%v, %+v", err, i)
	}
	for name, c := range map[string]struct {
		python string
		kind   Platform
	}{"another Python": {"3.12", k}, "another machine": {"3.11", Platform{Machine: "aarch64", Glibc: "2.40"}}, "an old glibc": {"3.11", Platform{Machine: "x86_64", Glibc: "2.17"}}} {
		s.Python = c.python
		if _, err := s.chooseInterpreter(c.kind, "."); fault.ExitCode(err) != 2 {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, wrong := range []func(*Interpreter){
		func(i *Interpreter) { i.Program = "../../bin/python3.11" }, func(i *Interpreter) { i.File = "../x.tar.gz" },
		func(i *Interpreter) { i.Tree = "x" }, func(i *Interpreter) { i.Path = "other" },
	} {
		bad := *i
		if wrong(&bad); bad.check() == nil {
			t.Errorf("%+v", bad)
		}
	}
}
