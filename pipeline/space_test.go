package pipeline

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/dsbuild/dsbuild/internal/ui"
)

// small mounts a file system of so many bytes, which needs root.
func small(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestCheckSpace(t *testing.T) {
	dir := small(t, "8m")
	out := filepath.Join(dir, "not", "there", "yet")
	var said bytes.Buffer
	rep := ui.New(&said, ui.Options{})

	err := CheckSpace([]DiskRequirement{{What: "the output directory", Path: out, Need: 50 << 20}, {What: "the store", Path: dir, Need: 1 << 20}}, rep)
	var bad *SpaceError
	if !errors.As(err, &bad) || len(bad.Short) != 2 {
		t.Fatalf("%v", err)
	}
	if want := "the output directory " + out + " has 8.0 MiB free, a build needs 50.0 MiB"; !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
	if !strings.Contains(bad.Hint(), "-o another directory") || !strings.Contains(bad.Hint(), dir) {
		t.Error(bad.Hint())
	}

	// Enough for each, but not for both: they share what there is.
	err = CheckSpace([]DiskRequirement{{What: "one", Path: dir, Need: 5 << 20}, {What: "two", Path: dir, Need: 5 << 20}}, rep)
	if !errors.As(err, &bad) || len(bad.Short) != 1 || bad.Short[0].What != "two" || bad.Short[0].Free != 3<<20 {
		t.Errorf("%v", err)
	}

	// A file takes from what is free.
	if err := os.WriteFile(filepath.Join(dir, "file"), make([]byte, 4<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if said.Len() > 0 {
		t.Error(said.String())
	}
	if err := CheckSpace([]DiskRequirement{{What: "the engine's cache", Path: dir, Need: 3 << 20, Most: 16 << 30}}, rep); err != nil {
		t.Error(err)
	}
	if !strings.Contains(said.String(), "has 4.0 MiB free: enough if the toolchain exists already, but a new toolchain takes up to 16.0 GiB") {
		t.Error(said.String())
	}
}

// Where an engine does not tell, nothing is refused.
func TestCheckSpaceUnknown(t *testing.T) {
	var said bytes.Buffer
	room := DiskRequirement{What: "the engine's cache", Path: "/", Need: 1, Free: func() (int64, error) { return 0, errors.New("no answer") }}
	if err := CheckSpace([]DiskRequirement{room}, ui.New(&said, ui.Options{})); err != nil || !strings.Contains(said.String(), "no answer") {
		t.Errorf("%v, %s", err, &said)
	}
}
