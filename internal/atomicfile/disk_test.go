package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The contents are on the disk before the file has its name, and a disk that refuses them leaves the old file.
func TestContentsReachTheDiskBeforeTheName(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	reached, refusal := 0, error(nil)
	toDisk := func(f *os.File) error {
		reached++
		text, err := os.ReadFile(f.Name())
		if _, there := os.Lstat(file); err != nil || string(text) != "new" || reached == 1 && there == nil {
			t.Errorf("at the disk is %q, %v; the name is there: %t", text, err, there == nil)
		}
		return errors.Join(f.Sync(), refusal)
	}
	if err := write(file, strings.NewReader("new"), 0o600, toDisk); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(file, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	refusal = errors.New("input/output error")
	if err := write(file, strings.NewReader("new"), 0o600, toDisk); !errors.Is(err, refusal) {
		t.Errorf("%v, want the error of the disk", err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "old" || reached != 2 {
		t.Errorf("%q, %v, %d files reached the disk; want the old file, and 2", text, err, reached)
	}
}
