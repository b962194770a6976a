package pipeline

import (
	"archive/tar"
	"bytes"
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

	"github.com/dsbuild/dsbuild/internal/hint"
)

// Bounds of a tree of sources: far above those of any known one, and far below
// what hurts.
const (
	maxTreeFiles = 200_000
	maxTreeBytes = 2 << 30
	maxTreeName  = 1024 // bytes
	tooLargeHint = "are data, an environment or a cache among the sources? In a git checkout a .gitignore leaves them out"
)

// tree is a directory of which the files names are meant: relative, with
// slashes. Through root no link leads out of it.
type tree struct {
	root  *os.Root
	names []string
}

func openTree(dir string) (*tree, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &tree{root: root}, nil
}

// scratchTree makes an empty tree below dir; done removes it.
func scratchTree(dir string) (t *tree, done func(), err error) {
	place, err := os.MkdirTemp(dir, ".tree-")
	if err != nil {
		return nil, nil, err
	}
	if t, err = openTree(place); err != nil {
		_ = os.Remove(place) // it is empty
		return nil, nil, err
	}
	return t, func() {
		t.root.Close()      //nolint:errcheck // nothing was written through it
		os.RemoveAll(place) //nolint:errcheck // the caller removes dir anyway
	}, nil
}

// walk takes all files for names, but no environments and nothing of version
// control.
func (t *tree) walk() error {
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
	return hint.With(fmt.Errorf("more than %d files", maxTreeFiles), tooLargeHint)
}

func tooLarge() error {
	return hint.With(fmt.Errorf("more than %d bytes", int64(maxTreeBytes)), tooLargeHint)
}

// keep leaves out what is stale and what is not there any more, and refuses
// what cannot be copied.
func (t *tree) keep(stale func(string) bool) error {
	var kept []string
	var total int64
	slices.Sort(t.names)
	for _, name := range slices.Compact(t.names) {
		if stale(name) {
			continue
		}
		info, err := t.root.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted, but not yet from the index
		}
		if err == nil {
			err = t.copyable(name, info)
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

// copyable says why a file cannot be in a copy.
func (t *tree) copyable(name string, info fs.FileInfo) error {
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
	// A link to nowhere is harmless: it stays one.
	if _, err := t.root.Stat(name); path.IsAbs(to) || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return hint.With(fmt.Errorf("%s: a link to %s, which is not among the sources", name, to), "put the file itself there, or a relative link to one within")
	}
	return nil
}

// has reports whether the file name is meant, or with a slash at the end any
// below it.
func (t *tree) has(name string) bool {
	i, found := slices.BinarySearch(t.names, name)
	return found || strings.HasSuffix(name, "/") && i < len(t.names) && strings.HasPrefix(t.names[i], name)
}

// read returns the content of a file of at most limit bytes.
func (t *tree) read(name string, limit int64) ([]byte, error) {
	f, err := t.root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = fmt.Errorf("%s: larger than %d bytes", name, limit)
	}
	return text, err
}

// pack writes the tree as a tar.gz whose one folder is top, and returns its
// SHA-256. Equal trees give equal bytes, whoever packs them and when: names are
// sorted, owner and times fixed, and nothing is compressed, for compressors
// change.
func (t *tree) pack(ctx context.Context, top, file string) (sum string, err error) {
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
		if err := t.add(w, top, name); err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := errors.Join(w.Close(), zip.Close()); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// withFolders adds the folders the names lie in, each before what is in it.
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

// add writes one entry.
func (t *tree) add(w *tar.Writer, top, name string) error {
	info, err := t.root.Lstat(name)
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
	f, err := t.root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	// tar finds out when a file grew or shrank meanwhile.
	if n, err := io.Copy(w, f); err != nil || n != h.Size {
		return hint.With(errors.Join(fmt.Errorf("it changed while it was copied, from %d bytes", h.Size), err), "let nothing write there meanwhile, and try again")
	}
	return nil
}

// packTime is that of every entry: the one of every time in a wheel.
func packTime() time.Time { return time.Unix(1704067200, 0) }

// unpackSdist reads a foreign source distribution: a gzip with one folder,
// whose content is put into root.
func unpackSdist(ctx context.Context, r io.Reader, root *os.Root) error {
	zip, err := gzip.NewReader(r)
	if err != nil {
		return fmt.Errorf("not a .tar.gz: %w", err)
	}
	top := ""
	err = unpack(ctx, zip, root, func(name string) (string, error) {
		first, rest, inside := strings.Cut(name, "/")
		switch {
		case top == "":
			top = first
		case first != top:
			return "", fmt.Errorf("%s: lies outside the folder %s", name, top)
		}
		if !inside {
			return ".", nil
		}
		return rest, nil
	})
	if err == nil && top == "" {
		err = errors.New("nothing in it")
	}
	return err
}

// unpack writes a tar into root. It trusts nothing in it: names stay within,
// nothing is written through a link, nothing is there twice, devices and
// absurd sizes are refused. place says where a name goes; "." is the top.
func unpack(ctx context.Context, r io.Reader, root *os.Root, place func(string) (string, error)) error {
	u := unpacker{root: root, place: place, left: maxTreeBytes, made: map[string]bool{".": true}}
	in := tar.NewReader(r)
	for n := 0; ; n++ {
		h, err := in.Next()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, io.EOF):
			return u.links()
		case err != nil:
			return fmt.Errorf("not a readable tar: %w", err)
		case n == maxTreeFiles:
			return tooMany()
		}
		if err := u.entry(h, in); err != nil {
			return err
		}
	}
}

// unpacker is one tar being unpacked.
type unpacker struct {
	root  *os.Root
	place func(string) (string, error)
	left  int64           // bytes that may still come
	made  map[string]bool // folders that are there
	later []tar.Header    // links, made when nothing can be written through them
}

// entry unpacks one entry, a link at the end.
func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader { // git's: the commit
		return nil
	}
	name, err := u.name(h.Name)
	if err != nil {
		return err
	}
	switch {
	case h.Typeflag == tar.TypeDir:
		err = u.root.MkdirAll(name, 0o755)
	case name == ".":
		return fmt.Errorf("%s: the top is no folder", h.Name)
	case h.Typeflag == tar.TypeReg:
		err = u.file(name, h.Size, h.FileInfo().Mode(), content)
	case h.Typeflag == tar.TypeSymlink:
		h.Name = name
		u.later = append(u.later, *h)
		return nil
	case h.Typeflag == tar.TypeLink:
		err = u.again(name, h.Linkname)
	default:
		return fmt.Errorf("%s: neither a file, a folder nor a link", h.Name)
	}
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s: is there twice", h.Name)
	}
	return err
}

// name is where an entry goes, if it may go anywhere.
func (u *unpacker) name(name string) (string, error) {
	clean := strings.TrimSuffix(strings.TrimPrefix(name, "./"), "/")
	if clean == "" {
		return ".", nil
	}
	if len(clean) > maxTreeName || !fs.ValidPath(clean) || strings.ContainsFunc(clean, unicode.IsControl) {
		return "", fmt.Errorf("%.80q: a name that could mean another place", name)
	}
	return u.place(clean)
}

// file writes a file of exactly size bytes.
func (u *unpacker) file(name string, size int64, mode fs.FileMode, content io.Reader) error {
	if size < 0 || size > u.left {
		return tooLarge()
	}
	u.left -= size
	if dir := path.Dir(name); !u.made[dir] {
		if err := u.root.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		u.made[dir] = true
	}
	perm := fs.FileMode(0o644)
	if mode&0o100 != 0 {
		perm = 0o755
	}
	f, err := u.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, perm)
	if err != nil {
		return err
	}
	n, err := io.Copy(f, io.LimitReader(content, size))
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil && n != size {
		err = fmt.Errorf("%s: ends after %d of %d bytes", name, n, size)
	}
	return err
}

// again writes a file for a hard link: target is in the tar before it.
func (u *unpacker) again(name, target string) error {
	from, err := u.name(target)
	if err != nil {
		return err
	}
	info, err := u.root.Lstat(from)
	if err != nil || !info.Mode().IsRegular() {
		return fmt.Errorf("%s: a hard link to %.80q, which is no file before it", name, target)
	}
	content, err := u.root.ReadFile(from)
	if err != nil {
		return err
	}
	return u.file(name, int64(len(content)), info.Mode(), bytes.NewReader(content))
}

// links makes the symbolic links. Those that lead out are refused by
// tree.copyable, as in a checkout.
func (u *unpacker) links() error {
	for _, h := range u.later {
		for dir := path.Dir(h.Name); dir != "."; dir = path.Dir(dir) {
			if info, err := u.root.Lstat(dir); err == nil && !info.IsDir() {
				return fmt.Errorf("%s: lies in %s, which is no folder", h.Name, dir)
			}
		}
		if err := u.root.MkdirAll(path.Dir(h.Name), 0o755); err != nil {
			return err
		}
		err := u.root.Symlink(h.Linkname, h.Name)
		if errors.Is(err, fs.ErrExist) {
			err = fmt.Errorf("%s: is there twice", h.Name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
