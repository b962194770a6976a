//go:build linux

package slurm

import (
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"syscall"
)

// home is where clusters have their folders. Munge wants no one but root to be
// able to write to any folder above its socket, and everybody to be able to
// reach it; so they are neither in a temporary folder nor in root's home.
const home = "/var/lib/dsbuild-slurm"

// newFolder makes the folder of a new cluster. The lock, to be handed on to the
// cluster's first process, is held for as long as that lives.
func newFolder() (dir string, lock *os.File, err error) {
	if err := os.MkdirAll(home, 0o755); err != nil {
		return "", nil, err
	}
	dir = filepath.Join(home, rand.Text()[:8])
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", nil, err
	}
	if lock, err = os.Create(filepath.Join(dir, "lock")); err == nil {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	return dir, lock, nil
}
