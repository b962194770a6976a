// Package scratch makes temporary directories that do not outlive their process
// for long: what one that was killed left is removed by the next.
package scratch

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
)

const (
	prefix = "dsbuild-run-"
	// kept is how long a directory that nobody holds stays: long enough to look
	// into it after a crash, and to be made and locked.
	kept = 24 * time.Hour
)

// Dir is a directory of this process alone, that no other user can enter.
type Dir struct {
	Path string
	held *flock.Flock
}

// New makes a directory in parent, which is os.TempDir() where it is "", and
// removes those there that earlier processes of this user left.
func New(parent string) (*Dir, error) {
	if parent == "" {
		parent = os.TempDir()
	}
	sweep(parent)
	path, err := os.MkdirTemp(parent, prefix) // mode 0700
	if err != nil {
		return nil, err
	}
	// Where the file system has no locks nobody takes it for left.
	held := lockOf(path)
	if ok, err := held.TryLock(); !ok && err == nil {
		return nil, errors.New("lock " + path + ": another process holds it")
	}
	return &Dir{path, held}, nil
}

// Close removes the directory with all that is in it.
func (d *Dir) Close() error {
	if d == nil {
		return nil
	}
	// Before: what is open cannot be removed everywhere.
	return errors.Join(d.held.Close(), RemoveAll(d.Path))
}

// sweep removes what is left. What cannot be removed is tried again next time.
func sweep(parent string) {
	left, _ := filepath.Glob(filepath.Join(parent, prefix+"*"))
	for _, path := range left {
		info, err := os.Lstat(path)
		if err != nil || !ours(info) || time.Since(info.ModTime()) < kept {
			continue
		}
		// The lock ends with its process, however that ends.
		if lock := lockOf(path); free(lock) {
			_ = lock.Close()
			_ = RemoveAll(path)
		}
	}
}

// free takes a lock that nobody holds.
func free(lock *flock.Flock) bool {
	ok, err := lock.TryLock()
	return ok && err == nil
}

// RemoveAll removes a tree, directories that were made read-only included.
func RemoveAll(dir string) error {
	if os.RemoveAll(dir) == nil {
		return nil
	}
	_ = filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			_ = os.Chmod(path, 0o700) // what cannot be helped is told below
		}
		return nil
	})
	return os.RemoveAll(dir)
}
