package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"
)

// lock takes the lock of the engine directory, so that one program at a time
// installs, starts or stops. It waits for another one, and says so.
func (l Layout) lock(ctx context.Context, con *console) (unlock func(), err error) {
	// Whoever reaches the socket is root: the directory is the user's alone.
	if err := os.MkdirAll(l.Root, 0o700); err != nil {
		return nil, err
	}
	if err := os.Chmod(l.Root, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(l.path("lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	for told := false; ; told = true {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			f.Close()
			return nil, fmt.Errorf("locking %s: %w", f.Name(), err)
		}
		if !told {
			holder, _ := os.ReadFile(f.Name())
			con.printLine("lock", "waiting for another run (%s) that holds %s", strings.TrimSpace(string(holder)), f.Name())
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	_ = f.Truncate(0)
	_, _ = f.WriteAt([]byte(fmt.Sprintf("process %d since %s\n", os.Getpid(), time.Now().Format(time.TimeOnly))), 0)
	return func() { f.Close() }, nil
}
