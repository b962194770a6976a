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
	"io"
	"os"
	"path/filepath"

	"github.com/adrg/xdg"

	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
)

// Options say what a Builder works with.
type Options struct {
	// Dir keeps environments, downloads and cached objects from build to build,
	// and holds what is private to a build while it runs.
	Dir string
	// Environ is the environment of whoever asked, as os.Environ has it: its
	// PATH says which compilers are used, and its settings of proxies and
	// indexes are passed on. TMPDIR is where scratch files go.
	Environ []string
	// Site is told to what fetches or compiles.
	Site pipeline.Site
	// Env is the environment that the wheel is for, with --env; else nil.
	Env *pipeline.Environment
}

// DefaultDir is the user's.
func DefaultDir() string { return filepath.Join(xdg.CacheHome, "dsbuild", "host") }

// Builder builds on this machine.
type Builder struct {
	opt        Options
	ground     pipeline.Ground
	installers []pipeline.Interpreter // one of them installs uv
}

// New looks at this machine. What no build can do without is an error that
// names all of it, a *MissingError.
func New(ctx context.Context, opt Options) (*Builder, error) {
	ground, err := Look(ctx, opt.Environ)
	if err != nil {
		return nil, err
	}
	b := &Builder{opt: opt, ground: ground, installers: ground.Interpreters}
	if opt.Env != nil {
		b.ground = beside(ground, *opt.Env)
		b.installers = append(b.installers, b.ground.Interpreters...)
	}
	if err := b.missing(); err != nil {
		return nil, err
	}
	b.ground.Pythons = usable(b.ground)
	return b, nil
}

// Name is what the manifest calls this builder.
func (b *Builder) Name() string { return "host" }

// Ground is what a toolchain can be chosen from here.
func (b *Builder) Ground() pipeline.Ground { return b.ground }

// Base stands for this machine in a plan: its digest changes with what a build
// finds here.
func (b *Builder) Base() pipeline.Base {
	digest := b.ground.Digest
	if b.opt.Env != nil {
		sum := sha256.Sum256([]byte(digest + "\n" + b.opt.Env.Identity()))
		digest = "sha256:" + hex.EncodeToString(sum[:])
	}
	return pipeline.Base{Ref: "host", Digest: digest, Host: true}
}

// Open makes the environments of p, or takes those of an earlier build.
func (b *Builder) Open(ctx context.Context, p *pipeline.Plan, log io.Writer, rep ui.Reporter) (pipeline.Workspace, error) {
	if err := b.systemPackages(ctx, p, rep); err != nil {
		return nil, err
	}
	// Whoever can write here decides what is built.
	if err := os.MkdirAll(b.opt.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("directory of the host builder: %w", err)
	}
	r := &run{Builder: b, plan: p, log: &lockedWriter{w: log}, rep: rep, outputs: map[string]string{}, begun: map[string]*ahead{}}
	if err := r.open(ctx); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// interpreter is the Python to build with.
func (b *Builder) interpreter(python string) (string, error) {
	for _, i := range b.ground.Interpreters {
		if i.Minor() == python {
			return i.Path, nil
		}
	}
	return "", &MissingError{Parts: []Part{{What: "Python " + python, Try: "module load python/" + python + ", or --env PYTHON"}}}
}
