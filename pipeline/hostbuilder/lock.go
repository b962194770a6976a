package hostbuilder

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// errBusy is a lock that another process holds.
var errBusy = errors.New("another build holds it")

// tryLock takes the lock of a file (LOCK_SH or LOCK_EX), or returns errBusy.
// Locks end with the process that holds them, however that ends.
func tryLock(path string, how int) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = errBusy
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}

// waitLock waits for a lock; told is called once if that takes any time.
func waitLock(ctx context.Context, path string, how int, told func()) (unlock func(), err error) {
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
