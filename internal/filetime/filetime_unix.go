//go:build unix

package filetime

import (
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// At returns the time at which a file was last written to, renamed or otherwise
// changed. No program can set it.
func At(path string) (time.Time, error) {
	f, err := os.Open(path) // makes a network file system look for changes of others
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
