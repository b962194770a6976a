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

// build is one plan being run: the steps in images by a builder, those that
// are dsbuild's own code here.
type build struct {
	plan    *Plan
	dir     string // of this build alone
	started time.Time
	log     io.Writer
	rep     ui.Reporter

	space Workspace
	facts wheel.Build // of the strip step
	wheel string      // path of the finished wheel
}

func (b *build) run(ctx context.Context, space Workspace) error {
	b.space = space
	if err := runSteps(ctx, b.plan.Steps, space, b.here); err != nil {
		return err
	}
	return b.smoked(ctx)
}

// runSteps runs those in images in the workspace, and dsbuild's own by here.
func runSteps(ctx context.Context, steps []Step, space Workspace, here func(context.Context, Step) error) error {
	for _, s := range steps {
		run := space.Run
		if s.Image == Here {
			run = here
		}
		if err := run(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// smoked warns where the smoke step could not run the ops on this machine.
func (b *build) smoked(ctx context.Context) error {
	out := filepath.Join(b.dir, SmokeStep)
	if err := b.space.Export(ctx, SmokeStep, out); err != nil {
		return err
	}
	why, err := os.ReadFile(filepath.Join(out, NotRunFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		b.rep.Warn("smoke: the ops were not run, for %s; the first deploy to a node that has it will load them", ui.Clean(string(why)))
	}
	return err
}

// here runs one of dsbuild's own steps under the eyes of the reporter.
func (b *build) here(ctx context.Context, s Step) error {
	shown := b.rep.Step(s.Name + ": " + s.Title)
	fmt.Fprintf(b.log, "== %s: %s\n", s.Name, s.Title)
	own := map[string]func(context.Context) error{SourceStep: b.source, PackStep: b.pack, AuditStep: b.audit}
	if err := own[s.Name](ctx); err != nil {
		fmt.Fprintln(b.log, err)
		shown.End(ui.Failed, "")
		return fmt.Errorf("step %s: %w", s.Name, err)
	}
	shown.End(ui.Done, "")
	return nil
}

// source gives the clean copy of the sources to the workspace.
func (b *build) source(context.Context) error {
	return b.space.Import(SourceStep, filepath.Dir(b.plan.Source.File))
}

// pack makes the wheel of what the strip step left, and gives it to the
// workspace.
func (b *build) pack(ctx context.Context) error {
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
	wheels, err := filepath.Glob(filepath.Join(in, "*.whl"))
	if err == nil && len(wheels) != 1 {
		err = fmt.Errorf("the strip step left %d wheels, expected one", len(wheels))
	}
	if err != nil {
		return err
	}
	if b.wheel, err = wheel.Pack(ctx, wheels[0], out, b.plan.Manifest, b.facts); err != nil {
		return err
	}
	if b.facts.ByteCode != nil {
		if err := os.Rename(filepath.Join(in, byteCodeFile), b.wheel+wheel.ByteCodeSuffix); err != nil {
			return err
		}
	}
	return b.space.Import(PackStep, out)
}

func (b *build) audit(ctx context.Context) error {
	contents, err := b.plan.audited(ctx, b.wheel)
	for _, e := range contents.Extensions {
		if len(e.Newest) > 0 {
			b.rep.Warn("op %s needs newer libraries than manylinux_%s has: %s", e.Op(), strings.ReplaceAll(compat.LinkGlibc, ".", "_"), strings.Join(e.Newest, ", "))
		}
	}
	return err
}
