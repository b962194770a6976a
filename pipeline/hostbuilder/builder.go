// Package hostbuilder runs a plan on this machine, without root and without a
// container engine: in a private directory, with the Python environments that
// the images' own scripts make there.
package hostbuilder

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/adrg/xdg"

	"github.com/dsbuild/dsbuild/pipeline"
)

// Options configure a Builder.
type Options struct {
	// Dir keeps environments, downloads and cached objects from build to build, and the private
	// files of a build while it runs.
	Dir string
	// Environ is the caller's environment, in the form of os.Environ. Its PATH determines the
	// compilers, TMPDIR is the place of scratch files, and the builder passes on its settings of
	// proxies and indexes.
	Environ []string
	// Network has the settings for steps that fetch or compile.
	Network pipeline.Network
	// Env is the environment that the wheel is for, with --env; else nil.
	Env *pipeline.GivenPython
}

// BaseRef is the reference of a base that is a machine.
const BaseRef = "host"

// DefaultDir returns the directory in the user's cache.
func DefaultDir() string { return filepath.Join(xdg.CacheHome, "dsbuild", "host") }

// Builder builds on this machine.
type Builder struct {
	opt        Options
	host       pipeline.BuildHost
	installers []pipeline.Interpreter // one of them installs uv
}

// New examines this machine. If it lacks something that every build needs, the error
// names all of it.
func New(ctx context.Context, opt Options) (*Builder, error) {
	host, err := Inspect(ctx, opt.Environ)
	if err != nil {
		return nil, err
	}
	b := &Builder{opt: opt, host: host, installers: host.Interpreters}
	if opt.Env != nil {
		// The target environment's Python and CUDA.
		i := opt.Env.Interpreter()
		b.host.Interpreters, b.host.Pythons = []pipeline.Interpreter{i}, []string{i.Minor()}
		if opt.Env.Nvcc != "" {
			b.host.CUDA, b.host.CUDAHome = opt.Env.Nvcc, opt.Env.CUDAHome
		}
		b.installers = append(b.installers, i)
	}
	// Name everything that every build needs and this machine lacks.
	g := b.host
	var lacks []part
	add := func(what, try string) { lacks = append(lacks, part{what, try}) }
	if g.Glibc == "" {
		add("glibc (this machine has another C library, for which torch has no wheels)", "--builder dagger")
	}
	missingCompiler(g, add)
	b.missingPython(add)
	for _, tool := range []string{"strip", "tar"} {
		if !slices.Contains(g.Tools, tool) {
			add(tool, "install binutils and tar")
		}
	}
	if err := missing(lacks...); err != nil {
		return nil, err
	}
	b.host.Pythons = usablePythons(b.host)
	return b, nil
}

// Name is the builder's name in the manifest.
func (b *Builder) Name() string { return "host" }

// Host returns this machine as the place of a build, from which the caller chooses a toolchain.
func (b *Builder) Host() pipeline.BuildHost { return b.host }

// Base represents this machine in a plan. Its digest changes with the tools of this
// machine.
func (b *Builder) Base() pipeline.Base {
	digest := b.host.Digest
	if b.opt.Env != nil {
		sum := sha256.Sum256([]byte(digest + "\n" + b.opt.Env.Identity()))
		digest = "sha256:" + hex.EncodeToString(sum[:])
	}
	return pipeline.Base{Ref: BaseRef, Digest: digest, Host: true}
}

// Open makes the environments of p, or reuses an earlier build's.
func (b *Builder) Open(ctx context.Context, p *pipeline.Plan, w pipeline.Work) (pipeline.Workspace, error) {
	if err := b.CheckTools(p); err != nil {
		return nil, err
	}
	// Another user with write access here could change the content of wheels.
	if err := os.MkdirAll(b.opt.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("directory of the host builder: %w", err)
	}
	w.Log = &lockedWriter{w: w.Log}
	r := &run{Builder: b, plan: p, Work: w, entries: map[pipeline.Image]entry{}, outputs: map[string]string{}}
	if err := r.openDirs(ctx); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}
