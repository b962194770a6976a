package image

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// gzipLevel makes layers smaller than the wheel, in half the time of the best level.
const gzipLevel = 6

// content is the content of one layer.
type content struct {
	files     []file
	folders   map[string]bool // made by the layer, without a leading slash
	whiteouts []file
}

// addWhiteout adds a file that hides something of the base.
func (c *content) addWhiteout(dir, name string) {
	c.whiteouts = append(c.whiteouts, textFile(path.Join(dir, name), 0o644, nil))
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
			if strings.Contains("/"+f.path, "/"+whiteout) {
				return c, fmt.Errorf("/%s of %s: container runtimes take %s in a name for the removal of a file", f.path, i.name, whiteout)
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

// writeLayer writes the content into dir. Equal content and time give equal bytes.
func writeLayer(ctx context.Context, c content, at time.Time, dir string, media types.MediaType) (v1.Layer, error) {
	out, err := os.Create(filepath.Join(dir, "layer.tar.gz"))
	if err != nil {
		return nil, err
	}
	defer out.Close()
	// The header of gzip has neither name nor time.
	packed, err := gzip.NewWriterLevel(out, gzipLevel)
	if err != nil {
		return nil, err
	}
	if err := writeTar(ctx, packed, c, at); err != nil {
		return nil, err
	}
	if err := errors.Join(packed.Close(), out.Close()); err != nil {
		return nil, err
	}
	return tarball.LayerFromFile(out.Name(), tarball.WithMediaType(media))
}

// writeTar writes the entries, sorted by path. The owner is root, and the names of users are left out.
func writeTar(ctx context.Context, w io.Writer, c content, at time.Time) error {
	entries := slices.Concat(c.files, c.whiteouts)
	for dir := range c.folders {
		entries = append(entries, file{path: dir + "/", mode: 0o755})
	}
	slices.SortFunc(entries, func(x, y file) int { return strings.Compare(x.path, y.path) })
	t := tar.NewWriter(w)
	for _, f := range entries {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		h := &tar.Header{Name: f.path, Typeflag: tar.TypeReg, Mode: f.mode, Size: f.size, ModTime: at}
		if f.open == nil {
			h.Typeflag = tar.TypeDir
		}
		if err := t.WriteHeader(h); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
		if f.open == nil {
			continue
		}
		in, err := f.open()
		if err != nil {
			return err
		}
		_, err = io.Copy(t, in)
		if err := errors.Join(err, in.Close()); err != nil {
			return err
		}
	}
	return t.Close()
}
