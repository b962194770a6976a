package environment

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/atomicfile"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/httpclient"
	"github.com/dsbuild/dsbuild/internal/pyindex"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// Collector finds the files of a lock: next to the lockfile, in a directory, in the cache or on an index.
type Collector struct {
	Folder  string // directory of wheels to search first; optional
	Cache   string // directory of files by sha256
	Indexes []string
	Torch   string                           // base URL of torch's own indexes; optional
	Client  *pyindex.Client                  // nil disables downloads
	Sums    Sums                             // cache of the sha256 of local files
	Note    func(format string, args ...any) // reports a download
}

// damagedf returns the error of a file that differs from the lock.
func damagedf(format string, args ...any) error {
	return fault.WithCode(fmt.Errorf(format, args...), 4)
}

// Collect returns the local paths of files by sha256, after comparing their size and sha256 with the
// lock. Files that are not found locally are downloaded or, without a Client, omitted.
func (c *Collector) Collect(ctx context.Context, l *Lock, files []File) (map[string]string, error) {
	paths := map[string]string{}
	var lacking []File
	var size int64
	for _, f := range files {
		if paths[f.SHA256] != "" || slices.ContainsFunc(lacking, func(o File) bool { return o.SHA256 == f.SHA256 }) {
			continue
		}
		path, err := c.here(l, f)
		switch {
		case err != nil:
			return nil, err
		case path != "":
			paths[f.SHA256] = path
		case c.Client != nil:
			lacking, size = append(lacking, f), size+f.Size
		}
	}
	if len(lacking) > 0 && c.Note != nil {
		c.Note("%s to download, %s", ui.Count(len(lacking), "file"), ui.Size(size))
	}
	for _, f := range lacking {
		path, err := c.download(ctx, l, f)
		if err != nil {
			return nil, err
		}
		paths[f.SHA256] = path
	}
	return paths, nil
}

func (c *Collector) download(ctx context.Context, l *Lock, f File) (string, error) {
	if f.Path != "" {
		return "", fault.WithHint(damagedf("%s not found", localPath(l, f)),
			"copy the file there, or to the --files directory: the lockfile lists it as a local file")
	}
	path, size, err := c.fetch(ctx, f)
	if err == nil && size != f.Size {
		err = damagedf("%s has %d bytes on the index, but %d in the lockfile", f.File, size, f.Size)
	}
	return path, err
}

// localPath returns the path of a local wheel.
func localPath(l *Lock, f File) string {
	path := filepath.FromSlash(f.Path)
	if !filepath.IsAbs(path) {
		path = filepath.Join(l.Dir, path)
	}
	return path
}

// here returns the path of a file on this machine, or "". A file with different content is an error, except in the
// cache.
func (c *Collector) here(l *Lock, f File) (string, error) {
	var places []string
	if f.Path != "" {
		places = append(places, localPath(l, f))
	}
	if c.Folder != "" {
		places = append(places, filepath.Join(c.Folder, f.File))
	}
	for _, path := range append(places, c.cached(f)) {
		sum, size, err := c.Sums.Sum(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return "", err
		case sum == f.SHA256 && size == f.Size:
			return path, nil
		case path == c.cached(f): // damaged: it is fetched again
		default:
			err := damagedf("%s has sha256 %s and %d bytes, but %s and %d in the lockfile", path, sum, size, f.SHA256, f.Size)
			return "", fault.WithHint(err, "restore the locked file, or re-lock: %s", lockAgain())
		}
	}
	return "", nil
}

// cached returns the path of a file in the cache.
func (c *Collector) cached(f File) string { return filepath.Join(c.Cache, f.SHA256, f.File) }

// fetch downloads a file from an index to the cache, and returns its path and size. The cache gets
// the complete file with the right sha256, or nothing.
func (c *Collector) fetch(ctx context.Context, f File) (path string, size int64, err error) {
	indexes := c.Indexes
	if m := torchLocal.FindStringSubmatch(f.Version); m != nil && f.Name == "torch" && c.Torch != "" {
		indexes = []string{c.Torch + "/" + m[1]}
	}
	found, err := c.inIndexes(ctx, indexes, f.Name, func(o pyindex.File) bool {
		return o.Name == f.File && (o.SHA256 == "" || strings.EqualFold(o.SHA256, f.SHA256))
	})
	if err != nil {
		return "", 0, fmt.Errorf("%s: %w", f.File, err)
	}
	if len(found) == 0 {
		return "", 0, fault.WithHint(fmt.Errorf("%s (sha256 %.12s) not found on any index", f.File, f.SHA256),
			"pass --files DIR, or re-lock: %s", lockAgain())
	}
	path = c.cached(f)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", 0, err
	}
	if c.Note != nil {
		size := ""
		if f.Size > 0 { // listed on the index
			size = " (" + ui.Size(f.Size) + ")"
		}
		c.Note("downloading %s%s", f.File, size)
	}
	err = c.Client.Download(ctx, found[0], func(in io.Reader) error {
		return atomicfile.Write(path, &checkedReader{r: in, want: f, sum: sha256.New()}, 0o644)
	})
	if err != nil {
		return "", 0, fmt.Errorf("%s: %w", f.File, err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", 0, err
	}
	return path, info.Size(), nil
}

// Find returns the wheel of one version of a package for a node type. Only files whose sha256 is in
// sums are considered, or all files if sums is nil.
func (c *Collector) Find(ctx context.Context, name, version, python string, k Platform, sums []string) (File, error) {
	all, err := c.wheelsOf(ctx, name, version, sums)
	var f File
	if err == nil {
		f, err = choose(all, python, k)
	}
	if err != nil {
		return File{}, fmt.Errorf("%s %s: %w", name, version, err)
	}
	if f.Size == 0 {
		_, f.Size, err = c.fetch(ctx, f)
	}
	return f, err
}

// wheelsOf lists the wheels of one version of a package on the indexes whose sha256 is in sums. If sums is
// nil, it lists all wheels that have one.
func (c *Collector) wheelsOf(ctx context.Context, name, version string, sums []string) ([]File, error) {
	found, err := c.inIndexes(ctx, c.Indexes, name, func(o pyindex.File) bool {
		return o.Wheel != nil && o.Version == version && o.SHA256 != ""
	})
	if err != nil {
		return nil, err
	}
	var all []File
	for _, o := range found {
		if sum := strings.ToLower(o.SHA256); sums == nil || slices.Contains(sums, sum) {
			all = append(all, File{Name: name, Version: version, File: o.Name, SHA256: sum, Size: o.Size})
		}
	}
	if len(found) > 0 && len(all) == 0 {
		err := damagedf("no file on the index has a sha256 that this dsbuild accepts")
		return nil, fault.WithHint(err,
			"mirror the published files to the index, or select another index with --index-url")
	}
	return all, nil
}

// inIndexes returns the files of a project that fits accepts, from the first index that has one.
func (c *Collector) inIndexes(
	ctx context.Context, indexes []string, project string, fits func(pyindex.File) bool,
) ([]pyindex.File, error) {
	var failed error
	for _, index := range indexes {
		files, err := c.Client.Files(ctx, index, project)
		if err != nil && !errors.Is(err, pyindex.ErrNoProject) {
			failed = errors.Join(failed, err)
		}
		var found []pyindex.File
		for _, f := range files {
			if fits(f) {
				found = append(found, f)
			}
		}
		if len(found) > 0 {
			return found, nil
		}
	}
	return nil, failed
}

// checkedReader returns an error if the content has a different sha256 or, if the lock has a size, a different size.
// It stops after the first excess byte.
type checkedReader struct {
	r    io.Reader
	want File
	sum  hash.Hash
	size int64
}

// Read implements io.Reader.
func (c *checkedReader) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.sum.Write(b[:n])
	c.size += int64(n)
	if limit := cmp.Or(c.want.Size, maxFile); c.size > limit {
		return 0, httpclient.Permanent(damagedf("%s has more than %d bytes on the index", c.want.File, limit))
	}
	if err == io.EOF {
		if got := hex.EncodeToString(c.sum.Sum(nil)); got != c.want.SHA256 {
			return n, damagedf("%s has sha256 %s on the index, but %s in the lockfile", c.want.File, got, c.want.SHA256)
		}
	}
	return n, err
}

// maxFile bounds a file whose size no index lists, in bytes: torch's wheels have up to 3 GB.
const maxFile = 8 << 30
