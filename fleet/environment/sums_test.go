package environment_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/fleet/environment"
	"github.com/dsbuild/dsbuild/internal/testkit/wheelindex"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
)

// A file is not read again that has not changed since, and long before, it was read.
func TestSumsAreRemembered(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "a.whl")
	at := time.Now().Add(-time.Hour)
	known := environment.Changed(environment.Sums{Dir: filepath.Join(t.TempDir(), "sums")}, func(string) (time.Time, error) { return at, nil })
	sum := func(text string) string {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		past := time.Now().Add(-2 * time.Hour).Truncate(time.Hour)
		if err := os.Chtimes(file, past, past); err != nil {
			t.Fatal(err)
		}
		got, size, err := known.Sum(file)
		if err != nil || size != int64(len(text)) {
			t.Fatalf("%s, %d bytes, %v", got, size, err)
		}
		return got
	}
	first := sum("a")
	if sum("b") != first {
		t.Error("it was read again")
	}
	if sum("bb") == first {
		t.Error("another size was not seen")
	}
	at = at.Add(time.Second)
	second := sum("c")
	if second == first {
		t.Error("a change was not seen")
	}
	at = time.Now()
	if third := sum("d"); third == second || sum("e") == third {
		t.Error("what has just changed was taken for what it was")
	}
	at = at.Add(-time.Hour)
	kept, err := filepath.Glob(filepath.Join(known.Dir, "*"))
	if err != nil || len(kept) == 0 {
		t.Fatal(kept, err)
	}
	for _, name := range kept {
		if err := os.WriteFile(name, []byte("damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sum("f")
	var forgets environment.Sums
	if got, _, err := forgets.Sum(file); err != nil || got == first {
		t.Error(got, err)
	}
}

// A wheel's machine code is read once, a damaged entry is replaced, and other nodes or other bytes have entries of their own.
func TestManifestsAreRemembered(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	known := environment.Sums{Dir: filepath.Join(dir, "sums")}
	at := wheelindex.Make(t, dir, wheelindex.Wheel{Name: "fast", Version: "1.0", Tag: "cp311-cp311-linux_x86_64", Files: map[string]string{
		"fast/_c.cpython-311-x86_64-linux-gnu.so": wheeltest.Library(t, wheeltest.Import{Function: "f", Library: "libc.so.6", Version: "GLIBC_2.34"}),
	}})
	f := environment.File{Name: "fast", File: filepath.Base(at), SHA256: strings.Repeat("a", 64)}
	glibc := func(f environment.File, platform string) string {
		t.Helper()
		m, err := known.Manifest(t.Context(), at, f, platform)
		if err != nil {
			return err.Error()
		}
		return m.Glibc
	}
	read := glibc(f, "linux_x86_64")
	kept, err := filepath.Glob(filepath.Join(known.Dir, "*"))
	if err != nil || len(kept) == 0 || read != "2.34" {
		t.Fatalf("glibc %s, entries %q, %v; want 2.34 and an entry", read, kept, err)
	}
	good, err := os.ReadFile(at)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at, nil, 0o644); err != nil { // whoever reads it gets an error
		t.Fatal(err)
	}
	if got := glibc(f, "linux_x86_64"); got != "2.34" {
		t.Errorf("%s: want 2.34, without reading the wheel again", got)
	}
	other := f
	other.SHA256 = strings.Repeat("b", 64)
	if other, alien := glibc(other, "linux_x86_64"), glibc(f, "linux_aarch64"); other == "2.34" || alien == "2.34" {
		t.Errorf("%s and %s: want errors, as these were not read yet", other, alien)
	}
	for _, damage := range []string{"", "\n", "2.34", `{"glibc":"2.17"}`, strings.Repeat("0", 64) + "\n" + `{"glibc":"2.17"}`} {
		for _, name := range kept {
			if err := os.WriteFile(name, []byte(damage), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(at, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if got := glibc(f, "linux_x86_64"); got == "2.34" || got == "2.17" {
			t.Errorf("entry %q gave glibc %s: want the error of reading the wheel", damage, got)
		}
		if err := os.WriteFile(at, good, 0o644); err != nil {
			t.Fatal(err)
		}
		if got := glibc(f, "linux_x86_64"); got != "2.34" {
			t.Errorf("%s after entry %q: want 2.34, read again", got, damage)
		}
	}
}
