// Package scratch makes temporary directories that do not outlive their process
// for long: what one that was killed left is removed by the next.
package scratch

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
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
	held *os.File
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
	held, err := lock(path)
	if held == nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	return &Dir{path, held}, nil // without a lock where the file system has none: then nobody takes it for left
}

// Close removes the directory with all that is in it.
func (d *Dir) Close() error {
	if d == nil {
		return nil
	}
	defer d.held.Close() // which unlocks
	return RemoveAll(d.Path)
}

// lock opens a directory and locks it; the lock ends with the process, however
// that ends. With an error the file may be open all the same.
func lock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	return f, syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
}

// sweep removes what is left. What cannot be removed is tried again next time.
func sweep(parent string) {
	left, _ := filepath.Glob(filepath.Join(parent, prefix+"*"))
	for _, path := range left {
		info, err := os.Lstat(path)
		if err != nil || !ours(info) || time.Since(info.ModTime()) < kept {
			continue
		}
		f, err := lock(path)
		if err == nil {
			_ = RemoveAll(path)
		}
		if f != nil {
			f.Close()
		}
	}
}

// ours reports whether it is a directory as New makes them, for this user.
func ours(info fs.FileInfo) bool {
	owner, ok := info.Sys().(*syscall.Stat_t)
	return ok && info.Mode() == fs.ModeDir|0o700 && int(owner.Uid) == os.Geteuid()
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
