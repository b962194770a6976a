//go:build linux

package slurm

import (
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"syscall"
)

// home is the folder of clusters' folders. Munge requires that only root may write to the
// folders above its socket, and that everybody may enter them. So the folder is neither a
// temporary folder nor in root's home.
const home = "/var/lib/dsbuild-slurm"

// newFolder makes the folder of a new cluster. The caller passes the lock on to the cluster's
// first process, which holds it until it ends.
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
