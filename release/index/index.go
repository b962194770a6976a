// Package index writes a static package index, which pip and uv read from any web server or from the
// file system. It follows PEP 503, with hashes and metadata files (PEP 658, 714).
//
// An installer takes the wheel whose version sorts last, regardless of the hardware, and a version with a
// label sorts after the version without one. A wheel for one GPU would hide the complete build, so each
// kind of build has a separate project page.
package index

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/filelock"
	"github.com/dsbuild/dsbuild/wheel"
)

// Options are the inputs of an index.
type Options struct {
	// Dir is the directory of the index. Write keeps files there that are not part of an index of
	// dsbuild.
	Dir string
	// Wheels are all wheels of the index. Write removes other wheels from it.
	Wheels []string
	// URL is where a server will serve Dir. It may be empty.
	URL string
}

// Summary describes an index after Write, and counts the changes.
type Summary struct {
	Dir     string `json:"dir"`
	Indexes []Page `json:"indexes"` // complete builds first
	Written int    `json:"written"` // files that are new or differ from before
	Removed int    `json:"removed"`
}

// Page is the project page of one kind of build. Its directory is a separate index.
type Page struct {
	Kind   wheel.Kind `json:"kind"`
	Path   string     `json:"path"`   // of its directory, below that of all pages: ./ or all-ops/
	URL    string     `json:"url"`    // for --index-url, if it is known
	Wheels []Entry    `json:"wheels"` // the newest version first
}

// Entry is a file of an index.
type Entry struct {
	Name    string    `json:"name"`
	Version string    `json:"version"`
	Torch   string    `json:"torch"`
	CUDA    string    `json:"cuda"`
	Archs   []string  `json:"archs"`
	PTX     []string  `json:"ptx"`
	CPU     string    `json:"cpu"`
	Python  string    `json:"python"`
	Ops     []string  `json:"ops"`
	Glibc   string    `json:"glibc"`
	SHA256  string    `json:"sha256"`
	Size    int64     `json:"size"`
	BuiltAt time.Time `json:"built_at"`
	Yanked  string    `json:"yanked,omitempty"` // why installers take it only by its whole version (PEP 592)

	requiresPython string
	metadata       []byte
	note           note              // for the mark
	file           string            // its path before it is copied into the index
	beside         map[string]string // its sidecar files there, by suffix
}

// Write makes the index hold exactly these wheels. It verifies each wheel first, and writes
// nothing if a wheel does not match its own metadata. Each file is written atomically and before
// the files that refer to it, and the unwanted files of an earlier index are removed last, so an
// installer that runs meanwhile finds every file that a page lists. Write is idempotent.
func Write(ctx context.Context, opt Options) (Summary, error) {
	sum := Summary{Dir: opt.Dir}
	var err error
	if sum.Indexes, err = read(ctx, opt); err != nil {
		return sum, err
	}
	files, err := layout(sum.Indexes)
	if err != nil {
		return sum, err
	}
	unlock, err := lockDir(ctx, opt.Dir)
	if err != nil {
		return sum, err
	}
	defer unlock()
	sum.Written, sum.Removed, err = replace(ctx, opt.Dir, files)
	return sum, err
}

// usagef returns an error with the exit code of wrong usage.
func usagef(hint, format string, args ...any) error {
	return fault.New(fault.Usage, hint, format, args...)
}

// notWritable returns the error of a directory that is not writable.
func notWritable(dir string, err error) error {
	return usagef("choose a writable directory", "cannot write to %s: %w", dir, err)
}

// lockDir waits until no other run changes the index.
func lockDir(ctx context.Context, dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, notWritable(dir, err)
	}
	lockFile := filepath.Join(dir, lockName)
	if err := wheel.RequireRegular(lockFile); err != nil {
		return nil, err
	}
	release, err := filelock.Take(ctx, lockFile, filelock.Options{Wait: time.Hour})
	if errors.Is(err, fs.ErrPermission) {
		return nil, notWritable(dir, err)
	}
	return release, err
}

// read verifies the wheels and sorts them into pages.
func read(ctx context.Context, opt Options) ([]Page, error) {
	if len(opt.Wheels) == 0 {
		return nil, usagef("specify a wheel, or a directory of wheels: --wheel PATH", "no wheels for the index")
	}
	earlier, err := readMark(opt.Dir)
	if err != nil {
		return nil, err
	}
	var all []Entry
	named := map[string]int{} // where a wheel is in all
	var wrong []error
	folders := wheel.Folders{}
	for _, file := range opt.Wheels {
		w, err := open(ctx, file, folders, earlier.Wheels, opt.Dir)
		i, twice := named[w.Name]
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err != nil:
			wrong = append(wrong, err)
			continue
		case twice && all[i].SHA256 != w.SHA256:
			wrong = append(wrong, usagef("remove one of them, or write two indexes",
				"duplicate wheel name %s: %s and %s", w.Name, all[i].file, w.file))
			continue
		case twice:
			all[i].merge(w)
			continue
		}
		named[w.Name] = len(all)
		all = append(all, w)
	}
	if len(wrong) > 0 {
		return nil, errors.Join(wrong...)
	}
	return paged(all, opt.URL), nil
}

// merge adds the sidecar files of another copy of the wheel, such as a second signature.
func (w *Entry) merge(other Entry) {
	if w.beside[wheel.ManifestSuffix] == "" && other.beside[wheel.ManifestSuffix] != "" {
		w.BuiltAt = other.BuiltAt
	}
	if other.note.found {
		w.note, w.file = other.note, other.file
	}
	for suffix, file := range other.beside {
		w.beside[suffix] = cmp.Or(w.beside[suffix], file)
	}
}

// open reads a wheel built by dsbuild and checks it against its own metadata. It reuses the result
// recorded in the index in dir, if any.
func open(
	ctx context.Context, file string, folders wheel.Folders, notes map[string]note, dir string,
) (Entry, error) {
	w := Entry{file: file, beside: map[string]string{}}
	if err := wheel.RequireRegular(file); err != nil {
		return w, err
	}
	suffixes, err := folders.Beside(file)
	if err != nil {
		return w, err
	}
	for _, suffix := range suffixes {
		w.beside[suffix] = file + suffix
	}
	w.note, w.metadata, err = findNote(file, notes, dir)
	if err == nil && !w.note.found {
		w.note, w.metadata, err = verify(ctx, file)
	}
	if err != nil {
		return w, err
	}
	before := w.note.Beside
	w.note.Beside = map[string]stamp{}
	for suffix := range w.beside {
		if s, known := before[suffix]; known {
			w.note.Beside[suffix] = s
		}
	}
	said, err := wheel.ParseMetadata(w.metadata)
	if err != nil {
		return w, err
	}
	m := w.note.Manifest
	w.Name, w.Version, w.Python, w.Ops, w.Glibc = m.Name, m.Version, m.Python, m.Ops, m.Glibc
	w.Torch, w.CUDA, w.CPU = m.Torch, strings.Join(m.CUDAs(), ", "), m.CPU
	w.Archs, w.PTX = append([]string{}, m.Archs...), append([]string{}, m.PTX...)
	w.SHA256, w.Size = m.SHA256, m.Size
	w.requiresPython, w.BuiltAt = said.RequiresPython, w.note.Modified.UTC().Truncate(time.Second)
	if text, err := os.ReadFile(file + wheel.ManifestSuffix); err == nil {
		if m, err := wheel.ParseManifest(text); err == nil && m.BuiltAt != nil {
			w.BuiltAt = m.BuiltAt.UTC()
		}
	}
	return w, nil
}

// findNote returns the note about a wheel and its METADATA in an index, unless the wheel or the
// METADATA has changed.
func findNote(file string, notes map[string]note, dir string) (n note, metadata []byte, err error) {
	info, err := os.Lstat(file)
	if err != nil {
		return note{}, nil, err
	}
	n, ok := notes[filepath.Base(file)]
	if !ok || !n.fits(info) {
		return note{}, nil, nil
	}
	metadata, err = os.ReadFile(filepath.Join(dir, pathOf(wheel.KindOf(n.Manifest)), project, filepath.Base(file)+metadataSuffix))
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
	n = note{stamp: stamp{Size: info.Size(), Modified: info.ModTime()}}
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

// remoteDir matches a URL, and a remote directory in scp's syntax. One letter before a colon is a
// Windows drive.
var remoteDir = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9+.-]+:|[^\s/:@]+@[^\s/]+:)`)

// CheckDir rejects a directory that is not on this machine. The error does not repeat
// it, because it may hold a password.
func CheckDir(text string) error {
	if text == "" || remoteDir.MatchString(text) {
		return usagef(
			"write the index into a local directory, then upload that: aws s3 sync public s3://BUCKET (docs/distribute.md)",
			"the index must be a local directory")
	}
	return nil
}

// CheckURL returns an error if installers cannot use the URL of an index. The error does not repeat
// the URL, which may contain a password.
func CheckURL(text string) error {
	at, err := url.Parse(text)
	switch {
	case err != nil || !slices.Contains([]string{"http", "https", "file"}, at.Scheme) ||
		at.Host == "" && at.Scheme != "file":
		return errors.New("must be a URL such as https://wheels.example.org/deepspeed/")
	case at.User != nil || at.RawQuery != "" || at.Fragment != "":
		return errors.New("must have no login, query or fragment")
	}
	return nil
}
