//go:build unix

package filetime_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/filetime"
)

// A change of a file changes its time, whatever modification time the file is given.
func TestAt(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	past := time.Now().Add(-time.Hour)
	if err := os.Chtimes(file, past, past); err != nil {
		t.Fatal(err)
	}
	if at, err := filetime.At(file); err != nil || time.Since(at) > time.Minute {
		t.Errorf("%v, %v", at, err)
	}
	if _, err := filetime.At(file + "x"); !os.IsNotExist(err) {
		t.Errorf("of no file: %v", err)
	}
}
