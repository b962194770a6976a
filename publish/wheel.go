package publish

import (
	"context"
	"crypto/md5" //nolint:gosec // S3 and the upload form name files by it
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/wheel"
)

// Wheel is a wheel with the files that travel with it.
type Wheel struct {
	// Files are the files beside the wheel, and last the wheel: once it is there, so are the others.
	Files    []File
	Manifest *wheel.Manifest // nil: dsbuild did not build it
}

// File is a file to publish.
type File struct {
	Name   string
	Path   string
	Size   int64
	SHA256 string
	MD5    string

	metadata []byte // METADATA of a wheel
}

// main returns the wheel's own file.
func (w Wheel) main() File { return w.Files[len(w.Files)-1] }

// Name returns the wheel's file name.
func (w Wheel) Name() string { return w.main().Name }

// readWheels verifies and hashes the wheels and the files beside them.
func readWheels(ctx context.Context, paths []string) ([]Wheel, error) {
	var wheels []Wheel
	var wrong []error
	known := map[string]File{}
	for _, path := range paths {
		w, err := readWheel(ctx, path)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			wrong = append(wrong, err)
			continue
		}
		if twin, twice := known[w.Name()]; twice {
			if twin.SHA256 != w.main().SHA256 {
				wrong = append(wrong, fault.WithHint(fmt.Errorf("two wheels have the name %s: %s and %s", w.Name(), twin.Path, path), "publish one of them"))
			}
			continue
		}
		known[w.Name()] = w.main()
		wheels = append(wheels, w)
	}
	return wheels, errors.Join(wrong...)
}

// readWheel verifies one wheel.
func readWheel(ctx context.Context, path string) (Wheel, error) {
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		return Wheel{}, &wheel.LinkError{Path: path, Type: info.Mode().Type()}
	}
	v, err := wheel.Verify(ctx, path)
	if err == nil {
		err = v.Err()
	}
	if err != nil {
		return Wheel{}, err
	}
	suffixes, err := wheel.Beside(path)
	if err != nil {
		return Wheel{}, err
	}
	a, err := wheel.Open(path)
	if err != nil {
		return Wheel{}, err
	}
	w := Wheel{Manifest: v.Manifest}
	metadata, err := a.MetadataText()
	if err = errors.Join(err, a.Close()); err != nil {
		return Wheel{}, err
	}
	for _, suffix := range append(suffixes, "") {
		f, err := hashFile(path + suffix)
		if err != nil {
			return Wheel{}, err
		}
		w.Files = append(w.Files, f)
	}
	w.Files[len(w.Files)-1].metadata = metadata
	if w.main().SHA256 != v.SHA256 {
		return Wheel{}, &changedError{path}
	}
	return w, nil
}

// hashFile describes a regular file.
func hashFile(path string) (File, error) {
	in, err := wheel.OpenRegular(path)
	if err != nil {
		return File{}, err
	}
	defer in.Close()
	sum, old := sha256.New(), md5.New() //nolint:gosec // as above
	size, err := io.Copy(io.MultiWriter(sum, old), in)
	if err != nil {
		return File{}, fmt.Errorf("%s: %w", path, err)
	}
	return File{Name: filepath.Base(path), Path: path, Size: size, SHA256: hexSum(sum), MD5: hexSum(old)}, nil
}

func hexSum(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)) }

// changedError reports a file that changed after dsbuild verified it.
type changedError struct{ path string }

func (e *changedError) Error() string { return e.path + " changed while dsbuild published it" }

// Permanent reports that sending it again would not help.
func (e *changedError) Permanent() bool { return true }

// Hint suggests the next step.
func (e *changedError) Hint() string { return "publish it again when nothing writes to it" }

// body reads a file once, and counts its bytes. If the file is no longer the verified one, the
// last read fails, so that no place gets a whole file with other bytes.
type body struct {
	file File
	in   io.ReadCloser
	sum  hash.Hash
	read int64
	sent func(int64)
}

// open opens the file to send it.
func (f File) open(sent func(int64)) (*body, error) {
	in, err := wheel.OpenRegular(f.Path)
	if err != nil {
		return nil, err
	}
	return &body{file: f, in: in, sum: sha256.New(), sent: sent}, nil
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.in.Read(p)
	b.sum.Write(p[:n])
	b.read += int64(n)
	whole := b.read == b.file.Size
	if b.read > b.file.Size || whole && hexSum(b.sum) != b.file.SHA256 || errors.Is(err, io.EOF) && !whole {
		return 0, &changedError{b.file.Path}
	}
	b.sent(int64(n))
	return n, err
}

// Close closes the file.
func (b *body) Close() error { return b.in.Close() }

// takeBack reports the bytes as not sent: the attempt failed.
func (b *body) takeBack() { b.sent(-b.read) }
