package envdeploy

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"deps.dev/util/pypi"

	"github.com/dsbuild/dsbuild/fleet/environment"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/wheel"
)

// Files are the files of a lock on this machine.
type Files struct {
	Paths     map[string]string         // by sha256; each file was compared with the lock
	Wheels    map[string]*wheel.Loaded  // the wheels of DeepSpeed among them
	Unpacked  map[string]int64          // bytes that each needs once it is installed
	Digests   map[string]string         // of the files that each installs into site-packages
	Manifests map[string]wheel.Manifest // what other wheels show of the nodes that they run on; see ReadManifests
}

// OpenFiles reads files that were collected. It rejects wheels that would write files of others.
func OpenFiles(ctx context.Context, l *environment.Lock, paths map[string]string) (*Files, error) {
	f := &Files{
		Paths: paths, Wheels: map[string]*wheel.Loaded{},
		Unpacked: map[string]int64{}, Digests: map[string]string{},
	}
	written := map[string]map[string]string{} // by the sha256 of a wheel
	for _, set := range l.Sets {
		if python := set.Python; python != nil && paths[python.SHA256] != "" {
			a, err := environment.OpenArchive(paths[python.SHA256])
			if err != nil {
				return nil, err
			}
			if a.Tree() != python.Tree || a.Program != python.Program {
				return nil, environment.NewArchiveError(python.File, errors.New("files do not match the lockfile: re-lock"))
			}
			f.Unpacked[python.SHA256] = a.Unpacked
		}
		for _, file := range append([]environment.File{set.Installer}, set.Files...) {
			at := paths[file.SHA256]
			if _, done := f.Digests[file.SHA256]; done || at == "" {
				continue
			}
			var err error
			if written[file.SHA256], err = f.open(file, at, l.Python); err != nil {
				return nil, err
			}
		}
		if err := apart(set.Files, written); err != nil {
			return nil, err
		}
		if ds := set.File("deepspeed"); ds != nil && paths[ds.SHA256] != "" {
			loaded, err := wheel.LoadAll(ctx, paths[ds.SHA256])
			if err != nil {
				return nil, err
			}
			f.Wheels[ds.SHA256] = &loaded[0]
		}
	}
	return f, nil
}

// ReadManifests reads the machine code of the wheels of each set, except DeepSpeed's, which has a manifest, and torch
// and its packages, which are chosen by version.
func (f *Files) ReadManifests(ctx context.Context, l *environment.Lock, sums environment.Sums) error {
	f.Manifests = map[string]wheel.Manifest{}
	for _, set := range l.Sets {
		for _, file := range set.Files {
			at, key := f.Paths[file.SHA256], file.SHA256+set.Machine
			if _, done := f.Manifests[key]; done || at == "" || f.Wheels[file.SHA256] != nil || wheel.IsTorchPackage(file.Name) {
				continue
			}
			var err error
			if f.Manifests[key], err = sums.Manifest(ctx, at, file, "linux_"+set.Machine); err != nil {
				return err
			}
		}
	}
	return nil
}

// open reads the wheel of a file, and returns what it writes.
func (f *Files) open(file environment.File, at, python string) (map[string]string, error) {
	a, err := wheel.Open(at)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	for _, m := range a.Members() {
		f.Unpacked[file.SHA256] += m.Size
	}
	if meta, err := a.Metadata(); err != nil || file.Name != "" && pypi.CanonPackageName(meta.Name) != file.Name {
		return nil, cmp.Or(err, refuseWheel("%s is a wheel of %s, not of %s", path.Base(at), meta.Name, file.Name))
	}
	if err := wheel.CheckOwnFiles(a, file.Named); err != nil {
		if err = refuseWheel("%w", err); errors.Is(err, wheel.ErrRunsAtStart) {
			err = fault.WithHint(err, "if it may do that, list %s under requirements: in the environment file, and re-lock: %s",
				file.Name, fault.Command{Do: "env lock"})
		}
		return nil, err
	}
	if f.Digests[file.SHA256], err = installedDigest(a, python); err != nil {
		return nil, fmt.Errorf("%s: %w", path.Base(at), err)
	}
	return wheel.Written(a)
}

func refuseWheel(format string, args ...any) error {
	hint := "remove the package from the environment file, or use another wheel of it; then re-lock: " + fault.Command{Do: "env lock"}.String()
	return fault.New(fault.Usage, hint, format, args...)
}

// apart rejects two wheels that write different bytes to the same path.
func apart(files []environment.File, written map[string]map[string]string) error {
	first := map[string]environment.File{}
	for _, f := range files {
		for _, name := range slices.Sorted(maps.Keys(written[f.SHA256])) {
			other, taken := first[name]
			if taken && written[other.SHA256][name] != written[f.SHA256][name] {
				return refuseWheel("%s and %s both install %s", other.File, f.File, name)
			}
			first[name] = f
		}
	}
	return nil
}

// installedDigest is the digest of the files that a wheel puts into the site-packages of an
// environment with Python X.Y, computed as places.py does for installed ones.
func installedDigest(a *wheel.Archive, python string) (string, error) {
	files, err := a.InstalledFiles("lib/python" + python + "/site-packages")
	if err != nil {
		return "", err
	}
	for _, name := range []string{"INSTALLER", "REQUESTED", "RECORD", "direct_url.json"} { // installers write these
		delete(files, path.Join(a.DistInfo(), name))
	}
	var lines []string
	for name, sum := range files {
		lines = append(lines, name+"\x00"+sum+"\n")
	}
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(strings.Join(lines, "")))
	return hex.EncodeToString(sum[:]), nil
}
