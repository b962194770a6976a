package wheel

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// ManifestName is the file in a wheel's dist-info that holds its manifest;
// ManifestSuffix is what the one beside the wheel adds to the wheel's name, and
// ByteCodeSuffix what the byte code of its modules does.
const (
	ManifestName   = "dsbuild.json"
	ManifestSuffix = ".manifest.json"
	ByteCodeSuffix = ".bytecode.xz"
)

// FileError is a file that is no usable wheel.
type FileError struct {
	Path string
	Err  error
	hint string
}

func (e *FileError) Error() string { return fmt.Sprintf("%s: %v", e.Path, e.Err) }
func (e *FileError) Unwrap() error { return e.Err }

// Hint says what to try.
func (e *FileError) Hint() string { return e.hint }

// ExitCode is that of a wheel that is damaged or not what was asked.
func (e *FileError) ExitCode() int { return 4 }

// ErrNoManifest is a wheel that dsbuild did not build.
var ErrNoManifest = errors.New("no dsbuild manifest inside")

// ReadManifest reads the manifest of the wheel at file, from inside it, and
// fills in the SHA256 and the Size of the file as it is.
func ReadManifest(file string) (Manifest, error) {
	a, err := Open(file)
	if err != nil {
		return Manifest{}, err
	}
	defer a.Close()
	inside, err := a.manifest()
	if err != nil {
		return Manifest{}, err
	}
	if inside == nil {
		return Manifest{}, &FileError{Path: file, Err: ErrNoManifest, hint: "build the wheel with dsbuild wheel"}
	}
	m := *inside
	if m.Name != filepath.Base(file) {
		return Manifest{}, &FileError{
			Path: file, Err: fmt.Errorf("its manifest names %s", m.Name),
			hint: nameHint,
		}
	}
	m.SHA256, m.Size, err = HashFile(file)
	return m, err
}

// HashFile returns the SHA-256 of a file in hex, and its size in bytes.
func HashFile(file string) (sum string, size int64, err error) {
	f, err := os.Open(file)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	h := sha256.New()
	// io.Copy would read 32 KB at once.
	if size, err = io.CopyBuffer(h, struct{ io.Reader }{f}, make([]byte, 128<<10)); err != nil {
		return "", 0, fmt.Errorf("%s: %w", file, err)
	}
	return hex.EncodeToString(h.Sum(nil)), size, nil
}
