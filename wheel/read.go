package wheel

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// ManifestName is the manifest's file in a wheel's dist-info. A wheel's sidecar files have the
// wheel's name and a suffix: ManifestSuffix for its manifest, ByteCodeSuffix for the byte code of
// its modules.
const (
	ManifestName   = "dsbuild.json"
	ManifestSuffix = ".manifest.json"
	ByteCodeSuffix = ".bytecode.xz"
)

// ReadManifest reads the manifest inside the wheel at file, and fills in the SHA256 and the Size
// of the file.
func ReadManifest(file string) (Manifest, error) {
	a, err := Open(file)
	if err != nil {
		return Manifest{}, err
	}
	defer a.Close()
	m, err := a.readManifest()
	switch {
	case err != nil:
		return Manifest{}, err
	case m == nil:
		return Manifest{}, fileError(file, errors.New("no dsbuild manifest"), "build the wheel with dsbuild wheel")
	case m.Name != filepath.Base(file):
		return Manifest{}, fileError(file, fmt.Errorf("the manifest is of %s", m.Name), nameHint)
	}
	m.SHA256, m.Size, err = HashFile(file)
	return *m, err
}

// LinkError reports a symbolic link, a directory or a pipe instead of a regular file.
type LinkError struct {
	Path string
	Type fs.FileMode
}

func (e *LinkError) Error() string {
	if e.Type == fs.ModeSymlink {
		return e.Path + " is a symbolic link, which dsbuild does not follow"
	}
	return e.Path + " is not a file"
}

// Hint suggests a remedy.
func (e *LinkError) Hint() string { return "replace it with the file, or remove it" }

// ExitCode returns 2: invalid usage.
func (e *LinkError) ExitCode() int { return 2 }

// RequireRegular returns a *LinkError for a path that exists and is not a regular file.
func RequireRegular(path string) error {
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		return &LinkError{path, info.Mode().Type()}
	}
	return nil
}

// OpenFile opens a regular file for reading. It rejects anything else, because opening a pipe could block forever.
func OpenFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: path, Err: errors.New("not a regular file")}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// OpenRegular opens a file that will be published. It rejects symbolic links, because a link in a
// directory of wheels could point to any file of the user.
func OpenRegular(path string) (*os.File, error) {
	named, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !named.Mode().IsRegular() {
		return nil, &LinkError{path, named.Mode().Type()}
	}
	f, err := OpenFile(path)
	if err != nil {
		return nil, err
	}
	// Another process may have created a link since the Lstat.
	if opened, err := f.Stat(); err != nil || !os.SameFile(named, opened) {
		return nil, errors.Join(&LinkError{path, fs.ModeSymlink}, err, f.Close())
	}
	return f, nil
}

// HashFile returns the SHA-256 of a file in hex, and its size in bytes.
func HashFile(file string) (sum string, size int64, err error) { return hashOf(OpenFile(file)) }

// HashRegular is HashFile for a file that OpenRegular opens.
func HashRegular(file string) (sum string, size int64, err error) { return hashOf(OpenRegular(file)) }

// hashOf reads an opened file to its end.
func hashOf(f *os.File, err error) (sum string, size int64, _ error) {
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	h := sha256.New()
	// io.Copy would read 32 KB at once.
	if size, err = io.CopyBuffer(h, struct{ io.Reader }{f}, make([]byte, 128<<10)); err != nil {
		return "", 0, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return hex.EncodeToString(h.Sum(nil)), size, nil
}
