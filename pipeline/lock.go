package pipeline

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
)

// lockName is the file that is locked if the directory itself cannot be.
const lockName = ".dsbuild.lock"

// withLock runs do while it holds the lock of the directory dir. With shared, other readers may
// hold it at the same time. The lock works between goroutines and between processes.
func withLock(ctx context.Context, dir string, shared bool, do func() error) error {
	if _, err := os.Stat(dir); err != nil {
		return err
	}
	lock := flock.New(dir, flock.SetFlag(os.O_RDONLY))
	err := waitForLock(ctx, lock, shared)
	if err != nil && ctx.Err() == nil {
		// NFS locks only files that are open for writing, and Windows locks no directories.
		lock = flock.New(filepath.Join(dir, lockName), flock.SetFlag(os.O_CREATE|os.O_RDWR), flock.SetPermissions(0o644))
		err = waitForLock(ctx, lock, shared)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return &os.PathError{Op: "lock", Path: dir, Err: err}
	}
	defer lock.Close()
	return do()
}

// waitForLock waits for the lock until ctx ends.
func waitForLock(ctx context.Context, lock *flock.Flock, shared bool) error {
	const pause = 20 * time.Millisecond
	take := lock.TryLockContext
	if shared {
		take = lock.TryRLockContext
	}
	_, err := take(ctx, pause)
	return err
}
