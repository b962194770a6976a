// Package atomicfile writes files atomically: a reader sees the old file until the
// new one is complete.
package atomicfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// Write copies r to a temporary file in path's directory and renames it to path.
// The file has mode, less the user's umask.
func Write(path string, r io.Reader, mode fs.FileMode) error {
	return write(path, r, mode, (*os.File).Sync)
}

// write is Write with the function that syncs the file to disk. Without a sync, a power failure may leave an empty file
// in place of the old one.
func write(path string, r io.Reader, mode fs.FileMode, toDisk func(*os.File) error) error {
	tmp, err := createBeside(path, mode)
	if err != nil {
		return named(path, err)
	}
	defer os.Remove(tmp.Name()) //nolint:errcheck // already renamed, or a leftover at worst
	if _, err = io.Copy(tmp, r); err == nil {
		err = toDisk(tmp)
	}
	if err = errors.Join(err, tmp.Close()); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return named(path, os.Rename(tmp.Name(), path))
}

// named returns err with the file's name instead of the temporary name.
func named(path string, err error) error {
	var create *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &create):
		return &fs.PathError{Op: "create", Path: path, Err: create.Err}
	case errors.As(err, &link):
		return &fs.PathError{Op: "create", Path: path, Err: link.Err}
	}
	return err
}

// createBeside creates a file in path's directory with mode, less the umask.
// os.CreateTemp would make it private.
func createBeside(path string, mode fs.FileMode) (*os.File, error) {
	const attempts = 100
	for n := 1; ; n++ {
		name := filepath.Join(filepath.Dir(path), fmt.Sprintf(".%s.%x", filepath.Base(path), rand.Uint64()))
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, mode)
		if n == attempts || !errors.Is(err, fs.ErrExist) {
			return f, err
		}
	}
}
