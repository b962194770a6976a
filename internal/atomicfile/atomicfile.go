// Package atomicfile writes files that appear whole or not at all: a reader sees
// the old file until the new one is complete.
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

// writer writes files that appear whole or not at all.
type writer struct {
	// toDisk makes the contents of a file outlast a power cut. Without it a file system may write the new name
	// before them, and leave an empty file in place of the old one.
	toDisk func(*os.File) error
}

func newWriter() writer { return writer{(*os.File).Sync} }

// Write copies r to path, by way of a temporary file beside it that is renamed at
// the end. The file has mode, less the user's umask.
func Write(path string, r io.Reader, mode fs.FileMode) error {
	return newWriter().write(path, r, mode, os.Rename)
}

// Create is Write for a file that must not exist: the error is fs.ErrExist if it does when the new
// one is complete, even if it came meanwhile.
func Create(path string, r io.Reader, mode fs.FileMode) error {
	return newWriter().create(path, r, mode)
}

func (w writer) create(path string, r io.Reader, mode fs.FileMode) error {
	return w.write(path, r, mode, func(tmp, path string) error {
		err := os.Link(tmp, path)
		if err == nil || errors.Is(err, fs.ErrExist) {
			return err
		}
		// A file system without hard links.
		if _, exists := os.Lstat(path); exists == nil {
			return &fs.PathError{Op: "create", Path: path, Err: fs.ErrExist}
		}
		return os.Rename(tmp, path)
	})
}

// write copies r to a temporary file, and gives that its place.
func (w writer) write(path string, r io.Reader, mode fs.FileMode, place func(tmp, path string) error) error {
	tmp, err := createBeside(path, mode)
	if err != nil {
		return named(path, err)
	}
	defer os.Remove(tmp.Name()) //nolint:errcheck // it has its place, or nobody can do anything about it
	if _, err = io.Copy(tmp, r); err == nil {
		err = w.toDisk(tmp)
	}
	if err = errors.Join(err, tmp.Close()); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return named(path, place(tmp.Name(), path))
}

// named returns err with the name of the file in place of the temporary one.
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

// createBeside makes a new file in the folder of path. os.CreateTemp would make it
// private, and only the kernel knows the umask.
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
