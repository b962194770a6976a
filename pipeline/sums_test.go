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
	at := map[string]time.Time{}
	list := func() string {
		t.Helper()
		err := listSums(dir, func(path string) (time.Time, error) {
			if at, ok := at[filepath.Base(path)]; ok {
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
	at["old.whl"], at["new.whl"] = now.Add(-time.Hour), now.Add(-time.Second)
	first := list()
	if strings.Count(first, "\n") != 2 {
		t.Fatal(first)
	}
	at[wheel.SumsName] = now
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
	at["old.whl"] = now.Add(time.Second)
	if last := strings.Split(list(), "\n"); last[1] == after[1] {
		t.Error("old.whl was not read anew after it had changed")
	}
	at["old.whl"] = now.Add(-time.Hour)
	delete(at, wheel.SumsName)
	if err := os.WriteFile(filepath.Join(dir, "old.whl"), []byte("d"), 0o644); err != nil {
		t.Fatal(err)
	}
	if last := strings.Split(list(), "\n"); last[1] == after[1] {
		t.Error("without a list a digest was taken from it")
	}
}

// The digest of a file that only a link has put there is nobody's business.
func TestSumsLeaveOutLinks(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	house := t.TempDir()
	for _, file := range []string{secret, filepath.Join(house, "a-1-py3-none-any.whl")} {
		if err := os.WriteFile(file, []byte("s3cret"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	for name, to := range map[string]string{"x-1-py3-none-any.whl": secret, "x-1-py3-none-any.whl" + wheel.ManifestSuffix: secret, wheel.WheelhouseDir: house} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := writeSums(dir); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, wheel.SumsName)); err != nil || len(text) > 0 {
		t.Errorf("%q, %v", text, err)
	}
}
