// Package whole writes files that appear whole or not at all: who reads one while
// it is written sees what was there before.
package whole

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Write writes what r gives to path, under a temporary name beside it that is
// renamed at the end.
func Write(path string, r io.Reader, mode fs.FileMode) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) //nolint:errcheck // it was renamed, or nobody can do anything about it
	_, err = io.Copy(tmp, r)
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = os.Chmod(tmp.Name(), mode)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.Rename(tmp.Name(), path)
}
