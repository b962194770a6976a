// Package index writes a package index that consists of files only: any web server, or the file
// system, serves it to pip and uv. It follows PEP 503 and 691, with hashes and the metadata of
// each wheel beside it (PEP 658, 714), and sizes and times (PEP 700).
//
// Wheels of one version for different torches, CUDAs, GPUs or CPUs would hide each other: an
// installer takes the wheel whose version sorts last, whatever hardware the machine has. So each
// toolchain has an index of its own, and a page helps people choose one.
package index

import (
	"context"
	"errors"
	"fmt"
	"os"
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
}

// Summary describes an index after Write, and counts the changes.
type Summary struct {
	Dir     string      `json:"dir"`
	Indexes []Toolchain `json:"indexes"` // the newest torch first
	Written int         `json:"written"` // files that are new or differ from before
	Removed int         `json:"removed"`
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
	requiresPython string
	metadata       []byte
	file           string // its path before it is copied into the index
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
	var err error
	if sum.Indexes, err = read(ctx, opt); err != nil {
		return sum, err
	}
	files, err := layout(opt, sum.Indexes)
	if err != nil {
		return sum, err
	}
	if err := os.MkdirAll(opt.Dir, 0o755); err != nil {
		return sum, err
	}
	lockFile := filepath.Join(opt.Dir, lockName)
	if err := refuseLink(lockFile); err != nil {
		return sum, err
	}
	lock := flock.New(lockFile)
	if _, err := lock.TryLockContext(ctx, 100*time.Millisecond); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return sum, fmt.Errorf("the lock of %s: %w", opt.Dir, err)
	}
	defer lock.Close()
	sum.Written, sum.Removed, err = replace(ctx, opt.Dir, files)
	return sum, err
}

// read verifies the wheels and sorts them into toolchains.
func read(ctx context.Context, opt Options) ([]Toolchain, error) {
	if len(opt.Wheels) == 0 {
		return nil, &ConflictError{"no wheels for the index", "name a wheel, or a folder with wheels"}
	}
	found := map[string]*Toolchain{}
	named := map[string]Wheel{}
	var wrong []error
	for _, file := range opt.Wheels {
		w, tc, err := open(ctx, file)
		switch other, twice := named[w.Name]; {
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
			continue
		}
		named[w.Name] = w
		if found[tc.Name] == nil {
			if opt.URL != "" {
				tc.URL = strings.TrimRight(opt.URL, "/") + "/" + tc.Name + "/"
			}
			found[tc.Name] = &tc
		}
		found[tc.Name].Wheels = append(found[tc.Name].Wheels, w)
	}
	if len(wrong) > 0 {
		return nil, errors.Join(wrong...)
	}
	all := make([]Toolchain, 0, len(found))
	for _, tc := range found {
		slices.SortFunc(tc.Wheels, newest)
		supersede(tc.Wheels)
		all = append(all, *tc)
	}
	slices.SortFunc(all, Toolchain.compare)
	return all, nil
}

// open reads a wheel built by dsbuild, and checks it against its own metadata.
func open(ctx context.Context, file string) (Wheel, Toolchain, error) {
	beside, err := besideWheel(file)
	if err != nil {
		return Wheel{}, Toolchain{}, err
	}
	for _, suffix := range append(beside, "") {
		if err := refuseLink(file + suffix); err != nil {
			return Wheel{}, Toolchain{}, err
		}
	}
	v, err := wheel.Verify(ctx, file)
	if err == nil {
		err = v.Err()
	}
	if err != nil {
		return Wheel{}, Toolchain{}, err
	}
	m, err := wheel.ReadManifest(file)
	if err != nil {
		return Wheel{}, Toolchain{}, err
	}
	tc, err := toolchainOf(m)
	if err != nil {
		return Wheel{}, Toolchain{}, err
	}
	w := Wheel{
		Name: m.Name, Version: m.Version, Python: m.Python, Ops: m.Ops, Glibc: m.Glibc, SHA256: m.SHA256, Size: m.Size,
		commit: m.Source.Commit, file: file,
	}
	if w.BuiltAt, err = builtAt(file); err != nil {
		return Wheel{}, Toolchain{}, err
	}
	a, err := wheel.Open(file)
	if err != nil {
		return Wheel{}, Toolchain{}, err
	}
	defer a.Close()
	if w.metadata, err = a.MetadataText(); err != nil {
		return Wheel{}, Toolchain{}, err
	}
	said, err := a.Metadata()
	w.requiresPython = said.RequiresPython
	return w, tc, err
}

// besideWheel returns the suffixes of the files that accompany a wheel; some of them may be missing.
func besideWheel(file string) ([]string, error) {
	all := []string{wheel.ManifestSuffix, wheel.ProvenanceSuffix, wheel.ByteCodeSuffix}
	signatures, err := wheel.SignatureFiles(file)
	for _, f := range signatures {
		all = append(all, strings.TrimPrefix(filepath.Base(f), filepath.Base(file)))
	}
	return all, err
}

// refuseLink refuses a path that exists and is not a regular file.
func refuseLink(path string) error {
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		return &wheel.LinkError{Path: path, Type: info.Mode().Type()}
	}
	return nil
}

// builtAt returns the build time from the manifest beside a wheel; without a manifest, the time
// when the file was written.
func builtAt(file string) (time.Time, error) {
	if text, err := os.ReadFile(file + wheel.ManifestSuffix); err == nil {
		if m, err := wheel.ParseManifest(text); err == nil && m.BuiltAt != nil {
			return m.BuiltAt.UTC(), nil
		}
	}
	info, err := os.Stat(file)
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime().UTC().Truncate(time.Second), nil
}
