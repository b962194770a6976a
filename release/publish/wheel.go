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
	"path/filepath"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/httpclient"
	"github.com/dsbuild/dsbuild/wheel"
)

// wheelFiles are the files beside a wheel, and last the wheel: once it is there, so are the others.
type wheelFiles []File

// File is a file to publish.
type File struct {
	Name   string
	Path   string
	Size   int64
	SHA256 string
	MD5    string
}

// main returns the wheel's own file.
func (w wheelFiles) main() File { return w[len(w)-1] }

// readWheels verifies and hashes the wheels and the files beside them.
func readWheels(ctx context.Context, paths []string) ([]wheelFiles, error) {
	var wheels []wheelFiles
	var wrong []error
	known := map[string]File{}
	folders := wheel.Folders{}
	for _, path := range paths {
		w, err := readWheel(ctx, path, folders)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			wrong = append(wrong, err)
			continue
		}
		name := w.main().Name
		if twin, twice := known[name]; twice {
			if twin.SHA256 != w.main().SHA256 {
				wrong = append(wrong, fault.New(fault.Usage, "publish one of them", "two wheels have the name %s: %s and %s", name, twin.Path, path))
			}
			continue
		}
		known[name] = w.main()
		wheels = append(wheels, w)
	}
	return wheels, errors.Join(wrong...)
}

// readWheel verifies one wheel.
func readWheel(ctx context.Context, path string, folders wheel.Folders) (wheelFiles, error) {
	if err := wheel.RefuseLink(path); err != nil {
		return nil, err
	}
	v, err := wheel.Verify(ctx, path)
	if err == nil {
		err = v.Err()
	}
	if err != nil {
		return nil, err
	}
	suffixes, err := folders.Beside(path)
	if err != nil {
		return nil, err
	}
	var w wheelFiles
	for _, suffix := range append(suffixes, "") {
		f, err := hashFile(path + suffix)
		if err != nil {
			return nil, err
		}
		w = append(w, f)
	}
	if w.main().SHA256 != v.SHA256 {
		return nil, changedError(path)
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

// changedError reports a file that changed after dsbuild verified it. Sending it again would not help.
func changedError(path string) error {
	err := httpclient.Permanent(fmt.Errorf("%s changed while dsbuild published it", path))
	return fault.WithHint(err, "publish it again when nothing writes to it")
}

// body reads a file once, and counts its bytes. If the file is no longer the verified one, the
// last read fails, so that no place gets a whole file with other bytes.
type body struct {
	file File
	in   io.ReadCloser
	sum  hash.Hash
	read int64
	sent func(int64)
}

// withBody opens a file and gives its body to do. If do fails, the bytes count as not sent.
func (f File) withBody(sent func(int64), do func(b *body) error) error {
	in, err := wheel.OpenRegular(f.Path)
	if err != nil {
		return err
	}
	b := &body{file: f, in: in, sum: sha256.New(), sent: sent}
	defer b.Close()
	if err := do(b); err != nil {
		sent(-b.read)
		return err
	}
	if b.read < f.Size { // the place had the bytes already
		sent(f.Size - b.read)
	}
	return nil
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.in.Read(p)
	b.sum.Write(p[:n])
	b.read += int64(n)
	whole := b.read == b.file.Size
	if b.read > b.file.Size || whole && hexSum(b.sum) != b.file.SHA256 || errors.Is(err, io.EOF) && !whole {
		return 0, changedError(b.file.Path)
	}
	b.sent(int64(n))
	return n, err
}

// Close closes the file.
func (b *body) Close() error { return b.in.Close() }
