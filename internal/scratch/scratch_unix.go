//go:build unix

package scratch

import (
	"io/fs"
	"os"
	"syscall"

	"github.com/gofrs/flock"
)

// lockOf returns the directory's lock, which is on the directory itself.
func lockOf(dir string) *flock.Flock {
	return flock.New(dir, flock.SetFlag(os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW))
}

// ours reports whether info is a directory of this user like those New makes.
func ours(info fs.FileInfo) bool {
	owner, ok := info.Sys().(*syscall.Stat_t)
	return ok && info.Mode() == fs.ModeDir|0o700 && int(owner.Uid) == os.Geteuid()
}
