package atomicfile_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/dsbuild/dsbuild/internal/atomicfile"
)

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	for _, text := range []string{"one", "two"} {
		if err := atomicfile.Write(file, strings.NewReader(text), 0o640); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != text {
			t.Errorf("%q, %v", got, err)
		}
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o640 {
		t.Error(info.Mode(), err)
	}
	full := errors.New("no space left")
	err := atomicfile.Write(file, io.MultiReader(strings.NewReader("thr"), iotest.ErrReader(full)), 0o640)
	if !errors.Is(err, full) || !strings.Contains(err.Error(), file) {
		t.Error(err)
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != "two" {
		t.Errorf("after a failure: %q, %v", got, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
