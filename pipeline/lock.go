package pipeline

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"

	"github.com/gofrs/flock"
)

// lockName is the file that is locked where a directory itself cannot be.
const lockName = ".dsbuild.lock"

// locked runs do while it alone has the directory dir; with shared, along with
// others that want no more than to read. It holds between goroutines and
// between processes.
func locked(dir string, shared bool, do func() error) error {
	if _, err := os.Stat(dir); err != nil {
		return err
	}
	lock := flock.New(dir, flock.SetFlag(os.O_RDONLY))
	if wait(lock, shared) != nil {
		// NFS locks only what is open for writing, and Windows only files.
		lock = flock.New(filepath.Join(dir, lockName), flock.SetFlag(os.O_CREATE|os.O_RDWR), flock.SetPermissions(0o644))
		if err := wait(lock, shared); err != nil {
			return &os.PathError{Op: "lock", Path: dir, Err: err}
		}
	}
	defer lock.Close()
	return do()
}

// wait waits for the lock through signals, which the Go runtime sends itself.
func wait(lock *flock.Flock, shared bool) error {
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
