package nightly

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A night removes the builds and reports that are not known any more, and nothing else: not a file that
// somebody put there, which is no reason either to end without a report.
func TestRemoveUnknown(t *testing.T) {
	t.Parallel()
	s := &state{Builds: map[string][]Build{"a": {{Plan: "1111"}, {Plan: "2222"}}, "b/c": {{Plan: "1111"}}}, dir: t.TempDir()}
	keep := []string{
		filepath.Join(buildFolder("a", "1111"), "x.whl"), filepath.Join(buildFolder("a", "2222"), "x.whl"), filepath.Join(buildFolder("b/c", "1111"), "x.whl"),
		"runs/night-2/report.json", "wheels/.nfs0001", "state.json", "current/x.whl",
	}
	gone := []string{filepath.Join(buildFolder("a", "3333"), "x.whl"), filepath.Join(buildFolder("old", "1111"), "x.whl")}
	for _, name := range slices.Concat(keep, gone) {
		file := filepath.Join(s.dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for i := range maxNights {
		night := filepath.Join(s.dir, "runs", fmt.Sprintf("night-%03d", i))
		if err := os.MkdirAll(night, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	gone = append(gone, "runs/night-000") // night-2 is one more than are kept
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "x"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(s.dir, "wheels", "link")); err != nil {
		t.Fatal(err)
	}
	if n, err := s.removeUnknown(); err != nil || n != len(gone) {
		t.Errorf("%d removed, %v", n, err)
	}
	for _, name := range keep {
		if _, err := os.Stat(filepath.Join(s.dir, name)); err != nil {
			t.Error(err)
		}
	}
	for _, name := range gone {
		if _, err := os.Stat(filepath.Join(s.dir, name)); err == nil {
			t.Errorf("%s is still there", name)
		}
	}
	if _, err := os.Stat(filepath.Join(outside, "x")); err != nil {
		t.Error("a file behind a link was removed")
	}
	if n, err := s.removeUnknown(); err != nil || n != 0 {
		t.Errorf("again: %d removed, %v", n, err)
	}
}

// Whatever a wheel is called, its folder has a name of its own below wheels.
func TestFolderOfAnyName(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, name := range []string{"a", "A", "a/b", "a_b", "a b", "..", ".", "", "../../etc", "/", "é", "ê", "a\x00b", "a\nb", "python=3.11,torch=2.15.0", strings.Repeat("x", 300), strings.Repeat("x", 301), strings.Repeat("é", 100)} {
		folder := buildFolder(name, strings.Repeat("ab", 32))
		base := filepath.Base(folder)
		if filepath.Dir(folder) != wheelsName || !filepath.IsLocal(folder) || len(base) > 100 || unsafe.MatchString(base) || strings.Trim(base, ".") == "" {
			t.Errorf("%.40q: %q", name, folder)
		}
		if other, twice := seen[strings.ToLower(base)]; twice { // some file systems ignore case
			t.Errorf("%.40q and %.40q: %q", name, other, base)
		}
		seen[strings.ToLower(base)] = name
	}
}
