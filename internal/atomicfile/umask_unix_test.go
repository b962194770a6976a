//go:build unix

package atomicfile_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/dsbuild/dsbuild/internal/atomicfile"
)

// A file gets the mode of any other new file of the user, also if it replaces an older one.
func TestWriteHonoursTheUmask(t *testing.T) {
	old := syscall.Umask(0o022)
	defer syscall.Umask(old)
	file := filepath.Join(t.TempDir(), "f")
	for _, c := range []struct {
		umask      int
		mode, want fs.FileMode
	}{{0o077, 0o644, 0o600}, {0o027, 0o755, 0o750}, {0o022, 0o644, 0o644}, {0, 0o600, 0o600}, {0o002, 0o666, 0o664}} {
		syscall.Umask(c.umask)
		if err := atomicfile.Write(file, strings.NewReader("text"), c.mode); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != c.want {
			t.Errorf("umask %03o, mode %v: %v, want %v; %v", c.umask, c.mode, info.Mode(), c.want, err)
		}
	}
}
