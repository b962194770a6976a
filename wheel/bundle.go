package wheel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"deps.dev/util/pypi"
)

// WheelhouseDir is the directory of a bundle, next to the wheels. BundleName is
// the file in it that lists its wheels.
const (
	WheelhouseDir = "wheelhouse"
	BundleName    = "bundle.json"
)

// The reasons why a wheel is in a bundle.
const (
	Dependency = "dependency" // required by DeepSpeed or a companion; not sent to nodes that have it
	Companion  = "companion"  // requested by name: every node gets exactly this version
)

// Bundle is a wheelhouse: the packages that DeepSpeed needs in addition to torch for one Python, and
// the companions that were built with it. It never contains torch and torch's dependencies: a node
// has them already, and they are never changed.
type Bundle struct {
	Python string        `json:"python"` // X.Y
	Wheels []BundleWheel `json:"wheels"` // sorted by file
}

// BundleWheel is one wheel of a bundle.
type BundleWheel struct {
	File    string `json:"file"` // in the wheelhouse: a name without a path
	Name    string `json:"name"` // normalised as PEP 503 says
	Version string `json:"version"`
	SHA256  string `json:"sha256"`
	Size    int64  `json:"size"`
	Why     string `json:"why"` // Dependency or Companion
	// Source is the origin of a companion's sources. It is nil for a wheel from an index.
	Source *Source `json:"source,omitempty"`

	Path     string   `json:"-"` // of the file, once read
	Requires []string `json:"-"` // PEP 508, once read
	Commands []string `json:"-"` // that it installs into the environment
	Tags     []string `json:"-"` // once read
	Contents Contents `json:"-"` // what its files show
}

// maxBundle bounds how many wheels a bundle has.
const maxBundle = 2000

var bundlePython = regexp.MustCompile(`^3\.\d{1,2}$`)

// IsTorchPackage reports whether a distribution is torch or comes with it. Such distributions are
// never in a bundle. nvidia-ml-py is not one, because DeepSpeed requires it.
func IsTorchPackage(name string) bool {
	name = pypi.CanonPackageName(name)
	of := []string{"torch", "triton", "pytorch-triton", "cuda-toolkit", "cuda-bindings", "cuda-pathfinder"}
	return slices.Contains(of, name) || strings.HasPrefix(name, "nvidia-") && name != "nvidia-ml-py"
}

// ReadBundle reads the wheelhouse at dir and compares every wheel in it with its entry in
// bundle.json. It ignores wheels that are not listed.
func ReadBundle(ctx context.Context, dir string) (Bundle, error) {
	list := filepath.Join(dir, BundleName)
	text, err := readBounded(list)
	if errors.Is(err, fs.ErrNotExist) {
		return Bundle{}, fileError(list, errors.New("not a wheelhouse: no such file"),
			"create one: dsbuild wheel --bundle")
	}
	if err != nil {
		return Bundle{}, fileError(list, err, bundleHint)
	}
	b, err := parseBundle(text)
	if err != nil {
		return Bundle{}, fileError(list, err, bundleHint)
	}
	for i := range b.Wheels {
		if err := b.Wheels[i].readWheel(ctx, dir); err != nil {
			return Bundle{}, err
		}
	}
	return b, nil
}

const bundleHint = "the wheelhouse is damaged or incomplete: copy it again, or rebuild it with dsbuild wheel --bundle"

// parseBundle parses bundle.json. It rejects entries that could refer to another file or
// distribution.
func parseBundle(text []byte) (Bundle, error) {
	var b Bundle
	if err := json.Unmarshal(text, &b); err != nil {
		return Bundle{}, err
	}
	if !bundlePython.MatchString(b.Python) {
		return Bundle{}, fmt.Errorf("%.20q is not a Python version", b.Python)
	}
	if len(b.Wheels) > maxBundle {
		return Bundle{}, fmt.Errorf("lists more than %d wheels", maxBundle)
	}
	seen := map[string]bool{}
	for _, w := range b.Wheels {
		// Compare a wheel's entry in the list with the name of its file. A valid wheel name contains no
		// path.
		f, err := ParseFileName(w.File)
		switch {
		case err != nil:
			return Bundle{}, fmt.Errorf("%.120q: %w", w.File, err)
		case w.Name != pypi.CanonPackageName(w.Name) || !sameName(f.Name, w.Name) || !sameVersion(f.Version, w.Version):
			return Bundle{}, fmt.Errorf("%s: listed as %.80q, version %.80q", w.File, w.Name, w.Version)
		case !hexSHA256.MatchString(w.SHA256) || w.Size <= 0:
			return Bundle{}, fmt.Errorf("%s: invalid sha256 or size", w.File)
		case w.Why != Dependency && w.Why != Companion:
			return Bundle{}, fmt.Errorf("%s: unknown reason %.40q", w.File, w.Why)
		case IsTorchPackage(w.Name):
			return Bundle{}, fmt.Errorf("%s: dsbuild never replaces torch and its packages", w.File)
		case w.Name == "deepspeed":
			return Bundle{}, fmt.Errorf("%s: DeepSpeed's own wheel must be next to the wheelhouse, not in it", w.File)
		}

		if seen[w.Name] {
			return Bundle{}, fmt.Errorf("lists %s twice", w.Name)
		}
		seen[w.Name] = true
	}
	return b, nil
}

var hexSHA256 = regexp.MustCompile(`^[0-9a-f]{64}$`)

// readWheel compares the file with its entry and sets the fields that are not in bundle.json.
func (w *BundleWheel) readWheel(ctx context.Context, dir string) error {
	w.Path = filepath.Join(dir, w.File)
	if info, err := os.Stat(w.Path); err != nil || !info.Mode().IsRegular() {
		return fileError(w.Path, errors.New("no such file, but "+BundleName+" lists it"), bundleHint)
	}
	sum, size, err := HashFile(w.Path)
	if err != nil {
		return fileError(w.Path, err, bundleHint)
	}
	if sum != w.SHA256 || size != w.Size {
		err := fmt.Errorf("sha256 %s and %d bytes, but %s lists %s and %d", sum, size, BundleName, w.SHA256, w.Size)
		return fileError(w.Path, err, bundleHint)
	}
	a, err := Open(w.Path)
	if err != nil {
		return err
	}
	defer a.Close()
	m, err := a.Metadata()
	if err != nil {
		return err
	}
	if err := CheckOwnFiles(a, w.Why == Companion); err != nil {
		hint := "rebuild the wheelhouse without this wheel"
		if errors.Is(err, ErrRunsAtStart) {
			hint = "if the package may do that, rebuild the wheelhouse with: --with " + w.Name + "==" + w.Version
		}
		return fileError(w.Path, err, hint)
	}
	if w.Contents, err = a.Inspect(ctx); err != nil {
		return err
	}
	w.Requires, w.Tags = m.RequiresDist, a.file.Tags
	w.Commands, err = a.Commands()
	return err
}

// foreignTops lists the files and directories that a DeepSpeed wheel would install outside of its
// package, metadata and scripts. Usually there are none.
func (a *Archive) foreignTops() []string {
	var out []string
	for _, m := range a.members {
		scheme, below := Place(m.Name)
		top, _, inFolder := strings.Cut(below, "/")
		switch {
		case scheme == "scripts", scheme == "" && inFolder && (top == "deepspeed" || top == a.distInfo):
			continue
		case scheme != "":
			top = m.Name
		}
		if !slices.Contains(out, top) {
			out = append(out, top)
		}
	}
	return out
}

// WriteBundle writes bundle.json for the wheels in dir. companions maps their normalised names to
// their sources; a nil source means the index.
func WriteBundle(ctx context.Context, dir, python string, companions map[string]*Source) (Bundle, error) {
	entries, err := os.ReadDir(dir) // sorted
	if err != nil {
		return Bundle{}, err
	}
	b := Bundle{Python: python, Wheels: []BundleWheel{}}
	for _, e := range entries {
		if filepath.Ext(e.Name()) != ".whl" {
			continue
		}
		f, err := ParseFileName(e.Name())
		if err != nil {
			return Bundle{}, fileError(filepath.Join(dir, e.Name()), err, nameHint)
		}
		w := BundleWheel{File: e.Name(), Name: pypi.CanonPackageName(f.Name), Version: f.Version}
		if w.SHA256, w.Size, err = HashFile(filepath.Join(dir, e.Name())); err != nil {
			return Bundle{}, err
		}
		w.Why = Dependency
		if source, ok := companions[w.Name]; ok {
			w.Why, w.Source = Companion, source
		}
		b.Wheels = append(b.Wheels, w)
	}
	text, err := json.MarshalIndent(b, "", "  ")
	if err != nil {
		return Bundle{}, err
	}
	if _, err := parseBundle(text); err != nil {
		return Bundle{}, fileError(filepath.Join(dir, BundleName), err, "")
	}
	if err := os.WriteFile(filepath.Join(dir, BundleName), append(text, '\n'), 0o644); err != nil {
		return Bundle{}, err
	}
	return ReadBundle(ctx, dir)
}
