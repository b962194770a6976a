package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/gofrs/flock"
)

// lock locks the engine directory, so that one program at a time installs, starts or stops. It
// reports a wait for another program.
func (l Layout) lock(ctx context.Context, con *console) (unlock func(), err error) {
	// Only the user may enter the directory: access to the socket means root.
	if err := os.MkdirAll(l.Root, 0o700); err != nil {
		return nil, err
	}
	if err := os.Chmod(l.Root, 0o700); err != nil {
		return nil, err
	}
	f := flock.New(l.path("lock"))
	held, err := f.TryLock()
	if err == nil && !held {
		con.printLine("lock", "waiting for another run that holds %s", f.Path())
		_, err = f.TryLockContext(ctx, 100*time.Millisecond)
	}
	if err != nil {
		return nil, fmt.Errorf("locking %s: %w", f.Path(), err)
	}
	return func() { _ = f.Close() }, nil
}
