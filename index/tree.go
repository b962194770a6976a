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

	"github.com/dsbuild/dsbuild/internal/atomicfile"
	"github.com/dsbuild/dsbuild/wheel"
)

const (
	markName = ".dsbuild-index.json" // lists the files that dsbuild wrote
	lockName = ".dsbuild-index.lock" // held while they change
)

// file is a file of an index: a text, or the copy of another file.
type file struct {
	path string // below the folder, with slashes
	text []byte
	from string // "": text
}

// MetadataSuffix is the suffix of the file beside a wheel that holds its METADATA (PEP 658).
const MetadataSuffix = ".metadata"

// project is the folder of the only project in each index.
const project = "deepspeed"

// layout lists the files of an index. A file comes before the files that refer to it.
func layout(opt Options, all []Toolchain) ([]file, error) {
	var wheels, pages []file
	for _, tc := range all {
		folder := path.Join(tc.Name, project)
		sums := map[string]string{}
		for _, w := range tc.Wheels {
			at := path.Join(folder, w.Name)
			wheels = append(wheels, file{path: at, from: w.file}, file{path: at + MetadataSuffix, text: w.metadata})
			sums[w.Name] = w.SHA256
			for _, b := range w.beside {
				sum, _, err := wheel.HashRegular(b.from)
				if err != nil {
					return nil, err
				}
				wheels = append(wheels, file{path: at + b.suffix, from: b.from})
				sums[w.Name+b.suffix] = sum
			}
		}
		var list bytes.Buffer
		for _, name := range slices.Sorted(maps.Keys(sums)) {
			fmt.Fprintf(&list, "%s  %s\n", sums[name], name)
		}
		wheels = append(wheels, file{path: path.Join(folder, wheel.SumsName), text: list.Bytes()})
		inner, err := tc.pages()
		if err != nil {
			return nil, err
		}
		pages = append(pages, inner...)
	}
	outer, err := chooser(opt, all)
	return slices.Concat(wheels, pages, outer), err
}

// mark is the content of the file markName.
type mark struct {
	Files []string `json:"files"`
}

// replace turns the files that the mark in a folder lists into these files. Until it is done, the
// mark lists old and new files: after a killed run, the next run recognizes all files as its own.
func replace(ctx context.Context, dir string, files []file) (written, removed int, err error) {
	before, err := readMark(dir)
	if err != nil {
		return 0, 0, err
	}
	if err := refuseLinks(dir, files, before); err != nil {
		return 0, 0, err
	}
	want := map[string]bool{}
	for _, f := range files {
		want[f.path] = true
		if _, err := os.Lstat(filepath.Join(dir, filepath.FromSlash(f.path))); err == nil && !before[f.path] {
			return 0, 0, &ConflictError{
				fmt.Sprintf("%s is in the way: it is not part of an index that dsbuild wrote", filepath.Join(dir, f.path)), "move it away, or write the index into another folder",
			}
		}
	}
	both := maps.Clone(before)
	maps.Copy(both, want)
	if !maps.Equal(both, before) {
		if err := writeMark(dir, both); err != nil {
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
	if maps.Equal(want, before) {
		return written, removed, nil
	}
	return written, removed, writeMark(dir, want)
}

// refuseLinks refuses a folder of the index that is a symbolic link: otherwise dsbuild would
// write, compare and remove files at the link's target.
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
			return &ConflictError{at + " is a symbolic link, and dsbuild writes an index only into real folders", "remove the link, or write the index into another folder"}
		}
	}
	return nil
}

// readMark lists the files of an earlier index. Without one, the list is empty.
func readMark(dir string) (map[string]bool, error) {
	name := filepath.Join(dir, markName)
	f, err := wheel.OpenRegular(name)
	if errors.Is(err, fs.ErrNotExist) {
		return map[string]bool{}, nil
	}
	var text []byte
	if err == nil {
		text, err = io.ReadAll(f)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return nil, badMark(name, err)
	}
	return parseMark(name, text)
}

func badMark(name string, err error) error {
	return &ConflictError{fmt.Sprintf("%s: %v", name, err), "it lists the files of the index; remove the index, and write it again"}
}

// parseMark reads the list of files in a mark.
func parseMark(name string, text []byte) (map[string]bool, error) {
	var m mark
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, badMark(name, err)
	}
	ours := map[string]bool{}
	for _, f := range m.Files {
		if !filepath.IsLocal(filepath.FromSlash(f)) {
			return nil, &ConflictError{fmt.Sprintf("%s names %q, which is outside the folder", name, f), "remove the index, and write it again"}
		}
		ours[f] = true
	}
	return ours, nil
}

func writeMark(dir string, files map[string]bool) error {
	text, err := document(mark{slices.Sorted(maps.Keys(files))})
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, markName), bytes.NewReader(text), 0o644)
}

// write writes the file into the folder, and reports whether that changed anything.
func (f file) write(dir string) (bool, error) {
	to := filepath.Join(dir, filepath.FromSlash(f.path))
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

// holds reports whether a file has exactly the bytes of r.
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
