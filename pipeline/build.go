package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/wheel"
)

// build is one run of a plan. A builder runs the steps that have an image; this process runs the
// others.
type build struct {
	plan    *Plan
	dir     string // of this build only
	started time.Time
	log     io.Writer
	rep     ui.Reporter

	space Workspace
	facts wheel.Build // result of the strip step
	wheel string      // path of the finished wheel
}

// run runs all steps of the plan.
func (b *build) run(ctx context.Context, space Workspace) error {
	b.space = space
	if err := runSteps(ctx, b.plan.Steps, space, b.runHere); err != nil {
		return err
	}
	// Warn if the smoke step could not run the ops on this machine.
	out := filepath.Join(b.dir, SmokeStep)
	if err := b.space.Export(ctx, SmokeStep, out); err != nil {
		return err
	}
	why, err := os.ReadFile(filepath.Join(out, NotRunFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		b.rep.Warn("smoke: the ops were not run, because %s; the first deploy to a node with it loads them",
			ui.Clean(string(why)))
	}
	return err
}

// runSteps runs the steps that have an image in the workspace, and calls here for the others. A wheel's parts are
// compiled in parallel.
func runSteps(ctx context.Context, steps []Step, space Workspace, here func(context.Context, Step) error) error {
	for len(steps) > 0 {
		s, n := steps[0], 1
		for n < len(steps) && steps[n].Env[partVariable] != "" {
			n++
		}
		var err error
		if s.Image == Local {
			err = here(ctx, s)
		} else {
			err = space.Run(ctx, steps[:n]...)
		}
		if err != nil {
			return err
		}
		steps = steps[n:]
	}
	return nil
}

// runHere runs one of dsbuild's own steps and reports its progress.
func (b *build) runHere(ctx context.Context, s Step) error {
	shown := b.rep.Step(s.Name + ": " + s.Title)
	fmt.Fprintf(b.log, "== %s: %s\n", s.Name, s.Title)
	var err error
	switch s.Name {
	case SourceStep: // the clean copy
		err = b.space.Import(SourceStep, filepath.Dir(b.plan.Source.File))
	case PackStep:
		err = b.packWheel(ctx)
	case AuditStep:
		err = b.auditWheel(ctx)
	}
	if err != nil {
		fmt.Fprintln(b.log, err)
		shown.End(ui.Failed, "")
		return fmt.Errorf("step %s: %w", s.Name, err)
	}
	shown.End(ui.Done, "")
	return nil
}

// packWheel creates the finished wheel from the output of the strip step, and imports it into the
// workspace.
func (b *build) packWheel(ctx context.Context) error {
	in, out := filepath.Join(b.dir, StripStep), filepath.Join(b.dir, PackStep)
	if err := os.Mkdir(out, 0o755); err != nil {
		return err
	}
	if err := b.space.Export(ctx, StripStep, in); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(in, BuildFile))
	if err != nil {
		return err
	}
	if b.facts, err = wheel.ParseBuild(text); err != nil {
		return err
	}
	b.plan.addArchives(b.facts.Packages)
	wheels, err := fs.Glob(os.DirFS(in), "*.whl")
	if err == nil && len(wheels) != 1 {
		err = fmt.Errorf("the strip step left %d wheels, expected one", len(wheels))
	}
	if err != nil {
		return err
	}
	if b.wheel, err = wheel.Pack(ctx, filepath.Join(in, wheels[0]), out, b.plan.Manifest, b.facts); err != nil {
		return err
	}
	if b.facts.ByteCode != nil {
		if err := os.Rename(filepath.Join(in, byteCodeFile), b.wheel+wheel.ByteCodeSuffix); err != nil {
			return err
		}
	}
	return b.space.Import(PackStep, out)
}

func (b *build) auditWheel(ctx context.Context) error {
	contents, err := b.plan.auditContents(ctx, b.wheel)
	for _, e := range contents.Extensions {
		if len(e.Newest) > 0 {
			b.rep.Warn("op %s needs newer libraries than manylinux_%s has: %s",
				e.Op(), strings.ReplaceAll(compat.LinkGlibc, ".", "_"), strings.Join(e.Newest, ", "))
		}
	}
	return err
}
