package wheel

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// Loaded is a wheel that was read and verified, as nodes get it.
type Loaded struct {
	Path     string
	Manifest Manifest // with the file's SHA256 and Size
	Version  string   // from its METADATA
	Requires []string // PEP 508, one requirement each
	Commands []string // commands that it installs into the environment

	ByteCode *ByteCodeFile // its byte code file; if nil, nodes compile the modules
}

// ByteCodeFile is the file with the byte code of a wheel's modules.
type ByteCodeFile struct {
	Path, SHA256 string
	Size         int64
}

// AnyStable reports whether one of the wheels uses torch's stable ABI, so that nodes may have
// different torch versions.
func AnyStable(all []Loaded) bool {
	return slices.ContainsFunc(all, func(w Loaded) bool { return w.Manifest.TorchABI.IsStable() })
}

func buildHint() string {
	return "build one for these nodes: " + fault.Command{Do: "wheel"}.String() + "; or pass --wheel FILE"
}

// LoadAll reads the wheel at path, or every wheel in the directory at path. Copies of a wheel are returned once.
// Of several builds of a wheel, it returns only the newest, as installers do. A damaged wheel is an error with
// exit code 4.
func LoadAll(ctx context.Context, path string) ([]Loaded, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fault.New(fault.Usage, buildHint(), "wheel not found: %s", path)
	case err != nil:
		return nil, fault.New(fault.Usage, "", "cannot read wheel: %w", err)
	}
	files := []string{path}
	if info.IsDir() {
		// ReadDir instead of Glob, because the directory's name may contain a star.
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, fault.New(fault.Usage, "", "cannot read wheel: %w", err)
		}
		files = nil
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), ".whl") {
				files = append(files, filepath.Join(path, e.Name()))
			}
		}
	}
	if len(files) == 0 {
		return nil, fault.New(fault.Usage, buildHint(), "no wheels in %s", path)
	}
	var loaded []Loaded
	for _, file := range files {
		w, err := loadDeepSpeed(ctx, file)
		if err != nil {
			return nil, err
		}
		// Nodes check the byte code against the manifest. It only saves time, so an unreadable file is ignored.
		if w.Manifest.ByteCode != nil {
			if sum, size, err := HashFile(file + ByteCodeSuffix); err == nil {
				w.ByteCode = &ByteCodeFile{Path: file + ByteCodeSuffix, SHA256: sum, Size: size}
			}
		}
		if !slices.ContainsFunc(loaded, func(o Loaded) bool { return o.Manifest.SHA256 == w.Manifest.SHA256 }) {
			loaded = append(loaded, w)
		}
	}
	return slices.DeleteFunc(slices.Clone(loaded), func(w Loaded) bool {
		return slices.ContainsFunc(loaded, func(o Loaded) bool {
			return o.Manifest.Recipe > w.Manifest.Recipe && WithoutBuildTag(o.Manifest.Name) == WithoutBuildTag(w.Manifest.Name)
		})
	}), nil
}

// Load verifies a wheel of any distribution. For a wheel that dsbuild did not build, it derives the manifest from
// the contents.
func Load(ctx context.Context, file string) (Loaded, Contents, error) {
	v, err := Verify(ctx, file)
	if _, closed := err.(*fs.PathError); closed { //nolint:errorlint // a damaged wheel may wrap one
		err = fault.New(fault.Usage, "", "cannot read wheel: %w", err)
	}
	if err == nil {
		err = v.Err()
	}
	if err != nil {
		return Loaded{}, v.Contents, err
	}
	m := v.Contents.Manifest()
	if v.Manifest != nil {
		m = *v.Manifest
	}
	m.Name, m.SHA256, m.Size = filepath.Base(file), v.SHA256, v.Size
	return Loaded{Path: file, Manifest: m, Version: v.Contents.Version, Requires: v.Contents.Requires}, v.Contents, nil
}

// loadDeepSpeed reads a DeepSpeed wheel. It rejects damaged wheels, and wheels with files in other packages'
// directories, before any node is contacted.
func loadDeepSpeed(ctx context.Context, file string) (Loaded, error) {
	w, c, err := Load(ctx, file)
	if err != nil {
		return w, err
	}
	if !c.IsDeepSpeed() {
		return w, fault.New(fault.Usage, buildHint(), "%s is a wheel of %s; only DeepSpeed can be deployed", file, c.Name)
	}
	a, err := Open(file)
	if err != nil {
		return w, err
	}
	defer a.Close()
	if foreign := a.foreignTops(); len(foreign) > 0 {
		finding := "would write files outside DeepSpeed's own directory: " + strings.Join(foreign[:min(len(foreign), 5)], ", ")
		return w, auditError(filepath.Base(file), []string{finding}, "build the wheel with dsbuild wheel")
	}
	w.Commands, err = a.Commands() // only a node knows whether one belongs to another package
	return w, err
}
