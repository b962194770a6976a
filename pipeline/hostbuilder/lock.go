package hostbuilder

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gofrs/flock"
)

// errBusy means that another process holds the lock.
var errBusy = errors.New("another build holds it")

// hold is the way in which a lock is held.
type hold bool

const (
	alone  hold = false
	shared hold = true // along with others that want no more than to read
)

// tryLock takes the lock of a file, or returns errBusy. The system releases a lock when the process
// that holds it ends, for any reason.
func tryLock(path string, how hold) (unlock func(), err error) {
	lock := flock.New(path)
	take := lock.TryLock
	if how == shared {
		take = lock.TryRLock
	}
	got, err := take()
	if err == nil && !got {
		err = errBusy
	}
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { lock.Close() }, nil
}

// waitLock waits for a lock. It calls told once if it has to wait.
func waitLock(ctx context.Context, path string, how hold, told func()) (unlock func(), err error) {
	for first := true; ; first = false {
		unlock, err := tryLock(path, how)
		if !errors.Is(err, errBusy) {
			return unlock, err
		}
		if first {
			told()
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
