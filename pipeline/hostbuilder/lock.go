package hostbuilder

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gofrs/flock"
)

// The ways in which a lock is held: alone, or along with others that want no more than to read.
const (
	alone  = false
	shared = true
)

// tryLock takes the lock of a file if nobody else holds it. The system releases a lock when the process
// that holds it ends, for any reason.
func tryLock(path string, shared bool) (unlock func(), err error) {
	lock := flock.New(path)
	take := lock.TryLock
	if shared {
		take = lock.TryRLock
	}
	got, err := take()
	if err == nil && !got {
		err = errors.New("locked by another build")
	}
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { lock.Close() }, nil
}

// waitLock waits for a lock. It calls told if it has to wait.
func waitLock(ctx context.Context, path string, shared bool, told func()) (unlock func(), err error) {
	if unlock, err = tryLock(path, shared); err == nil {
		return unlock, nil
	}
	told()
	lock := flock.New(path)
	take := lock.TryLockContext
	if shared {
		take = lock.TryRLockContext
	}
	if _, err = take(ctx, 100*time.Millisecond); ctx.Err() != nil {
		return nil, context.Cause(ctx)
	} else if err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { lock.Close() }, nil
}
