package index

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/internal/atomicfile"
	"github.com/dsbuild/dsbuild/wheel"
)

// Objects is a store of objects under names with slashes, such as a part of a bucket. An object
// appears whole or not at all.
type Objects interface {
	// List returns all objects.
	List(ctx context.Context) ([]Object, error)
	// Read calls use with the bytes of an object; again, from their start, if the connection
	// breaks. The error is fs.ErrNotExist if there is no object of that name.
	Read(ctx context.Context, name string, use func(io.Reader) error) error
	// Put writes an object, or replaces it.
	Put(ctx context.Context, name string, text []byte) error
	// Delete removes an object.
	Delete(ctx context.Context, name string) error
}

// Object describes one object of a store.
type Object struct {
	Name     string
	Size     int64
	Version  string // differs between objects with different bytes
	Modified time.Time
}

// maxPage is the size of the largest page, manifest or METADATA that is read from a store.
const maxPage = 32 << 20

// maxRounds is how often the pages are written anew because wheels came or went meanwhile.
const maxRounds = 10

// HasObjects returns nil if the store holds an index that dsbuild wrote, fs.ErrNotExist if not.
func HasObjects(ctx context.Context, store Objects) error {
	_, err := readObject(ctx, store, markName)
	return err
}

// WriteObjects writes the pages of an index of all wheels in a store, beside these. It reads a
// wheel itself only if the store lacks its manifest or its METADATA as files beside it. Without an
// address in opt the earlier one stays. If wheels come or go meanwhile, it writes the pages again,
// so the last of several runs knows the wheels of all.
func WriteObjects(ctx context.Context, store Objects, opt Options) (Summary, error) {
	var sum Summary
	list, err := store.List(ctx)
	for round := 0; err == nil; round++ {
		x := newObjectIndex(store, opt, list)
		if err = x.write(ctx, &sum); err != nil {
			break
		}
		before := wheelsIn(list)
		if list, err = store.List(ctx); err == nil && slices.Equal(before, wheelsIn(list)) {
			break
		}
		if round == maxRounds {
			err = errors.New("wheels came and went while dsbuild wrote the index; write it again")
		}
	}
	return sum, err
}

// wheelsIn names the wheels in a list with their versions.
func wheelsIn(list []Object) []string {
	var names []string
	for _, o := range list {
		if strings.HasSuffix(o.Name, ".whl") {
			names = append(names, o.Name+" "+o.Version)
		}
	}
	slices.Sort(names)
	return names
}

// readObject reads a small object.
func readObject(ctx context.Context, store Objects, name string) ([]byte, error) {
	var text []byte
	err := store.Read(ctx, name, func(in io.Reader) (err error) {
		text, err = io.ReadAll(io.LimitReader(in, maxPage+1))
		return err
	})
	if err == nil && len(text) > maxPage {
		err = fmt.Errorf("%s is larger than %d bytes", name, maxPage)
	}
	return text, err
}

// objectIndex is one attempt to write the pages.
type objectIndex struct {
	store   Objects
	opt     Options
	objects map[string]Object
	added   []file // METADATA that the store lacked
}

func newObjectIndex(store Objects, opt Options, list []Object) *objectIndex {
	x := &objectIndex{store: store, opt: opt, objects: map[string]Object{}}
	for _, o := range list {
		x.objects[o.Name] = o
	}
	return x
}

// write writes the pages of the wheels in the list.
func (x *objectIndex) write(ctx context.Context, sum *Summary) error {
	before := map[string]bool{}
	if _, ok := x.objects[markName]; ok {
		text, err := readObject(ctx, x.store, markName)
		if err == nil {
			var m mark
			m, err = parseMark(markName, text)
			before = m.names()
		}
		if err != nil {
			return err
		}
	}
	if _, ok := x.objects[jsonPage]; ok && before[jsonPage] {
		text, err := readObject(ctx, x.store, jsonPage)
		if err != nil {
			return err
		}
		x.opt.URL = cmp.Or(x.opt.URL, addressIn(text))
	}
	all, err := x.readWheels(ctx)
	if err != nil {
		return err
	}
	files, err := x.layout(all)
	if err != nil {
		return err
	}
	sum.Indexes = all
	return x.replace(ctx, files, before, sum)
}

// readWheels sorts the wheels of the store into toolchains.
func (x *objectIndex) readWheels(ctx context.Context) ([]Toolchain, error) {
	found := toolchains{}
	named := map[string]Wheel{}
	for _, name := range slices.Sorted(maps.Keys(x.objects)) {
		if !strings.HasSuffix(name, ".whl") {
			continue
		}
		w, tc, err := x.readWheel(ctx, name)
		twin, twice := named[w.Name]
		foreign := new(ConflictError)
		switch {
		case errors.As(err, &foreign) || errors.Is(err, wheel.ErrNoManifest):
			if x.opt.Warn != nil {
				x.opt.Warn("the index leaves out %s: %v", name, err)
			}
		case err != nil:
			return nil, fmt.Errorf("%s: %w", name, err)
		case twice && twin.SHA256 != w.SHA256:
			return nil, &ConflictError{fmt.Sprintf("two wheels have the name %s: %s and %s", w.Name, twin.file, name), "remove one of them"}
		case !twice:
			named[w.Name] = w
			found.add(w, tc)
		}
	}
	return found.sorted(x.opt.URL), nil
}

// readWheel describes a wheel by the files beside it, or by itself.
func (x *objectIndex) readWheel(ctx context.Context, name string) (Wheel, Toolchain, error) {
	m, metadata, err := x.readBeside(ctx, name)
	if err != nil {
		return Wheel{}, Toolchain{}, err
	}
	if metadata == nil {
		if m, metadata, err = x.readWhole(ctx, name); err != nil {
			return Wheel{}, Toolchain{}, err
		}
		x.added = append(x.added, file{path: name + MetadataSuffix, text: metadata})
	}
	said, err := wheel.ParseMetadata(metadata)
	if err != nil {
		return Wheel{}, Toolchain{}, err
	}
	tc, err := toolchainOf(m)
	if err != nil {
		return Wheel{}, Toolchain{}, err
	}
	w := Wheel{
		Name: m.Name, Version: m.Version, Python: m.Python, Ops: m.Ops, Glibc: m.Glibc, SHA256: m.SHA256, Size: m.Size,
		BuiltAt: x.objects[name].Modified.UTC().Truncate(time.Second), commit: m.Source.Commit,
		requiresPython: said.RequiresPython, metadata: metadata, file: name, link: linkFrom(path.Join(tc.Name, project), name),
	}
	if m.BuiltAt != nil {
		w.BuiltAt = m.BuiltAt.UTC()
	}
	if _, ok := x.objects[name+wheel.ManifestSuffix]; ok {
		w.beside = []besideFile{{suffix: wheel.ManifestSuffix}}
	}
	return w, tc, nil
}

// linkFrom returns the relative address of a file on the page of a folder.
func linkFrom(folder, name string) string {
	up, err := filepath.Rel(filepath.FromSlash(folder), filepath.FromSlash(name))
	if err != nil {
		return name // both are relative: it does not happen
	}
	parts := strings.Split(filepath.ToSlash(up), "/")
	for i, part := range parts {
		parts[i] = url.PathEscape(part)
	}
	return strings.Join(parts, "/")
}

// readBeside reads the manifest and the METADATA beside a wheel. Without both, or if they are of
// another wheel, the METADATA is nil.
func (x *objectIndex) readBeside(ctx context.Context, name string) (wheel.Manifest, []byte, error) {
	for _, suffix := range []string{wheel.ManifestSuffix, MetadataSuffix} {
		if _, ok := x.objects[name+suffix]; !ok {
			return wheel.Manifest{}, nil, nil
		}
	}
	text, err := readObject(ctx, x.store, name+wheel.ManifestSuffix)
	if err != nil {
		return wheel.Manifest{}, nil, err
	}
	m, err := wheel.ParseManifest(text)
	if err != nil || m.Name != path.Base(name) || len(m.SHA256) != 64 || m.Size != x.objects[name].Size {
		return wheel.Manifest{}, nil, nil //nolint:nilerr // the wheel itself decides
	}
	metadata, err := readObject(ctx, x.store, name+MetadataSuffix)
	return m, metadata, err
}

// readWhole downloads a wheel and reads its manifest and METADATA.
func (x *objectIndex) readWhole(ctx context.Context, name string) (m wheel.Manifest, metadata []byte, err error) {
	dir, err := os.MkdirTemp("", "dsbuild-index-")
	if err != nil {
		return m, nil, err
	}
	defer os.RemoveAll(dir)
	local := filepath.Join(dir, path.Base(name))
	err = x.store.Read(ctx, name, func(in io.Reader) error { return atomicfile.Write(local, in, 0o600) })
	if err != nil {
		return m, nil, err
	}
	if m, err = wheel.ReadManifest(local); err != nil {
		return m, nil, err
	}
	a, err := wheel.Open(local)
	if err != nil {
		return m, nil, err
	}
	defer a.Close()
	metadata, err = a.MetadataText()
	return m, metadata, err
}

// layout lists the pages, each after the files that it refers to.
func (x *objectIndex) layout(all []Toolchain) ([]file, error) {
	files := slices.Clone(x.added)
	for _, tc := range all {
		pages, err := tc.pages()
		if err != nil {
			return nil, err
		}
		files = append(files, pages...)
	}
	outer, err := chooser(x.opt, all)
	return append(files, outer...), err
}

// isPage reports whether a name is that of a page, and not of a wheel or a file beside one.
func isPage(name string) bool { return path.Base(name) == htmlPage || path.Base(name) == jsonPage }

// replace writes the pages that changed, and removes those that are no longer wanted.
func (x *objectIndex) replace(ctx context.Context, files []file, before map[string]bool, sum *Summary) error {
	want := map[string]bool{}
	for _, f := range files[len(x.added):] {
		want[f.path] = true
		if _, ok := x.objects[f.path]; ok && !before[f.path] {
			return &ConflictError{f.path + " is in the way: it is not part of an index that dsbuild wrote", "move it away, or use another prefix"}
		}
	}
	both := maps.Clone(want)
	maps.Copy(both, before)
	if !maps.Equal(both, before) {
		if err := x.putMark(ctx, both); err != nil {
			return err
		}
	}
	for _, f := range files {
		if _, ok := x.objects[f.path]; ok {
			if text, err := readObject(ctx, x.store, f.path); err == nil && bytes.Equal(text, f.text) {
				continue
			}
		}
		if err := x.store.Put(ctx, f.path, f.text); err != nil {
			return err
		}
		sum.Written++
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if _, ok := x.objects[name]; want[name] || !ok || !isPage(name) {
			continue
		}
		if err := x.store.Delete(ctx, name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		sum.Removed++
	}
	if maps.Equal(both, want) && maps.Equal(want, before) {
		return nil
	}
	return x.putMark(ctx, want)
}

func (x *objectIndex) putMark(ctx context.Context, files map[string]bool) error {
	text, err := document(mark{Files: slices.Sorted(maps.Keys(files))})
	if err != nil {
		return err
	}
	return x.store.Put(ctx, markName, text)
}
