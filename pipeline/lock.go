package pipeline

import (
	"os"
	"path/filepath"
	"syscall"
)

// lockName is the file that is locked where a directory itself cannot be.
const lockName = ".dsbuild.lock"

// locked runs do while it alone has the directory dir; with shared, along with
// others that want no more than to read. It holds between goroutines and
// between processes.
func locked(dir string, shared bool, do func() error) error {
	how := syscall.LOCK_EX
	if shared {
		how = syscall.LOCK_SH
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close() // which unlocks
	if flock(f, how) == nil {
		return do()
	}
	// NFS locks only what is open for writing.
	file, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := flock(file, how); err != nil {
		return &os.PathError{Op: "lock", Path: dir, Err: err}
	}
	return do()
}

// flock waits for the lock through signals, which the Go runtime sends itself.
func flock(f *os.File, how int) error {
	for {
		if err := syscall.Flock(int(f.Fd()), how); err != syscall.EINTR { //nolint:errorlint // a bare errno
			return err
		}
	}
}
