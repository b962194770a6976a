package image

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"deps.dev/util/pypi"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/dsbuild/dsbuild/wheel"
)

// Names of files in a layer that hide files of the layers below (OCI image specification).
const (
	whiteout       = ".wh."
	opaqueWhiteout = ".wh..wh..opq"
)

// Limits of the files of a base, which may come from strangers.
const (
	maxEntries = 1_000_000 // in all layers
	maxBytes   = 128 << 20 // of names and of the contents that are kept
	maxPath    = 4096
	maxLinks   = 40 // that lead from one to the next
	maxContent = 16 << 20
)

// tree holds the paths of a base's files as a container sees them. Paths have no leading slash.
type tree struct {
	root   entry
	keep   []string // normalised names of the distributions whose RECORD is kept
	passed int      // entries that were read
	bytes  int64    // that they take
}

// entry is a folder, a file or a symbolic link.
type entry struct {
	below map[string]*entry // nil: no folder
	link  string
	text  []byte // of the few files whose content says something about the base
}

// change is an entry of a layer.
type change struct {
	path     string
	entry    *entry
	hardLink string // the path of the file that it shares
}

// readTree reads all layers of an image.
func readTree(ctx context.Context, image v1.Image, keep []string) (*tree, error) {
	layers, err := image.Layers()
	if err != nil {
		return nil, err
	}
	t := &tree{root: newFolder(), keep: keep}
	for i, layer := range layers {
		if err := t.addLayer(ctx, layer); err != nil {
			return nil, errors.Join(context.Cause(ctx), fmt.Errorf("layer %d: %w", i+1, err))
		}
	}
	return t, nil
}

func newFolder() entry { return entry{below: map[string]*entry{}} }

// addLayer puts a layer on those below it. Its digest is compared: libraries do not compare that of
// a layer on disk.
func (t *tree) addLayer(ctx context.Context, layer v1.Layer) error {
	want, err := layer.DiffID()
	if err != nil {
		return err
	}
	in, err := layer.Uncompressed()
	if err != nil {
		return err
	}
	defer in.Close()
	sum := sha256.New()
	r := io.TeeReader(wheel.NewContextReader(ctx, in), sum)
	changes, err := t.readLayer(tar.NewReader(r))
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, r); err != nil { // bytes behind the tar belong to the digest
		return err
	}
	if have := hex.EncodeToString(sum.Sum(nil)); have != want.Hex {
		return fmt.Errorf("it has the digest sha256:%s instead of %s", have, want)
	}
	t.apply(changes)
	return nil
}

// readLayer returns the entries of a layer.
func (t *tree) readLayer(entries *tar.Reader) ([]change, error) {
	var changes []change
	for {
		h, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return changes, nil
		}
		if err != nil {
			return nil, err
		}
		c := change{path: relative(h.Name), entry: &entry{}}
		switch h.Typeflag {
		case tar.TypeDir:
			*c.entry = newFolder()
		case tar.TypeSymlink:
			c.entry.link = h.Linkname
		case tar.TypeLink:
			c.hardLink = relative(h.Linkname)
		case tar.TypeReg:
			if t.speaks(c.path) {
				if c.entry.text, err = io.ReadAll(io.LimitReader(entries, maxContent)); err != nil {
					return nil, err
				}
			}
		}
		t.passed++
		t.bytes += int64(len(c.path) + len(h.Linkname) + len(c.entry.text))
		if len(c.path) > maxPath || t.passed > maxEntries || t.bytes > maxBytes {
			return nil, fmt.Errorf("more than dsbuild reads: %d files, %d bytes of names, paths of %d bytes", maxEntries, maxBytes, maxPath)
		}
		changes = append(changes, c)
	}
}

// relative cleans the path of an entry; it cannot leave the root.
func relative(name string) string {
	return strings.TrimPrefix(path.Clean("/"+name), "/")
}

// speaks reports whether the content of a file is of interest. The folders above it do not matter:
// uv installs hard links to files of its cache.
func (t *tree) speaks(name string) bool {
	dir, file := path.Split(name)
	switch file {
	case "libc.so.6":
		return true
	case "version.py":
		return path.Base(dir) == "torch"
	case "RECORD":
		d, ok := parseDistInfo(path.Base(dir))
		return ok && slices.Contains(t.keep, pypi.CanonPackageName(d.name))
	}
	return false
}

// apply changes the tree. What a layer hides goes first, wherever that is said in it.
func (t *tree) apply(changes []change) {
	for _, c := range changes {
		file := path.Base(c.path)
		folder := t.at(t.folderOf(c.path))
		hidden, isWhiteout := strings.CutPrefix(file, whiteout)
		switch {
		case folder == nil:
		case file == opaqueWhiteout:
			clear(folder.below)
		case isWhiteout:
			delete(folder.below, hidden)
		}
	}
	for _, c := range changes {
		file := path.Base(c.path)
		if c.path == "" || strings.HasPrefix(file, whiteout) {
			continue
		}
		folder := t.makeFolder(t.folderOf(c.path))
		if c.hardLink != "" {
			if shared := t.at(t.real(c.hardLink)); shared != nil {
				c.entry = shared
			}
		}
		if have := folder.below[file]; have != nil && have.below != nil && c.entry.below != nil {
			continue // the folder stays
		}
		folder.below[file] = c.entry
	}
}

// at returns the entry at a path without links, nil if there is none.
func (t *tree) at(name string) *entry {
	e := &t.root
	if name == "" || name == "." {
		return e
	}
	for part := range strings.SplitSeq(name, "/") {
		if e = e.below[part]; e == nil {
			return nil
		}
	}
	return e
}

// makeFolder returns the folder at a path without links. It takes the place of files.
func (t *tree) makeFolder(name string) *entry {
	e := &t.root
	if name == "." {
		return e
	}
	for part := range strings.SplitSeq(name, "/") {
		child := e.below[part]
		if child == nil || child.below == nil {
			made := newFolder()
			child = &made
			e.below[part] = child
		}
		e = child
	}
	return e
}

// folderOf returns the folder of a path, "." for the root, with the links on the way followed.
func (t *tree) folderOf(name string) string { return path.Dir(t.real(name)) }

// real follows the symbolic links in the folders of a path, as the kernel of a container does.
func (t *tree) real(name string) string {
	for range maxLinks {
		next := t.follow(name)
		if next == name {
			break
		}
		name = next
	}
	return name
}

// follow replaces the first folder of a path that is a link.
func (t *tree) follow(name string) string {
	e := &t.root
	for i, c := range name {
		if c != '/' {
			continue
		}
		if e = e.below[path.Base(name[:i])]; e == nil {
			return name
		}
		if e.link == "" {
			continue
		}
		to := e.link
		if !strings.HasPrefix(to, "/") {
			to = path.Join("/", path.Dir(name[:i]), to)
		}
		return relative(path.Join(to, name[i:]))
	}
	return name
}

// taken returns the path of the base's file that a new file would replace: one at its path, or in
// the place of one of its folders; "" if there is none.
func (t *tree) taken(name string) string {
	name = t.real(name)
	for i, c := range name + "/" {
		if c != '/' {
			continue
		}
		e := t.at(name[:i])
		if e == nil {
			return ""
		}
		if e.below == nil || i == len(name) {
			return name[:i]
		}
	}
	return ""
}

// folders calls visit with each folder, in no order.
func (e *entry) folders(at string, visit func(at string, e *entry)) {
	visit(at, e)
	for name, child := range e.below {
		if child.below != nil {
			child.folders(path.Join(at, name), visit)
		}
	}
}
