// Package index writes a package index that consists of files only: any web server, or the file
// system, serves it to pip and uv. It follows PEP 503 and 691, with hashes and the metadata of
// each wheel beside it (PEP 658, 714), and sizes and times (PEP 700).
//
// Wheels of one version for different torches, CUDAs, GPUs or CPUs would hide each other: an
// installer takes the wheel whose version sorts last, whatever hardware the machine has. So each
// toolchain has an index of its own, and a page helps people choose one.
package index

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"github.com/dsbuild/dsbuild/wheel"
)

// Options are the inputs of an index.
type Options struct {
	// Dir is the folder of the index. Write leaves files there alone if no index of dsbuild's
	// lists them.
	Dir string
	// Wheels are all the files that the index shall hold. Write removes other wheels from it.
	Wheels []string
	// URL is the address under which a server will serve Dir; "" if it is not known.
	URL string
	// GPUs names the GPUs of a compute capability for people; nil if no names are known.
	GPUs func(capability string) []string
	// Variants adds an index of variants for each torch and CUDA.
	Variants bool
	// Warn tells of a wheel in a store that the index leaves out; nil: nobody.
	Warn func(format string, args ...any)
}

// Summary describes an index after Write, and counts the changes.
type Summary struct {
	Dir     string      `json:"dir"`
	Indexes []Toolchain `json:"indexes"` // the newest torch first
	// Variants are the indexes of variants, if they were wanted.
	Variants []VariantIndex `json:"variants,omitempty"`
	Written  int            `json:"written"` // files that are new or differ from before
	Removed  int            `json:"removed"`
}

// Toolchain is one index: the wheels for the same torch, CUDA, GPUs and CPU.
type Toolchain struct {
	Name   string   `json:"name"` // of its folder: torch2.15-cu132-sm80-v3
	URL    string   `json:"url"`  // for --index-url, if it is known
	Torch  string   `json:"torch"`
	CUDA   string   `json:"cuda"`
	Archs  []string `json:"archs"`
	PTX    []string `json:"ptx"`
	CPU    string   `json:"cpu"`
	Dev    bool     `json:"dev"`    // built from sources that are not a release
	Wheels []Wheel  `json:"wheels"` // the newest version first

	newer bool // also for each torch that is newer (the stable ABI)
}

// Wheel is a file of an index.
type Wheel struct {
	Name    string    `json:"name"`
	Version string    `json:"version"`
	Python  string    `json:"python"`
	Ops     []string  `json:"ops"`
	Glibc   string    `json:"glibc"`
	SHA256  string    `json:"sha256"`
	Size    int64     `json:"size"`
	BuiltAt time.Time `json:"built_at"`
	Yanked  string    `json:"yanked,omitempty"` // why installers take it only by its whole version (PEP 592)

	commit         string // of its sources
	toolkit        string // version of CUDA's headers and nvcc; "": that of the wheel's CUDA
	requiresPython string
	metadata       []byte
	note           note   // for the mark
	file           string // its path before it is copied into the index; its name in a store
	beside         []besideFile
	link           string // its relative address on the page of its index; "": it lies beside the page
}

// besideFile is a file beside a wheel, whose name is that of the wheel with a suffix.
type besideFile struct {
	suffix string
	from   string // its path before it is copied into the index
}

// ConflictError reports wheels that cannot share an index, or a folder or file that blocks it.
type ConflictError struct{ what, hint string }

func (e *ConflictError) Error() string { return e.what }

// Hint suggests the next step.
func (e *ConflictError) Hint() string { return e.hint }

// ExitCode returns the exit code of wrong usage.
func (e *ConflictError) ExitCode() int { return 2 }

// Write makes the index hold exactly these wheels. It verifies each wheel first, and writes
// nothing if a wheel does not match its own metadata. Files appear whole. Write adds a file
// before the files that refer to it, and removes the unwanted files of an earlier index last: an
// installer that runs meanwhile finds every file that a page named. A second run with the same
// wheels writes nothing.
func Write(ctx context.Context, opt Options) (Summary, error) {
	sum := Summary{Dir: opt.Dir}
	files, remove, err := sum.plan(ctx, opt)
	if err != nil {
		return sum, err
	}
	defer remove()
	unlock, err := lockDir(ctx, opt.Dir)
	if err != nil {
		return sum, err
	}
	defer unlock()
	sum.Written, sum.Removed, err = replace(ctx, opt.Dir, files)
	return sum, err
}

// plan reads the wheels and lists the files of the index. remove removes the temporary ones.
func (s *Summary) plan(ctx context.Context, opt Options) (files []file, remove func(), err error) {
	remove = func() {}
	if s.Indexes, err = read(ctx, opt); err != nil {
		return nil, remove, err
	}
	if files, err = layout(opt, s.Indexes); err != nil || !opt.Variants {
		return files, remove, err
	}
	tmp, err := os.MkdirTemp("", "dsbuild-variants-")
	if err != nil {
		return nil, remove, err
	}
	remove = func() { _ = os.RemoveAll(tmp) } // the system clears this folder
	var more []file
	if s.Variants, more, err = writeVariants(ctx, opt, s.Indexes, tmp); err != nil {
		remove()
		return nil, func() {}, err
	}
	return slices.Concat(more, files), remove, nil
}

// Exists reports whether a folder holds an index that dsbuild wrote.
func Exists(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, markName))
	return err == nil
}

// Folder returns the place of a wheel in an index, with slashes.
func Folder(m wheel.Manifest) (string, error) {
	tc, err := toolchainOf(m)
	return path.Join(tc.Name, project), err
}

// Add makes an index that exists hold these wheels beside those that it has, as Write does. The
// address of the index stays.
func Add(ctx context.Context, opt Options) (Summary, error) {
	sum := Summary{Dir: opt.Dir}
	unlock, err := lockDir(ctx, opt.Dir)
	if err != nil {
		return sum, err
	}
	defer unlock()
	before, err := readMark(opt.Dir)
	if err != nil {
		return sum, err
	}
	for _, name := range before.Files {
		at := filepath.Join(opt.Dir, filepath.FromSlash(name))
		if inVariants(name) {
			opt.Variants = true
		} else if _, err := os.Lstat(at); err == nil && strings.HasSuffix(name, ".whl") {
			opt.Wheels = append(opt.Wheels, at)
		}
	}
	list, err := os.ReadFile(filepath.Join(opt.Dir, jsonPage))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return sum, err
	}
	opt.URL = cmp.Or(opt.URL, addressIn(list))
	files, remove, err := sum.plan(ctx, opt)
	if err != nil {
		return sum, err
	}
	defer remove()
	sum.Written, sum.Removed, err = replace(ctx, opt.Dir, files)
	return sum, err
}

// inVariants reports whether a file belongs to an index of variants.
func inVariants(name string) bool {
	folder, _, _ := strings.Cut(name, "/")
	return strings.HasSuffix(folder, variantsSuffix)
}

// addressIn returns the URL of the index that an index.json describes, "" if it names none.
func addressIn(list []byte) string {
	var said struct{ Indexes []Toolchain }
	if json.Unmarshal(list, &said) != nil || len(said.Indexes) == 0 {
		return ""
	}
	return strings.TrimSuffix(said.Indexes[0].URL, said.Indexes[0].Name+"/")
}

// notWritable is the error of a folder that dsbuild cannot write an index into.
func notWritable(dir string, err error) error {
	return &ConflictError{fmt.Sprintf("dsbuild cannot write to %s: %v", dir, err), "name a folder that you may write to"}
}

// lockDir waits until no other run changes the index.
func lockDir(ctx context.Context, dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, notWritable(dir, err)
	}
	lockFile := filepath.Join(dir, lockName)
	if err := refuseLink(lockFile); err != nil {
		return nil, err
	}
	lock := flock.New(lockFile)
	if _, err := lock.TryLockContext(ctx, 100*time.Millisecond); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if errors.Is(err, fs.ErrPermission) {
			return nil, notWritable(dir, err)
		}
		return nil, fmt.Errorf("the lock of %s: %w", dir, err)
	}
	return func() { _ = lock.Close() }, nil // the system releases it, too
}

// read verifies the wheels and sorts them into toolchains.
func read(ctx context.Context, opt Options) ([]Toolchain, error) {
	if len(opt.Wheels) == 0 {
		return nil, &ConflictError{"no wheels for the index", "name a wheel, or a folder with wheels"}
	}
	earlier, err := readMark(opt.Dir)
	if err != nil {
		return nil, err
	}
	found := toolchains{}
	type sortedWheel struct {
		Wheel
		toolchain Toolchain
	}
	var all []*sortedWheel
	named := map[string]*sortedWheel{}
	var wrong []error
	for _, file := range opt.Wheels {
		w, tc, err := open(ctx, file, earlier.Wheels, opt.Dir)
		other, twice := named[w.Name]
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err != nil:
			wrong = append(wrong, err)
			continue
		case twice && other.SHA256 != w.SHA256:
			wrong = append(wrong, &ConflictError{
				fmt.Sprintf("two wheels have the name %s: %s and %s", w.Name, other.file, w.file), "remove one of them, or write two indexes",
			})
			continue
		case twice:
			other.merge(w)
			continue
		}
		named[w.Name] = &sortedWheel{w, tc}
		all = append(all, named[w.Name])
	}
	if len(wrong) > 0 {
		return nil, errors.Join(wrong...)
	}
	for _, w := range all {
		found.add(w.Wheel, w.toolchain)
	}
	return found.sorted(opt.URL), nil
}

// hasManifest reports whether a manifest lies beside the wheel.
func (w *Wheel) hasManifest() bool {
	return slices.ContainsFunc(w.beside, func(b besideFile) bool { return b.suffix == wheel.ManifestSuffix })
}

// merge adds the files beside another copy of the wheel, such as a second signature.
func (w *Wheel) merge(other Wheel) {
	if other.hasManifest() && !w.hasManifest() {
		w.BuiltAt = other.BuiltAt
	}
	if other.note.found {
		w.note, w.file = other.note, other.file
	}
	for _, b := range other.beside {
		if !slices.ContainsFunc(w.beside, func(have besideFile) bool { return have.suffix == b.suffix }) {
			w.beside = append(w.beside, b)
		}
	}
}

// open reads a wheel built by dsbuild, and checks it against its own metadata. It takes the result
// from the notes of the index in dir, if the wheel is one of theirs.
func open(ctx context.Context, file string, notes map[string]note, dir string) (Wheel, Toolchain, error) {
	if err := refuseLink(file); err != nil {
		return Wheel{}, Toolchain{}, err
	}
	suffixes, err := wheel.Beside(file)
	if err != nil {
		return Wheel{}, Toolchain{}, err
	}
	var beside []besideFile
	for _, suffix := range suffixes {
		beside = append(beside, besideFile{suffix, file + suffix})
	}
	n, metadata, err := findNote(file, notes, dir)
	if err == nil && !n.found {
		n, metadata, err = verify(ctx, file)
	}
	if err != nil {
		return Wheel{}, Toolchain{}, err
	}
	m := n.Manifest
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
		commit: m.Source.Commit, toolkit: m.Toolchain.Toolkit, note: n, file: file, beside: beside,
		BuiltAt: n.Modified.UTC().Truncate(time.Second), metadata: metadata, requiresPython: said.RequiresPython,
	}
	if text, err := os.ReadFile(file + wheel.ManifestSuffix); err == nil {
		if m, err := wheel.ParseManifest(text); err == nil && m.BuiltAt != nil {
			w.BuiltAt = m.BuiltAt.UTC()
		}
	}
	return w, tc, nil
}

// findNote returns the note about a wheel and its METADATA in an index. The note is not found if the
// file, or the METADATA, is not as it was.
func findNote(file string, notes map[string]note, dir string) (n note, metadata []byte, err error) {
	info, err := os.Lstat(file)
	if err != nil {
		return note{}, nil, err
	}
	n, ok := notes[filepath.Base(file)]
	if !ok || !n.fits(info) {
		return note{}, nil, nil
	}
	folder, err := Folder(n.Manifest)
	if err != nil {
		return note{}, nil, nil //nolint:nilerr // the wheel itself decides
	}
	metadata, err = os.ReadFile(filepath.Join(dir, filepath.FromSlash(folder), filepath.Base(file)+MetadataSuffix))
	n.found = err == nil && hashOf(metadata) == n.Metadata
	return n, metadata, nil
}

// verify checks a wheel against its own metadata.
func verify(ctx context.Context, file string) (n note, metadata []byte, err error) {
	info, err := os.Stat(file)
	if err != nil {
		return n, nil, err
	}
	v, err := wheel.Verify(ctx, file)
	if err == nil {
		err = v.Err()
	}
	if err != nil {
		return n, nil, err
	}
	n = note{Size: info.Size(), Modified: info.ModTime()}
	if n.Manifest, err = wheel.ReadManifest(file); err != nil {
		return n, nil, err
	}
	a, err := wheel.Open(file)
	if err != nil {
		return n, nil, err
	}
	defer a.Close()
	metadata, err = a.MetadataText()
	n.Metadata = hashOf(metadata)
	return n, metadata, err
}

// refuseLink refuses a path that exists and is not a regular file.
func refuseLink(path string) error {
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		return &wheel.LinkError{Path: path, Type: info.Mode().Type()}
	}
	return nil
}
