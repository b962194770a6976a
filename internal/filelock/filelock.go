// Package filelock takes advisory locks of files and directories. The system releases a lock when the process that holds
// it ends, for any reason.
package filelock

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"
)

// Options are the options of Take. With the zero value, Take fails if another process holds the lock.
type Options struct {
	Shared  bool                // others may hold the lock too, if they share it
	Wait    time.Duration       // how long to wait for those who hold it
	Waiting func(holder string) // called once before a wait; optional
}

// HeldError reports a lock that another process holds.
type HeldError struct {
	Path   string
	Holder string // such as "process 4711 (dsbuild)", or "another process"
	Waited time.Duration
}

func (e *HeldError) Error() string {
	text := fmt.Sprintf("%s is locked by %s", e.Path, e.Holder)
	if e.Waited > 0 {
		text += fmt.Sprintf(", for more than %s", e.Waited)
	}
	return text
}

// Hint suggests the next step.
func (e *HeldError) Hint() string { return "wait until it ends, or end it, and rerun the command" }

const (
	// fileName is the file that is locked for its directory. Network file systems lock files for all machines, and
	// directories for one alone: nfs_dir_operations of Linux, for one, has no flock.
	fileName = ".dsbuild.lock"
	pause    = 20 * time.Millisecond
)

// Take takes the lock of a file, which it creates for this user alone, or of an existing directory. In a directory it
// creates the file .dsbuild.lock; if this user may not, it locks that of another user, or the directory itself. The caller
// releases the lock.
func Take(ctx context.Context, path string, opt Options) (release func(), err error) {
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return take(ctx, flock.New(path, flock.SetFlag(os.O_CREATE|os.O_RDWR), flock.SetPermissions(0o600)), opt)
	}
	file := filepath.Join(path, fileName)
	for _, lock := range []*flock.Flock{
		flock.New(file, flock.SetFlag(os.O_CREATE|os.O_RDWR), flock.SetPermissions(0o644)),
		flock.New(file, flock.SetFlag(os.O_RDONLY)),
		flock.New(path, flock.SetFlag(os.O_RDONLY)),
	} {
		if release, err = take(ctx, lock, opt); err == nil || ctx.Err() != nil || errors.As(err, new(*HeldError)) {
			break
		}
	}
	return release, err
}

func take(ctx context.Context, lock *flock.Flock, opt Options) (release func(), err error) {
	try := lock.TryLock
	if opt.Shared {
		try = lock.TryRLock
	}
	for began, told := time.Now(), false; ; told = true {
		got, err := try()
		switch {
		case err != nil:
			return nil, &fs.PathError{Op: "lock", Path: lock.Path(), Err: err}
		case got:
			return func() { _ = lock.Close() }, nil // the system releases it, too
		case time.Since(began) >= opt.Wait:
			return nil, &HeldError{lock.Path(), holder(lock.Path()), opt.Wait}
		case !told && opt.Waiting != nil:
			opt.Waiting(holder(lock.Path()))
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

// holder describes the process that holds the lock of a file, as Linux lists it in /proc/locks.
func holder(path string) string {
	locks, err := os.Open("/proc/locks")
	if err != nil {
		return "another process"
	}
	defer locks.Close()
	for s := bufio.NewScanner(locks); s.Scan(); { // 1: FLOCK  ADVISORY  WRITE 4711 08:02:1180 0 EOF
		words := strings.Fields(s.Text())
		if len(words) < 6 || words[1] != "FLOCK" || words[5] != inode(path) {
			continue
		}
		name, err := os.ReadFile(filepath.Join("/proc", words[4], "comm"))
		if err != nil {
			return "process " + words[4]
		}
		return fmt.Sprintf("process %s (%q)", words[4], strings.TrimSpace(string(name)))
	}
	return "another process"
}
