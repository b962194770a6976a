package environment_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/fleet/environment"
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
