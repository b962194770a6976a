package pipeline

import (
	"context"
	"time"

	"github.com/dsbuild/dsbuild/internal/filelock"
)

// lockWait is the timeout for another process that reads or writes the same directory of wheels. It holds the lock only
// while it copies a wheel.
const lockWait = 5 * time.Minute

// withLock runs do while it holds the lock of the directory dir. With shared, other readers may hold it at the same time.
func withLock(ctx context.Context, dir string, shared bool, do func() error) error {
	release, err := filelock.Take(ctx, dir, filelock.Options{Shared: shared, Wait: lockWait})
	if err != nil {
		return err
	}
	defer release()
	return do()
}
