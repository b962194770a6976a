package pipeline

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/wheel"
)

// A file that has not changed since long before it was listed is not read again: its line
// stays, so that sha256sum -c shows what a disk has done to it.
func TestSumsAreKept(t *testing.T) {
	dir := t.TempDir()
	changed := map[string]time.Time{}
	list := func() string {
		t.Helper()
		err := listSums(dir, func(path string) (time.Time, error) {
			if at, ok := changed[filepath.Base(path)]; ok {
				return at, nil
			}
			return time.Time{}, os.ErrNotExist
		})
		text, read := os.ReadFile(filepath.Join(dir, wheel.SumsName))
		if err != nil || read != nil {
			t.Fatal(err, read)
		}
		return string(text)
	}
	for name, text := range map[string]string{"old.whl": "a", "new.whl": "b"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	changed["old.whl"], changed["new.whl"] = now.Add(-time.Hour), now.Add(-time.Second)
	first := list()
	if strings.Count(first, "\n") != 2 {
		t.Fatal(first)
	}
	changed[wheel.SumsName] = now
	for _, name := range []string{"old.whl", "new.whl"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("c"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	before, after := strings.Split(first, "\n"), strings.Split(list(), "\n")
	if before[0] == after[0] {
		t.Error("new.whl was not read anew")
	}
	if before[1] != after[1] {
		t.Error("old.whl was read anew")
	}
	changed["old.whl"] = now.Add(time.Second)
	if last := strings.Split(list(), "\n"); last[1] == after[1] {
		t.Error("old.whl was not read anew after it had changed")
	}
	changed["old.whl"] = now.Add(-time.Hour)
	delete(changed, wheel.SumsName)
	if err := os.WriteFile(filepath.Join(dir, "old.whl"), []byte("d"), 0o644); err != nil {
		t.Fatal(err)
	}
	if last := strings.Split(list(), "\n"); last[1] == after[1] {
		t.Error("without a list a digest was taken from it")
	}
}

// Changing a file changes the time that counts, whatever times it is given.
func TestChangedAt(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	past := time.Now().Add(-time.Hour)
	if err := os.Chtimes(file, past, past); err != nil {
		t.Fatal(err)
	}
	if at, err := changedAt(file); err != nil || time.Since(at) > time.Minute {
		t.Errorf("%v, %v", at, err)
	}
}
