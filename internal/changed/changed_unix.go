//go:build unix

package changed

import (
	"io/fs"
	"time"

	"golang.org/x/sys/unix"
)

// At is when a file was last written to, renamed or otherwise changed, which no
// program can set.
func At(path string) (time.Time, error) {
	var at unix.Stat_t
	if err := unix.Stat(path, &at); err != nil {
		return time.Time{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return time.Unix(at.Ctim.Unix()), nil
}
