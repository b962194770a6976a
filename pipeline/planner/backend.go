package planner

import (
	"context"
	"errors"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/pipeline/daggerbuilder"
	"github.com/dsbuild/dsbuild/pipeline/engine"
	"github.com/dsbuild/dsbuild/pipeline/hostbuilder"
)

// The values of --builder.
const (
	Auto   = "auto" // an engine, or this machine if there is none
	Dagger = "dagger"
	Host   = "host"
)

// BackendOptions configures where wheels are built.
type BackendOptions struct {
	Kind    string // Auto, Dagger or Host
	Engine  string // its address; if empty, an engine is searched for
	Network pipeline.Network
	Environ []string // the user's environment, as of os.Environ
	Report  ui.Reporter
}

// Backend is a Dagger engine or this machine. It connects to the engine when that
// is first needed.
type Backend struct {
	options BackendOptions
	kind    string // Auto until an engine was searched for
	none    error  // why Auto chose this machine; nil once that was reported
	found   engine.Engine
	env     *pipeline.GivenPython // --env, for the host builder

	builder *daggerbuilder.Builder
	end     func() error // ends the engine's session
	machine *hostbuilder.Builder
}

// NewBackend returns a backend; it looks for no engine yet.
func NewBackend(o BackendOptions) *Backend { return &Backend{options: o, kind: o.Kind} }

// Close ends the session on the engine.
func (b *Backend) Close() {
	if b.end == nil {
		return
	}
	if err := b.end(); err != nil {
		b.options.Report.Warn("closing the engine's session: %v", err)
	}
}

// OpenBuilder returns the builder, for a pipeline.Runner.
func (b *Backend) OpenBuilder(ctx context.Context) (pipeline.Builder, error) {
	if b.kind == Host {
		return b.hostBuilder(ctx)
	}
	return b.connect(ctx)
}

// usesHost decides between an engine and this machine. Auto chooses this machine if there is no
// engine. A dry run does not search for an engine.
func (b *Backend) usesHost(ctx context.Context, dryRun bool) (bool, error) {
	if b.kind != Auto || dryRun {
		return b.kind == Host, nil
	}
	err := b.findEngine(ctx)
	var none *engine.NotFoundError
	switch {
	case errors.As(err, &none) && b.options.Engine == "":
		b.kind, b.none = Host, none
	case err != nil:
		return false, err
	default:
		b.kind = Dagger
	}
	return b.kind == Host, nil
}

// explainHost reports why Auto chose this machine. A request that is wrong everywhere needs no such note.
func (b *Backend) explainHost() {
	if b.none != nil {
		b.options.Report.Note("building on this machine: %v", b.none)
	}
	b.none = nil
}

func (b *Backend) findEngine(ctx context.Context) error {
	if b.found.How != "" {
		return nil
	}
	var err error
	b.found, err = engine.NewFinder(b.options.Engine, b.options.Report.Note).Find(ctx)
	return err
}

// connect opens a session on the engine, and reports that as a step.
func (b *Backend) connect(ctx context.Context) (*daggerbuilder.Builder, error) {
	if b.builder != nil {
		return b.builder, nil
	}
	if err := b.findEngine(ctx); err != nil {
		return nil, err
	}
	step := b.options.Report.Step("engine: " + b.found.How)
	builder, end, err := daggerbuilder.Connect(ctx, b.found, &ui.LineWriter{Line: step.Log})
	if err != nil {
		step.End(ui.Failed, "")
		return nil, err
	}
	step.End(ui.Done, "")
	b.builder, b.end = builder.WithNetwork(b.options.Network), end
	return b.builder, nil
}

// chosenBase returns the base of the toolchain's build environment: a tar if dsbuild's own engine
// builds, else the image by its digest.
func (b *Backend) chosenBase(ctx context.Context, env compat.BuildHost, dryRun bool) (pipeline.Base, error) {
	bases := engine.NewBases(b.options.Report.Note)
	tar, err := bases.There(env.Suite), error(nil)
	if !dryRun {
		tar, err = bases.Get(ctx, env.Suite)
	}
	if err != nil {
		return pipeline.Base{}, err
	}
	if tar != "" {
		return pipeline.NewBase(tar)
	}
	base, err := pipeline.NewBase(env.Ref)
	if err != nil || dryRun {
		return base, err
	}
	return b.pinBase(ctx, base)
}

// pinBase asks the engine for the digest that an image's tag has now.
func (b *Backend) pinBase(ctx context.Context, base pipeline.Base) (pipeline.Base, error) {
	builder, err := b.connect(ctx)
	if err != nil {
		return base, err
	}
	return builder.ResolveBase(ctx, base)
}

// hostBuilder returns the builder of this machine.
func (b *Backend) hostBuilder(ctx context.Context) (*hostbuilder.Builder, error) {
	if b.machine != nil {
		return b.machine, nil
	}
	var err error
	b.machine, err = hostbuilder.New(ctx, hostbuilder.Options{
		Dir:     hostbuilder.DefaultDir(),
		Environ: b.options.Environ,
		Network: b.options.Network,
		Env:     b.env,
	})
	return b.machine, err
}
