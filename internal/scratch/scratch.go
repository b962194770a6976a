// Package scratch makes temporary directories. If a process is killed, a later process removes its
// directory.
package scratch

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
)

const (
	prefix = "dsbuild-run-"
	// kept is how long an unlocked directory stays: long enough to inspect it after a crash, and for a
	// process to make and lock it.
	kept = 24 * time.Hour
)

// Dir is a directory for this process. Other users cannot enter it.
type Dir struct {
	Path string
	held *flock.Flock
}

// New makes a directory in parent, or in os.TempDir() if parent is "". It also removes
// directories there that earlier processes of this user left.
func New(parent string) (*Dir, error) {
	parent = cmp.Or(parent, os.TempDir())
	// Remove abandoned directories. If one cannot be removed, the next sweep retries.
	left, _ := filepath.Glob(filepath.Join(parent, prefix+"*"))
	for _, path := range left {
		info, err := os.Lstat(path)
		if err != nil || !ours(info) || time.Since(info.ModTime()) < kept {
			continue
		}
		// The lock ends with its process, even if the process crashes.
		lock := lockOf(path)
		if ok, err := lock.TryLock(); ok && err == nil {
			_ = lock.Close()
			_ = RemoveAll(path)
		}
	}
	path, err := os.MkdirTemp(parent, prefix) // mode 0700
	if err != nil {
		return nil, err
	}
	// On a file system without locks, no other process treats the directory as abandoned.
	held := lockOf(path)
	if ok, err := held.TryLock(); !ok && err == nil {
		return nil, errors.New("lock " + path + ": held by another process")
	}
	return &Dir{path, held}, nil
}

// Close removes the directory with all its contents.
func (d *Dir) Close() error {
	if d == nil {
		return nil
	}
	// Close the lock file first: some systems cannot remove an open file.
	return errors.Join(d.held.Close(), RemoveAll(d.Path))
}

// RemoveAll removes a tree, including directories that are read-only.
func RemoveAll(dir string) error {
	if os.RemoveAll(dir) == nil {
		return nil
	}
	_ = filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			_ = os.Chmod(path, 0o700) // the RemoveAll below reports failures
		}
		return nil
	})
	return os.RemoveAll(dir)
}
