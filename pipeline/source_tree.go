package pipeline

import (
	"archive/tar"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// Limits on a source tree: far above any known tree, and far below a harmful size.
const (
	maxTreeFiles = 200_000
	maxTreeBytes = 2 << 30
	maxTreeName  = 1024 // bytes
	tooLargeHint = "remove data, environments and caches from the sources; in a git checkout, list them in .gitignore"
)

// tree is a directory and the selected files in it: their names are relative, with slashes.
// Because of root, no link leads out of it.
type tree struct {
	root  *os.Root
	names []string
	last  openFolder // the directory of the last file
}

// openFolder is the directory of the last requested file. It stays open, because an os.Root opens all
// directories on the way to a file, and names come directory by directory.
type openFolder struct {
	name string
	root *os.Root
}

// of returns the open directory of a file below top, and the file's name in it.
func (o *openFolder) of(top *os.Root, file string) (folder *os.Root, base string, err error) {
	name := path.Dir(file)
	if name == "." {
		return top, file, nil
	}
	if o.root == nil || o.name != name {
		root, err := top.OpenRoot(name)
		if err != nil {
			return nil, "", err
		}
		o.close()
		o.name, o.root = name, root
	}
	return o.root, path.Base(file), nil
}

func (o *openFolder) close() {
	if o.root != nil {
		o.root.Close() //nolint:errcheck // nothing is written through it
	}
}

func openTree(dir string) (*tree, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &tree{root: root}, nil
}

func (t *tree) close() {
	t.last.close()
	t.root.Close() //nolint:errcheck // nothing is written through it
}

// lstat describes a file, and a link itself.
func (t *tree) lstat(name string) (fs.FileInfo, error) {
	folder, base, err := t.last.of(t.root, name)
	if err != nil {
		return nil, err
	}
	return folder.Lstat(base)
}

// walkFiles selects all files, except environments and the files of version control.
func (t *tree) walkFiles() error {
	t.names = nil
	return fs.WalkDir(t.root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", ".hg", ".svn", "__pycache__"}, d.Name()):
			return fs.SkipDir
		case d.IsDir():
			if _, err := t.root.Lstat(path.Join(name, "pyvenv.cfg")); err == nil && name != "." {
				return fs.SkipDir
			}
			return nil
		case len(t.names) == maxTreeFiles:
			return tooMany()
		}
		t.names = append(t.names, name)
		return nil
	})
}

func tooMany() error {
	return fault.WithHint(fmt.Errorf("more than %d files", maxTreeFiles), tooLargeHint)
}

func tooLarge() error {
	return fault.WithHint(fmt.Errorf("more than %d bytes", int64(maxTreeBytes)), tooLargeHint)
}

// selectFiles drops stale and deleted files, and rejects files that cannot be copied.
func (t *tree) selectFiles(stale func(string) bool) error {
	var kept []string
	var total int64
	slices.Sort(t.names)
	for _, name := range slices.Compact(t.names) {
		if stale(name) {
			continue
		}
		info, err := t.lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted, but still in the index
		}
		if err == nil {
			err = t.checkCopyable(name, info)
		}
		if err != nil {
			return err
		}
		if total += info.Size(); total > maxTreeBytes {
			return tooLarge()
		}
		if kept = append(kept, name); len(kept) > maxTreeFiles {
			return tooMany()
		}
	}
	t.names = kept
	return nil
}

// checkCopyable returns why a file cannot be in a copy, or nil.
func (t *tree) checkCopyable(name string, info fs.FileInfo) error {
	switch {
	case info.Mode().IsRegular():
		return nil
	case info.Mode().Type() != fs.ModeSymlink:
		return fmt.Errorf("%s: neither a file nor a link: %v", name, info.Mode().Type())
	}
	to, err := t.root.Readlink(name)
	if err != nil {
		return err
	}
	// A dangling link is harmless and is kept.
	target, err := t.root.Stat(name)
	if err == nil && !target.Mode().IsRegular() && !target.IsDir() {
		return fmt.Errorf("%s links to %s, which is neither a file nor a directory: %v", name, to, target.Mode().Type())
	}
	if path.IsAbs(to) || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault.WithHint(fmt.Errorf("%s links to %s outside the sources", name, to),
			"replace the link with the file, or with a relative link to a file in the sources")
	}
	return nil
}

// hasFile reports whether the file name is selected. If name ends with a slash, it reports
// whether any file below it is.
func (t *tree) hasFile(name string) bool {
	i, found := slices.BinarySearch(t.names, name)
	return found || strings.HasSuffix(name, "/") && i < len(t.names) && strings.HasPrefix(t.names[i], name)
}

// packTar writes the tree as a tar.gz with the single directory top, and returns its SHA-256. Its
// output is reproducible: the names are sorted, and owner and times are fixed. Nothing is compressed,
// because the output of compressors changes.
func (t *tree) packTar(ctx context.Context, top, file string) (sum string, err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return "", err
	}
	defer func() {
		if closed := f.Close(); err == nil {
			err = closed
		}
		if err != nil {
			os.Remove(file) //nolint:errcheck // the error is told
		}
	}()
	h := sha256.New()
	zip, err := gzip.NewWriterLevel(io.MultiWriter(f, h), gzip.NoCompression)
	if err != nil {
		return "", err
	}
	w := tar.NewWriter(zip)
	for _, name := range withFolders(t.names) {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		if err := t.addFile(w, top, name); err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := errors.Join(w.Close(), zip.Close()); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// withFolders adds the directories of the names, each before its content.
func withFolders(names []string) []string {
	all := append([]string{"."}, names...)
	seen := map[string]bool{".": true}
	for _, name := range names {
		for dir := path.Dir(name); !seen[dir]; dir = path.Dir(dir) {
			seen[dir] = true
			all = append(all, dir)
		}
	}
	slices.Sort(all[1:])
	return all
}

// addFile writes one entry.
func (t *tree) addFile(w *tar.Writer, top, name string) error {
	info, err := t.lstat(name)
	if err != nil {
		return err
	}
	h := &tar.Header{Name: path.Join(top, name), Mode: 0o755, ModTime: packTime(), Format: tar.FormatPAX}
	switch {
	case info.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
		return w.WriteHeader(h)
	case info.Mode().Type() == fs.ModeSymlink:
		h.Typeflag, h.Mode = tar.TypeSymlink, 0o777
		if h.Linkname, err = t.root.Readlink(name); err != nil {
			return err
		}
		return w.WriteHeader(h)
	case info.Mode()&0o100 == 0:
		h.Mode = 0o644
	}
	folder, base, err := t.last.of(t.root, name)
	if err != nil {
		return err
	}
	f, err := folder.Open(base)
	if err != nil {
		return err
	}
	defer f.Close()
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	// tar detects a file that has grown or shrunk.
	if n, err := io.Copy(w, f); err != nil || n != h.Size {
		err = errors.Join(fmt.Errorf("changed from %d bytes while being copied", h.Size), err)
		return fault.WithHint(err, "stop the program that writes it, then retry")
	}
	return nil
}

// packTime returns the time of every entry: the same as in a wheel.
func packTime() time.Time { return time.Unix(1704067200, 0) }

// unpackTar unpacks a tar with a single top-level directory into root. It does not trust the tar: it rejects paths
// outside root, duplicate names, devices and excessive sizes. tree.checkCopyable checks the targets of links, as in a
// checkout.
func unpackTar(ctx context.Context, r io.Reader, root *os.Root) error {
	u := unpacker{root: root, left: maxTreeBytes}
	defer u.last.close()
	in := tar.NewReader(r)
	for n := 0; ; n++ {
		h, err := in.Next()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, io.EOF) && u.top == "":
			return errors.New("empty file")
		case errors.Is(err, io.EOF):
			// The padding of the last block and the checksum of gzip follow the tar.
			switch n, err := io.Copy(io.Discard, io.LimitReader(r, 1<<20)); {
			case err != nil:
				return fmt.Errorf("damaged: %w", err)
			case n == 1<<20:
				return errors.New("damaged: data after the end of the tar")
			}
			return nil
		case err != nil:
			return fmt.Errorf("not a readable tar: %w", err)
		case n == maxTreeFiles:
			return tooMany()
		}
		if err := u.unpackEntry(h, in); err != nil {
			return err
		}
	}
}

// unpacker holds the state of unpacking one tar.
type unpacker struct {
	root *os.Root
	top  string // the tar's folder
	left int64  // bytes that may still be unpacked
	last openFolder
}

func (u *unpacker) unpackEntry(h *tar.Header, content io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader { // git's: the commit
		return nil
	}
	name, err := u.insideTop(h.Name)
	if err != nil {
		return err
	}
	if h.Typeflag == tar.TypeDir {
		return u.root.MkdirAll(name, 0o755)
	}
	if name == "." {
		return fmt.Errorf("%s: the top is not a directory", h.Name)
	}
	if dir := path.Dir(name); dir != u.last.name {
		if err := u.root.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	folder, base, err := u.last.of(u.root, name)
	if err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg:
		err = u.writeFile(folder, base, h, content)
	case tar.TypeSymlink:
		err = folder.Symlink(h.Linkname, base)
	case tar.TypeLink:
		var target string
		if target, err = u.insideTop(h.Linkname); err == nil {
			err = u.root.Link(target, name)
		}
	default:
		return fmt.Errorf("%s: not a file, directory or link", h.Name)
	}
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s: occurs twice", h.Name)
	}
	return err
}

// insideTop returns the path of an entry in the tar's directory.
func (u *unpacker) insideTop(name string) (string, error) {
	clean := strings.TrimSuffix(strings.TrimPrefix(name, "./"), "/")
	if clean == "" {
		return ".", nil
	}
	if len(clean) > maxTreeName || !fs.ValidPath(clean) || strings.ContainsFunc(clean, unicode.IsControl) {
		return "", fmt.Errorf("%.80q: the name could refer to another directory", name)
	}
	top, rest, inside := strings.Cut(clean, "/")
	u.top = cmp.Or(u.top, top)
	if top != u.top {
		return "", fmt.Errorf("%s: outside the directory %s", clean, u.top)
	}
	if !inside {
		return ".", nil
	}
	return rest, nil
}

// writeFile writes a file of exactly the size in its header.
func (u *unpacker) writeFile(folder *os.Root, base string, h *tar.Header, content io.Reader) error {
	if h.Size < 0 || h.Size > u.left {
		return tooLarge()
	}
	u.left -= h.Size
	perm := fs.FileMode(0o644)
	if h.FileInfo().Mode()&0o100 != 0 {
		perm = 0o755
	}
	f, err := folder.OpenFile(base, os.O_CREATE|os.O_EXCL|os.O_WRONLY, perm)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, io.LimitReader(content, h.Size))
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil && n != h.Size {
		err = fmt.Errorf("%s: ends after %d of %d bytes", h.Name, n, h.Size)
	}
	return err
}
