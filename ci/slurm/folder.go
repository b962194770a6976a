//go:build linux

package slurm

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/dsbuild/dsbuild/internal/hint"
)

// home is where clusters have their folders. Munge wants no one but root to be
// able to write to any folder above its socket, and everybody to be able to
// reach it; so they are neither in a temporary folder nor in root's home.
const home = "/var/lib/dsbuild-slurm"

// folder is the name of a cluster's folder.
type folder string

func (f folder) dir() string      { return filepath.Join(home, string(f)) }
func (f folder) lockFile() string { return filepath.Join(f.dir(), "lock") }

// newFolder makes the folder of a new cluster. The lock, to be handed on to the
// cluster's first process, is held for as long as that lives.
func newFolder(name string) (*os.File, folder, error) {
	f := folder(name)
	if name == "" {
		f = folder(rand.Text()[:8])
	}
	lock, err := f.lock()
	if err != nil {
		return nil, "", err
	}
	if lock == nil {
		return nil, "", hint.With(fmt.Errorf("a cluster %s is up already (%s)", f, f.dir()), "use it, or take it down first")
	}
	if err := f.emptyFolder(); err != nil {
		lock.Close()
		return nil, "", err
	}
	return lock, f, nil
}

// lock makes the folder, if it is missing, and takes the lock of its cluster;
// nil means that the cluster lives.
func (f folder) lock() (*os.File, error) {
	for {
		if err := os.MkdirAll(f.dir(), 0o755); err != nil {
			return nil, err
		}
		file, err := os.OpenFile(f.lockFile(), os.O_CREATE|os.O_RDWR, 0o644)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		switch err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
		case errors.Is(err, syscall.EWOULDBLOCK):
			file.Close()
			return nil, nil
		case err != nil:
			file.Close()
			return nil, fmt.Errorf("locking %s: %w", file.Name(), err)
		}
		mine, err := file.Stat()
		if there, err2 := os.Stat(f.lockFile()); err == nil && err2 == nil && os.SameFile(mine, there) {
			return file, nil
		}
		file.Close() // its holder removed it with the folder
	}
}

// emptyFolder removes the contents of the folder except the lock.
func (f folder) emptyFolder() error {
	entries, err := os.ReadDir(f.dir())
	if err != nil {
		return err
	}
	for _, e := range entries {
		if path := filepath.Join(f.dir(), e.Name()); path != f.lockFile() {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
	}
	return nil
}

// removeFolder removes the folder of a cluster whose lock is held: the lock last.
func (f folder) removeFolder() error {
	var err error
	for range 20 {
		// The last processes may be in the middle of writing a file.
		if err = f.emptyFolder(); err == nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err == nil {
		err = os.RemoveAll(f.dir())
	}
	os.Remove(home) // unless there are others
	return err
}

// removeLeftovers removes the folders of clusters that live no more.
func removeLeftovers() error {
	entries, err := os.ReadDir(home)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		f := folder(e.Name())
		lock, err := f.lock()
		if lock != nil {
			err = f.removeFolder()
			lock.Close()
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
