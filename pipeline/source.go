package pipeline

import (
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/wheel"
)

// Source is the origin of a wheel's sources. Except for releases, File is a reproducible tar.gz of
// a clean copy.
type Source struct {
	Kind    string // release, git, path or sdist, as in wheel.Source
	Ref     string // the release; URL and reference of git, without credentials; else the file's name
	Commit  string // of git, or a local checkout's HEAD
	SHA256  string // of File
	Version string // PEP 440, as in the sources; empty if only a build determines it
	Dirty   bool   // a local checkout that differs from its commit
	File    string // "" for a release
}

// The kinds of sources.
const (
	SourceRelease = "release"
	SourceGit     = "git"
	SourcePath    = "path"
	SourceSdist   = "sdist"
)

// Manifest returns the source in the form of a wheel's manifest.
func (s Source) Manifest() wheel.Source {
	return wheel.Source{Kind: s.Kind, Ref: s.Ref, Commit: s.Commit, SHA256: s.SHA256}
}

// Release returns the source distribution of a release.
func Release(version, sha256 string) Source {
	return Source{Kind: SourceRelease, Ref: version, Version: version, SHA256: sha256}
}

// localVersion returns the part of a wheel's version that identifies sources other than a release:
// the commit, and for changed sources or sources without a commit, a hash of the copy.
func (s Source) localVersion() string {
	var parts []string
	if s.Commit != "" {
		parts = append(parts, "g"+s.Commit[:7])
	}
	if s.Dirty || s.Kind != SourceRelease && s.Commit == "" {
		parts = append(parts, "s"+s.SHA256[:7])
	}
	return strings.Join(parts, ".")
}

// badSource returns the error for an unusable source: wrong usage, unless err has another exit code. arg
// contains no credentials.
func badSource(arg string, err error, hint string) error {
	return fault.New(cmp.Or(fault.ExitCode(err), fault.Usage), hint, "source %s: %w", arg, err)
}

// project describes the files of a source tree.
type project struct {
	// check returns the name of the copy, without a suffix, and the version, or "" if the tree has
	// none.
	check func(t *tree) (name, version string, err error)
	// stale reports files that earlier builds left: the copy omits them.
	stale func(name string) bool
	// environ is the user's environment, with git's and the network's settings.
	environ []string
}

// OpenSource opens the sources of DeepSpeed in arg: a release, a git reference
// (git+URL@REF), a directory, or a source distribution. For all but releases it writes a clean
// copy into dir, which the caller owns. git gets its settings from environ.
func OpenSource(ctx context.Context, arg, dir string, environ []string) (Source, error) {
	if isRelease(arg) {
		return Source{Kind: SourceRelease, Ref: arg, Version: arg}, nil
	}
	return project{checkDeepSpeed, staleDeepSpeed, environ}.openSource(ctx, arg, dir)
}

const sourceForms = "use a release (0.19.8), git+URL@REF (https, ssh or file), a directory, or a source distribution (.tar.gz)"

// openSource copies sources that are not a release.
func (p project) openSource(ctx context.Context, arg, dir string) (Source, error) {
	if git, ok := strings.CutPrefix(arg, "git+"); ok {
		// Copy a commit of a repository.
		want, err := parseGit(git)
		if err != nil {
			return Source{}, err
		}
		s := Source{Kind: SourceGit, Ref: want.shown}
		return p.openUnpacked(ctx, &s, dir, func(root *os.Root) (err error) {
			s.Commit, err = want.unpackCommit(ctx, root.Name()+".git", root, p.environ)
			return err
		})
	}
	info, err := os.Stat(arg)
	switch {
	case strings.Contains(arg, "://"):
		return Source{}, badSource(redactURL(arg), errors.New("missing git+ before the URL"),
			"for a Git repository, use git+URL@REF")
	case errors.Is(err, fs.ErrNotExist):
		return Source{}, badSource(redactURL(arg), errors.New("not a release, and no such file or directory"), sourceForms)
	case err != nil:
		return Source{}, badSource(redactURL(arg), err, "")
	case info.IsDir():
		// Copy a local checkout or an unpacked tree in its current state.
		full, err := filepath.Abs(arg)
		if err == nil {
			full, err = filepath.EvalSymlinks(full)
		}
		if err != nil {
			return Source{}, badSource(arg, err, "")
		}
		s := Source{Kind: SourcePath, Ref: filepath.Base(full)}
		t, err := openTree(full)
		if err != nil {
			return Source{}, badSource(arg, err, "")
		}
		defer t.close()
		work, err := openCheckout(ctx, full, dir, p.environ)
		if err == nil && work != nil {
			s.Commit, s.Dirty = work.commit, work.dirty
			t.names = work.files
		} else if err == nil {
			err = t.walkFiles()
		}
		if err != nil {
			return Source{}, sourceError(ctx, arg, err)
		}
		return p.finishSource(ctx, s, t, dir)
	case info.Mode().IsRegular():
		return p.openSdist(ctx, arg, dir)
	}
	return Source{}, badSource(redactURL(arg), errors.New("neither a file nor a directory"), sourceForms)
}

// finishSource checks the tree and writes the copy.
func (p project) finishSource(ctx context.Context, s Source, t *tree, dir string) (Source, error) {
	if err := t.selectFiles(p.stale); err != nil {
		return Source{}, sourceError(ctx, s.Ref, err)
	}
	name, version, err := p.check(t)
	if err != nil {
		return Source{}, sourceError(ctx, s.Ref, err)
	}
	s.Version, s.File = version, filepath.Join(dir, name+".tar.gz")
	if s.SHA256, err = t.packTar(ctx, name, s.File); err != nil {
		return Source{}, sourceError(ctx, s.Ref, err)
	}
	return s, nil
}

// sourceError returns err as the error of the source ref.
func sourceError(ctx context.Context, ref string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return badSource(ref, err, "")
}

// openSdist repacks a source distribution.
func (p project) openSdist(ctx context.Context, file, dir string) (Source, error) {
	f, err := wheel.OpenFile(file)
	if err != nil {
		return Source{}, badSource(file, err, "")
	}
	defer f.Close()
	s := Source{Kind: SourceSdist, Ref: filepath.Base(file)}
	return p.openUnpacked(ctx, &s, dir, func(root *os.Root) error {
		zip, err := gzip.NewReader(f)
		if err != nil {
			err = fmt.Errorf("not a valid .tar.gz: %w", err)
		} else {
			err = unpackTar(ctx, zip, root)
		}
		return fault.AddHint(err, "use a source distribution: NAME-VERSION.tar.gz with one directory NAME-VERSION")
	})
}

// openUnpacked copies a source that unpack extracts to an empty directory.
func (p project) openUnpacked(ctx context.Context, s *Source, dir string, unpack func(*os.Root) error) (Source, error) {
	place, err := os.MkdirTemp(dir, ".tree-")
	if err != nil {
		return Source{}, err
	}
	defer os.RemoveAll(place) //nolint:errcheck // the caller removes dir anyway
	t, err := openTree(place)
	if err != nil {
		return Source{}, err
	}
	defer t.close()
	if err = unpack(t.root); err == nil {
		err = t.walkFiles()
	}
	if err != nil {
		return Source{}, sourceError(ctx, s.Ref, err)
	}
	return p.finishSource(ctx, *s, t, dir)
}

// checkDeepSpeed returns the version of a tree, which must be DeepSpeed's.
func checkDeepSpeed(t *tree) (name, version string, err error) {
	var missing []string
	for _, need := range []string{"setup.py", "op_builder/", "version.txt"} {
		// PKG-INFO has a version, too.
		if !t.hasFile(need) && !(need == "version.txt" && t.hasFile("PKG-INFO")) {
			missing = append(missing, need)
		}
	}
	if len(missing) > 0 {
		err := fmt.Errorf("not DeepSpeed's sources: missing %s", strings.Join(missing, ", "))
		return "", "", fault.WithHint(err,
			"specify the top directory of a checkout or of an unpacked source distribution")
	}
	if version, err = t.readVersion(); err != nil {
		return "", "", err
	}
	return "deepspeed-" + version, version, nil
}

// staleDeepSpeed reports whether a file was generated by an earlier build in the tree, or when the
// source distribution was built. A build.txt would determine the version, and extensions would be
// packed unchanged.
func staleDeepSpeed(name string) bool {
	return name == "build.txt" || name == "deepspeed/git_version_info_installed.py" ||
		strings.HasSuffix(name, ".so") || staleProject(name)
}

// staleProject reports the files that a build leaves in any Python project.
func staleProject(name string) bool {
	top, _, inside := strings.Cut(name, "/")
	if inside && (top == "build" || top == "dist") || strings.HasSuffix(name, ".pyc") {
		return true
	}
	elements := strings.Split(name, "/")
	folders := elements[:len(elements)-1]
	return slices.Contains(elements, ".git") || // it is a file in submodules
		slices.Contains(folders, "__pycache__") ||
		slices.ContainsFunc(folders, func(e string) bool { return strings.HasSuffix(e, ".egg-info") })
}

// readVersion returns the version in version.txt, or else in PKG-INFO.
func (t *tree) readVersion() (string, error) {
	from := "version.txt"
	if !t.hasFile(from) {
		from = "PKG-INFO"
	}
	f, err := t.root.Open(from)
	if err != nil {
		return "", err
	}
	defer f.Close()
	const most = 1 << 20
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return "", err
	}
	if len(text) > most {
		return "", fmt.Errorf("%s: larger than %d bytes", from, most)
	}
	version := strings.TrimSpace(string(text))
	if from == "PKG-INFO" {
		m, err := wheel.ParseMetadata(text)
		if err != nil {
			return "", fmt.Errorf("PKG-INFO: %w", err)
		}
		version, _, _ = strings.Cut(m.Version, "+")
	}
	if len(version) > 64 || !pep440.MatchString(version) {
		return "", fmt.Errorf("%s: %.64q is not a version", from, version)
	}
	return version, nil
}

// pep440 matches versions as PEP 440 writes them; releaseForm matches those of releases.
var (
	pep440 = regexp.MustCompile(`^(?i)(\d+!)?\d+(\.\d+)*([-_.]?(a|b|c|rc|alpha|beta|pre|preview)[-_.]?\d*)?` +
		`(-\d+|[-_.]?(post|rev|r)[-_.]?\d*)?([-_.]?dev[-_.]?\d*)?(\+[a-z0-9]+([-_.][a-z0-9]+)*)?$`)
	releaseForm = regexp.MustCompile(`^\d+(\.\d+)+((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?$`)
)

func isRelease(arg string) bool { return releaseForm.MatchString(arg) }
