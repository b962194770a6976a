//go:build unix

package changed

import (
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// At is when a file was last written to, renamed or otherwise changed, which no
// program can set.
func At(path string) (time.Time, error) {
	f, err := os.Open(path) // where a network's file system looks for changes of others
	if err != nil {
		return time.Time{}, err
	}
	defer f.Close()
	var at unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &at); err != nil {
		return time.Time{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return time.Unix(at.Ctim.Unix()), nil
}
