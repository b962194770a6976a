// Package wheels reads the wheels that a user wants on the nodes, and chooses one for each node.
package wheels

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/wheel"
)

// Wheel is one wheel that can be deployed.
type Wheel struct {
	Path     string
	Manifest wheel.Manifest // with the file's SHA256 and Size
	Version  string         // from its METADATA
	Requires []string       // PEP 508, one requirement each
	Commands []string       // commands that it installs into the environment

	ByteCode *File // the byte code file beside it; nil: nodes compile it themselves
}

// File is a local file with its digest.
type File struct {
	Path, SHA256 string
	Size         int64
}

// Ref names the wheel for a report.
func (w Wheel) Ref() *report.Wheel {
	return &report.Wheel{Name: w.Manifest.Name, SHA256: w.Manifest.SHA256, Version: w.Version}
}

// Kind is equal for nodes that should be alike: those that run the same wheel and, if it is for
// several torches and Pythons, have the same of these.
func (w Wheel) Kind(f node.Facts) string {
	if w.Manifest.TorchABI.IsStable() {
		return strings.Join([]string{w.Manifest.SHA256, wheel.Minor(f.Torch), f.TorchCUDA, wheel.Minor(f.Python)}, " ")
	}
	return w.Manifest.SHA256
}

// AnyStable reports whether one of the wheels is of torch's stable ABI: then nodes with several
// torches run it on purpose.
func AnyStable(all []Wheel) bool {
	return slices.ContainsFunc(all, func(w Wheel) bool { return w.Manifest.TorchABI.IsStable() })
}

const buildHint = "build one for these nodes: dsbuild wheel --for INVENTORY; or name one: --wheel FILE"

// Load reads the wheel at path, or every wheel in the folder at path. It counts copies of a
// wheel once. A damaged wheel is an error with exit code 4.
func Load(ctx context.Context, path string) ([]Wheel, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fault.New(fault.Usage, buildHint, "no wheel: %s does not exist", path)
	case err != nil:
		return nil, fault.New(fault.Usage, "", "no wheel: %w", err)
	}
	files := []string{path}
	if info.IsDir() {
		// ReadDir instead of Glob, because the folder's name may contain a star.
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, fault.New(fault.Usage, "", "no wheel: %w", err)
		}
		files = nil
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), ".whl") {
				files = append(files, filepath.Join(path, e.Name()))
			}
		}
	}
	if len(files) == 0 {
		return nil, fault.New(fault.Usage, buildHint, "no wheel in %s", path)
	}
	var wheels []Wheel
	for _, file := range files {
		w, err := loadWheel(ctx, file)
		if err != nil {
			return nil, err
		}
		// Nodes check the byte code against the manifest. It only saves time, so an unreadable file counts as none.
		if w.Manifest.ByteCode != nil {
			if sum, size, err := wheel.HashFile(file + wheel.ByteCodeSuffix); err == nil {
				w.ByteCode = &File{Path: file + wheel.ByteCodeSuffix, SHA256: sum, Size: size}
			}
		}
		if !slices.ContainsFunc(wheels, func(o Wheel) bool { return o.Manifest.SHA256 == w.Manifest.SHA256 }) {
			wheels = append(wheels, w)
		}
	}
	return wheels, nil
}

// Read verifies a wheel of any distribution. For a wheel that dsbuild did not build, it derives the manifest from
// the contents.
func Read(ctx context.Context, file string) (Wheel, wheel.Contents, error) {
	v, err := wheel.Verify(ctx, file)
	if _, closed := err.(*fs.PathError); closed { //nolint:errorlint // a damaged wheel may wrap one
		err = fault.New(fault.Usage, "", "no wheel: %w", err)
	}
	if err == nil {
		err = v.Err()
	}
	if err != nil {
		return Wheel{}, v.Contents, err
	}
	m := v.Contents.Manifest()
	if v.Manifest != nil {
		m = *v.Manifest
	}
	m.Name, m.SHA256, m.Size = filepath.Base(file), v.SHA256, v.Size
	return Wheel{Path: file, Manifest: m, Version: v.Contents.Version, Requires: v.Contents.Requires}, v.Contents, nil
}

// loadWheel reads a wheel of DeepSpeed. Before dsbuild contacts any node, it refuses a damaged wheel, and one that
// would put files into the folders of other packages.
func loadWheel(ctx context.Context, file string) (Wheel, error) {
	w, c, err := Read(ctx, file)
	if err != nil {
		return w, err
	}
	if !c.IsDeepSpeed() {
		return w, fault.New(fault.Usage, buildHint, "%s: it is a wheel of %s; dsbuild deploys only DeepSpeed", file, c.Name)
	}
	a, err := wheel.Open(file)
	if err != nil {
		return w, err
	}
	defer a.Close()
	if foreign := a.ForeignTops(); len(foreign) > 0 {
		return w, wheel.NotDeployable(filepath.Base(file), fmt.Sprintf("it would put files outside of DeepSpeed's own folder: %s", strings.Join(foreign[:min(len(foreign), 5)], ", ")))
	}
	w.Commands, err = a.Commands() // only a node can tell whether one belongs to another package there
	return w, err
}
