package index

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/dsbuild/dsbuild/internal/atomicfile"
	"github.com/dsbuild/dsbuild/wheel"
)

const (
	markName = ".dsbuild-index.json" // lists the files that dsbuild wrote
	lockName = ".dsbuild-index.lock" // held while they change
)

// file is a file of an index: a text, or a copy of another file.
type file struct {
	path  string // relative to the index's directory, with slashes
	text  []byte
	from  string // the file to copy, if any
	stamp *stamp // of the other file
	wheel *note  // of a wheel
}

// metadataSuffix is the suffix of the file with a wheel's METADATA (PEP 658).
const metadataSuffix = ".metadata"

// project is the folder of the only project on each page.
const project = "deepspeed"

// layout lists the files of an index. A file comes before the files that refer to it.
func layout(all []Page) ([]file, error) {
	var wheels, pages []file
	for _, page := range all {
		folder := path.Join(page.Path, project)
		sums := map[string]string{}
		for _, w := range page.Wheels {
			at := path.Join(folder, w.Name)
			wheels = append(wheels,
				file{path: at, from: w.file, stamp: &w.note.stamp, wheel: &w.note},
				file{path: at + metadataSuffix, text: w.metadata})
			sums[w.Name] = w.SHA256
			for _, suffix := range slices.Sorted(maps.Keys(w.beside)) {
				s, err := stampOf(w.beside[suffix], w.note.Beside[suffix])
				if err != nil {
					return nil, err
				}
				w.note.Beside[suffix] = s
				wheels = append(wheels, file{path: at + suffix, from: w.beside[suffix], stamp: &s})
				sums[w.Name+suffix] = s.SHA256
			}
		}
		var list bytes.Buffer
		for _, name := range slices.Sorted(maps.Keys(sums)) {
			fmt.Fprintf(&list, "%s  %s\n", sums[name], name)
		}
		wheels = append(wheels, file{path: path.Join(folder, wheel.SumsName), text: list.Bytes()})
		inner, err := page.files()
		if err != nil {
			return nil, err
		}
		pages = append(pages, inner...)
	}
	list, err := document(struct {
		Indexes []Page `json:"indexes"`
	}{all})
	return slices.Concat(wheels, pages, []file{{path: "index.json", text: list}}), err
}

// mark is the content of the file markName.
type mark struct {
	Files  []string        `json:"files"`
	Wheels map[string]note `json:"wheels,omitempty"` // by the file's name
}

// stamp identifies a file's contents. A file with the same size and time is not read again, because an
// index may have hundreds of wheels.
type stamp struct {
	Size     int64     `json:"size"`
	Modified time.Time `json:"modified"`
	SHA256   string    `json:"sha256,omitempty"` // of a sidecar file

	found bool // it was in the mark
}

// fits reports whether a file has the stamp's size and time.
func (s stamp) fits(info fs.FileInfo) bool {
	return info.Size() == s.Size && info.ModTime().Equal(s.Modified)
}

// stampOf returns the stamp of a file. before is its stamp from an earlier run.
func stampOf(path string, before stamp) (stamp, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return stamp{}, err
	}
	if before.found = before.fits(info); before.found {
		return before, nil
	}
	sum, size, err := wheel.HashRegular(path)
	return stamp{Size: size, Modified: info.ModTime(), SHA256: sum}, err
}

// note describes a wheel that was verified.
type note struct {
	stamp
	Metadata string           `json:"metadata"` // sha256 of its metadata file in the index
	Manifest wheel.Manifest   `json:"manifest"`
	Beside   map[string]stamp `json:"beside,omitempty"` // its sidecar files, by suffix
}

// noted reports whether a mark has the note already.
func (n note) noted(now note) bool {
	same := func(a, b stamp) bool { return b.found && a.Modified.Equal(b.Modified) }
	return same(n.stamp, now.stamp) && maps.EqualFunc(n.Beside, now.Beside, same)
}

// replace replaces the files listed in the directory's mark with these files. Until it is done, the
// mark lists old and new files, so that the next run recognizes all of them if this run is killed.
func replace(ctx context.Context, dir string, files []file) (written, removed int, err error) {
	earlier, err := readMark(dir)
	if err != nil {
		return 0, 0, err
	}
	before := map[string]bool{}
	for _, name := range earlier.Files {
		before[name] = true
	}
	if err := refuseLinks(dir, files, before); err != nil {
		return 0, 0, err
	}
	if err := checkReplaced(dir, files, before, earlier.Wheels); err != nil {
		return 0, 0, err
	}
	want, notes := map[string]bool{}, map[string]note{}
	for _, f := range files {
		want[f.path] = true
		if f.wheel != nil {
			notes[path.Base(f.path)] = *f.wheel
		}
	}
	both := maps.Clone(before)
	maps.Copy(both, want)
	if !maps.Equal(both, before) {
		all := maps.Clone(notes)
		maps.Copy(all, earlier.Wheels)
		if err := writeMark(dir, both, all); err != nil {
			return 0, 0, err
		}
	}
	for _, f := range files {
		if ctx.Err() != nil {
			return written, 0, context.Cause(ctx)
		}
		changed, err := f.write(dir)
		if err != nil {
			return written, 0, err
		}
		if changed {
			written++
		}
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if want[name] {
			continue
		}
		gone, err := remove(dir, name)
		if err != nil {
			return written, removed, err
		}
		if gone {
			removed++
		}
	}
	if maps.Equal(want, before) && maps.EqualFunc(earlier.Wheels, notes, note.noted) {
		return written, removed, nil
	}
	return written, removed, writeMark(dir, want, notes)
}

// refuseLinks rejects symbolic links to directories in the index. Otherwise files would be written,
// compared and removed at the link's target.
func refuseLinks(dir string, files []file, before map[string]bool) error {
	folders := map[string]bool{}
	add := func(name string) {
		for folder := path.Dir(name); folder != "." && !folders[folder]; folder = path.Dir(folder) {
			folders[folder] = true
		}
	}
	for _, f := range files {
		add(f.path)
	}
	for name := range before {
		add(name)
	}
	for _, folder := range slices.Sorted(maps.Keys(folders)) {
		at := filepath.Join(dir, filepath.FromSlash(folder))
		if info, err := os.Lstat(at); err == nil && info.Mode().Type() == fs.ModeSymlink {
			return usagef("remove the link, or write the index to another directory",
				"%s is a symbolic link, not a directory", at)
		}
	}
	return nil
}

// checkReplaced rejects an index that would replace a published wheel, or a file that dsbuild did not write.
func checkReplaced(dir string, files []file, before map[string]bool, earlier map[string]note) error {
	for _, f := range files {
		at := filepath.Join(dir, filepath.FromSlash(f.path))
		if _, err := os.Lstat(at); err == nil && !before[f.path] {
			return usagef("move it, or write the index to another directory",
				"%s already exists and is not part of an index written by dsbuild", at)
		}
		if f.wheel == nil {
			continue
		}
		name := path.Base(f.path)
		if old := earlier[name].Manifest.SHA256; old != "" && old != f.wheel.Manifest.SHA256 {
			return usagef("published files are immutable: build it under another version, or write another index",
				"%s already has another %s, sha256 %s", dir, name, old)
		}
	}
	return nil
}

// readMark reads the mark of an earlier index. Without one, it is empty.
func readMark(dir string) (mark, error) {
	name := filepath.Join(dir, markName)
	f, err := wheel.OpenRegular(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return mark{}, nil
	case errors.Is(err, syscall.ENOTDIR):
		return mark{}, usagef("choose a directory", "%s: not a directory", dir)
	}
	var text []byte
	if err == nil {
		text, err = io.ReadAll(f)
		err = errors.Join(err, f.Close())
	}
	var m mark
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err != nil {
		return mark{}, usagef("remove the index, then rewrite it", "%s: %w", name, err)
	}
	for _, f := range m.Files {
		if !filepath.IsLocal(filepath.FromSlash(f)) {
			return mark{}, usagef("remove the index, then rewrite it", "%s lists %q, which is outside the directory", name, f)
		}
	}
	return m, nil
}

func writeMark(dir string, files map[string]bool, notes map[string]note) error {
	text, err := document(mark{slices.Sorted(maps.Keys(files)), notes})
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, markName), bytes.NewReader(text), 0o644)
}

// write writes the file into the directory and reports whether that changed anything. A copy gets
// its original's time, so that one stamp matches both.
func (f file) write(dir string) (bool, error) {
	to := filepath.Join(dir, filepath.FromSlash(f.path))
	if f.stamp != nil {
		if info, err := os.Lstat(to); err == nil && f.stamp.found && f.stamp.fits(info) {
			return false, nil
		}
		defer os.Chtimes(to, time.Time{}, f.stamp.Modified) //nolint:errcheck // without it, the next run compares the bytes
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return false, err
	}
	var in io.ReadSeeker = bytes.NewReader(f.text)
	if f.from != "" {
		src, err := wheel.OpenRegular(f.from)
		if err != nil {
			return false, err
		}
		defer src.Close()
		in = src
	}
	same, err := holds(to, in)
	if err != nil || same {
		return false, err
	}
	if _, err := in.Seek(0, io.SeekStart); err != nil {
		return false, err
	}
	return true, atomicfile.Write(to, in, 0o644)
}

// holds reports whether a file's contents equal r's.
func holds(name string, r io.Reader) (bool, error) {
	old, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer old.Close()
	a, b := make([]byte, 64<<10), make([]byte, 64<<10)
	for {
		n, errA := io.ReadFull(old, a)
		m, errB := io.ReadFull(r, b)
		if !bytes.Equal(a[:n], b[:m]) {
			return false, nil
		}
		for _, err := range []error{errA, errB} {
			if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				return false, err
			}
		}
		if errA != nil || errB != nil {
			return errA != nil && errB != nil, nil
		}
	}
}

// remove removes a file, and the folders that become empty.
func remove(dir, name string) (bool, error) {
	err := os.Remove(filepath.Join(dir, filepath.FromSlash(name)))
	gone := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	for folder := path.Dir(name); folder != "."; folder = path.Dir(folder) {
		if os.Remove(filepath.Join(dir, filepath.FromSlash(folder))) != nil {
			break // not empty
		}
	}
	return gone, nil
}
