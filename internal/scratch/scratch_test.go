package scratch

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func exists(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Lstat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

// dir makes a directory with a file whose last change was some time ago.
func dir(t *testing.T, path string, mode fs.FileMode, ago time.Duration) string {
	t.Helper()
	if err := errors.Join(os.MkdirAll(path, 0o700), os.WriteFile(filepath.Join(path, "file"), nil, 0o600), os.Chmod(path, mode)); err != nil {
		t.Fatal(err)
	}
	age(t, path, ago)
	return path
}

func age(t *testing.T, path string, ago time.Duration) {
	t.Helper()
	if err := os.Chtimes(path, time.Time{}, time.Now().Add(-ago)); err != nil {
		t.Fatal(err)
	}
}

func TestDir(t *testing.T) {
	parent := t.TempDir()
	d, err := New(parent)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(d.Path)
	if err != nil || filepath.Dir(d.Path) != parent || info.Mode().Perm() != 0o700 {
		t.Fatalf("%s: %v, %v", d.Path, info, err)
	}
	sub := dir(t, filepath.Join(d.Path, "read-only"), 0o500, 0)
	if err := d.Close(); err != nil || exists(t, sub) || exists(t, d.Path) {
		t.Errorf("closed: %v", err)
	}
	if err := (*Dir)(nil).Close(); err != nil {
		t.Error(err)
	}
	if _, err := New(filepath.Join(parent, "nowhere")); err == nil {
		t.Error("no error where there is no parent")
	}
}

// New removes the directories of killed processes, and nothing else.
func TestSweep(t *testing.T) {
	parent := t.TempDir()
	at := func(name string) string { return filepath.Join(parent, name) }
	alive, err := New(parent)
	if err != nil {
		t.Fatal(err)
	}
	defer alive.Close()
	age(t, alive.Path, 1000*time.Hour)

	left := dir(t, at(prefix+"left"), 0o700, 25*time.Hour)
	stay := []string{
		alive.Path,
		dir(t, at(prefix+"fresh"), 0o700, 23*time.Hour),
		dir(t, at(prefix+"open"), 0o755, 25*time.Hour), // New makes no such directory
		dir(t, at("dsbuild-checkout"), 0o700, 25*time.Hour),
		at(prefix + "link"), at("target"),
	}
	dir(t, at("target"), 0o700, 25*time.Hour)
	if err := os.Symlink(at("target"), at(prefix+"link")); err != nil {
		t.Fatal(err)
	}
	d, err := New(parent)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if exists(t, left) {
		t.Errorf("%s is left", left)
	}
	for _, path := range stay {
		if !exists(t, path) {
			t.Errorf("%s is gone", path)
		}
	}
}
