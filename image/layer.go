package image

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/dsbuild/dsbuild/wheel"
)

// Names of files in a layer that hide files of the layers below (OCI image specification).
const (
	whiteout       = ".wh."
	opaqueWhiteout = ".wh..wh..opq"
)

// gzipLevel makes layers smaller than the wheel, in half the time of the best level.
const gzipLevel = 6

// content is the content of one layer.
type content struct {
	files   []file
	folders map[string]bool // made by the layer, without a leading slash
	hidden  []string        // files and folders of the base that the layer hides
	opaque  []string        // folders of which nothing of the base shows
}

// combine returns the content of several installations. Two wheels must not write one file.
func combine(all []*installation) (content, error) {
	c := content{folders: map[string]bool{}}
	owner := map[string]string{}
	for _, i := range all {
		site := strings.TrimPrefix(i.target.site, "/")
		for _, f := range i.files {
			if other := owner[f.path]; other != "" {
				return c, fmt.Errorf("%s and %s both have /%s", other, i.name, f.path)
			}
			if strings.HasPrefix(path.Base(f.path), whiteout) {
				return c, fmt.Errorf("/%s of %s: container runtimes take a file of this name for the removal of another", f.path, i.name)
			}
			owner[f.path] = i.name
			c.files = append(c.files, f)
			for dir := path.Dir(f.path); strings.HasPrefix(dir, site+"/"); dir = path.Dir(dir) {
				c.folders[dir] = true
			}
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(c.folders)) {
		if other := owner[dir]; other != "" {
			return c, fmt.Errorf("/%s is a file of %s, and a folder of another wheel", dir, other)
		}
	}
	return c, nil
}

// headers returns the entries of the tar, sorted by path, with the files that have contents.
func (c content) headers(at time.Time) ([]*tar.Header, map[string]file) {
	byPath := make(map[string]file, len(c.files))
	var out []*tar.Header
	add := func(name string, kind byte, mode, size int64) {
		out = append(out, &tar.Header{Name: name, Typeflag: kind, Mode: mode, Size: size, ModTime: at})
	}
	for dir := range c.folders {
		add(dir+"/", tar.TypeDir, 0o755, 0)
	}
	for _, f := range c.files {
		byPath[f.path] = f
		add(f.path, tar.TypeReg, f.mode, f.size)
	}
	for _, p := range c.hidden {
		add(path.Join(path.Dir(p), whiteout+path.Base(p)), tar.TypeReg, 0o644, 0)
	}
	for _, dir := range c.opaque {
		add(path.Join(dir, opaqueWhiteout), tar.TypeReg, 0o644, 0)
	}
	slices.SortFunc(out, func(x, y *tar.Header) int { return strings.Compare(x.Name, y.Name) })
	return out, byPath
}

// layer is a gzipped tar in a file of ours.
type layer struct {
	path           string
	digest, diffID v1.Hash
	size           int64
	media          types.MediaType
}

// writeLayer writes the content into dir. Equal content and time give equal bytes.
func writeLayer(ctx context.Context, c content, at time.Time, dir string) (*layer, error) {
	l := &layer{path: filepath.Join(dir, "layer.tar.gz"), media: types.OCILayer}
	out, err := os.Create(l.path)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	sum := &counter{Hash: sha256.New()}
	// The header of gzip has neither name nor time.
	packed, err := gzip.NewWriterLevel(io.MultiWriter(out, sum), gzipLevel)
	if err != nil {
		return nil, err
	}
	plain := sha256.New()
	if err := writeTar(ctx, io.MultiWriter(packed, plain), c, at); err != nil {
		return nil, err
	}
	if err := errors.Join(packed.Close(), out.Close()); err != nil {
		return nil, err
	}
	l.digest, l.diffID, l.size = hashOf(sum), hashOf(plain), sum.n
	return l, nil
}

// writeTar writes the entries. The owner is root, and the names of users are left out.
func writeTar(ctx context.Context, w io.Writer, c content, at time.Time) error {
	t := tar.NewWriter(w)
	headers, files := c.headers(at)
	for _, h := range headers {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := t.WriteHeader(h); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
		if f, ok := files[h.Name]; ok {
			if err := copyFile(t, f); err != nil {
				return err
			}
		}
	}
	return t.Close()
}

func copyFile(w io.Writer, f file) error {
	in, err := f.open()
	if err != nil {
		return err
	}
	defer in.Close()
	_, err = io.Copy(w, in)
	return err
}

// counter hashes and counts bytes.
type counter struct {
	hash.Hash
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return c.Hash.Write(p)
}

func hashOf(h hash.Hash) v1.Hash {
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(h.Sum(nil))}
}

// Digest returns the digest of the compressed layer.
func (l *layer) Digest() (v1.Hash, error) { return l.digest, nil }

// DiffID returns the digest of the tar.
func (l *layer) DiffID() (v1.Hash, error) { return l.diffID, nil }

// Compressed opens the layer.
func (l *layer) Compressed() (io.ReadCloser, error) { return os.Open(l.path) }

// Size returns the size of the compressed layer.
func (l *layer) Size() (int64, error) { return l.size, nil }

// MediaType returns the type that fits the base's manifest.
func (l *layer) MediaType() (types.MediaType, error) { return l.media, nil }

// asLayer makes it a layer of go-containerregistry.
func (l *layer) asLayer() (v1.Layer, error) { return partial.CompressedToLayer(l) }

// openWheels opens verified wheels.
func openWheels(paths []string) (all []*wheel.Archive, err error) {
	for _, p := range paths {
		a, err := wheel.Open(p)
		if err != nil {
			return all, err
		}
		all = append(all, a)
	}
	return all, nil
}
