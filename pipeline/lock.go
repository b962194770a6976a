package pipeline

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"

	"github.com/gofrs/flock"
)

// lockName is the file that is locked if the directory itself cannot be.
const lockName = ".dsbuild.lock"

// withLock runs do while it holds the lock of the directory dir. With shared, other readers may
// hold it at the same time. The lock works between goroutines and between processes.
func withLock(dir string, shared bool, do func() error) error {
	if _, err := os.Stat(dir); err != nil {
		return err
	}
	lock := flock.New(dir, flock.SetFlag(os.O_RDONLY))
	if waitForLock(lock, shared) != nil {
		// NFS locks only files that are open for writing, and Windows locks no directories.
		lock = flock.New(filepath.Join(dir, lockName), flock.SetFlag(os.O_CREATE|os.O_RDWR), flock.SetPermissions(0o644))
		if err := waitForLock(lock, shared); err != nil {
			return &os.PathError{Op: "lock", Path: dir, Err: err}
		}
	}
	defer lock.Close()
	return do()
}

// waitForLock waits for the lock. It goes on after signals, which the Go runtime sends itself.
func waitForLock(lock *flock.Flock, shared bool) error {
	for {
		err := error(nil)
		if shared {
			err = lock.RLock()
		} else {
			err = lock.Lock()
		}
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}
