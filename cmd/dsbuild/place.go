package main

import (
	"context"
	"errors"
	"os"
	"sync"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/pipeline/daggerbuilder"
	"github.com/dsbuild/dsbuild/pipeline/engine"
	"github.com/dsbuild/dsbuild/pipeline/hostbuilder"
)

// The ways to build that --builder names.
const (
	builderAuto   = "auto"
	builderDagger = "dagger"
	builderHost   = "host"
)

// place is where wheels are built: a Dagger engine, connected to when it is
// first needed, or this machine.
type place struct {
	app    *app
	way    string // auto, dagger or host; auto until an engine was looked for
	engine string // --engine
	site   pipeline.Site
	found  engine.Engine
	env    *pipeline.Environment // --env, for the host builder

	builder *daggerbuilder.Builder
	done    func() error
	looking sync.Mutex // at this machine
	machine *hostbuilder.Builder
}

// isHost decides between engine and machine: auto takes the machine where no
// engine can be had, and says why. A dry run looks for none.
func (p *place) isHost(ctx context.Context, dryRun bool) (bool, error) {
	if p.way != builderAuto || dryRun {
		return p.way == builderHost, nil
	}
	err := p.find(ctx)
	var none *engine.NotFoundError
	switch {
	case errors.As(err, &none) && p.engine == "":
		p.app.reporter.Note("building on this machine: %v", none)
		p.way = builderHost
	case err != nil:
		return false, err
	default:
		p.way = builderDagger
	}
	return p.way == builderHost, nil
}

func (p *place) find(ctx context.Context) error {
	if p.found.How != "" {
		return nil
	}
	var err error
	p.found, err = engine.NewFinder(p.engine, p.app.reporter.Note).Find(ctx)
	return err
}

func (p *place) connect(ctx context.Context) (*daggerbuilder.Builder, error) {
	if p.builder != nil {
		return p.builder, nil
	}
	if err := p.find(ctx); err != nil {
		return nil, err
	}
	step := p.app.reporter.Step("engine: " + p.found.How)
	builder, done, err := daggerbuilder.Connect(ctx, p.found, &lineWriter{line: step.Log})
	if err != nil {
		step.End(ui.Failed, "")
		return nil, err
	}
	step.End(ui.Done, "")
	p.builder, p.done = builder.WithSite(p.site), done
	return p.builder, nil
}

// open returns the builder, for a pipeline.Runner.
func (p *place) open(ctx context.Context) (pipeline.Builder, error) {
	if p.way == builderHost {
		return p.host(ctx)
	}
	return p.connect(ctx)
}

// base brings the base of a ground that the toolchain chose: the tar of dsbuild's
// own engine where that is what builds, else the image, by its digest.
func (p *place) base(ctx context.Context, g compat.Ground, dryRun bool) (pipeline.Base, error) {
	bases := engine.NewBases(p.app.reporter.Note)
	tar, err := bases.There(g.Suite), error(nil)
	if !dryRun {
		tar, err = bases.Get(ctx, g.Suite)
	}
	if err != nil {
		return pipeline.Base{}, err
	}
	if tar != "" {
		return pipeline.NewBase(tar)
	}
	base, err := pipeline.NewBase(g.Ref)
	if err != nil || dryRun {
		return base, err
	}
	return p.pin(ctx, base)
}

// pin asks the engine which bytes an image's tag stands for now.
func (p *place) pin(ctx context.Context, base pipeline.Base) (pipeline.Base, error) {
	builder, err := p.connect(ctx)
	if err != nil {
		return base, err
	}
	return builder.ResolveBase(ctx, base)
}

// look asks the engine what a base holds.
func (p *place) look(ctx context.Context, base pipeline.Base) (compat.Ground, error) {
	builder, err := p.connect(ctx)
	if err != nil {
		return compat.Ground{}, err
	}
	return builder.Look(ctx, base)
}

// host returns the builder of this machine.
func (p *place) host(ctx context.Context) (*hostbuilder.Builder, error) {
	p.looking.Lock()
	defer p.looking.Unlock()
	if p.machine != nil {
		return p.machine, nil
	}
	var err error
	p.machine, err = hostbuilder.New(ctx, hostbuilder.Options{Dir: hostbuilder.DefaultDir(), Environ: os.Environ(), Site: p.site, Env: p.env})
	return p.machine, err
}

// lookAhead looks at this machine, where that is what builds, while something else is
// done, until stop is called. Whether it can build is found again by who needs it.
func (p *place) lookAhead(ctx context.Context) (stop func()) {
	if p.way != builderHost {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	looked := make(chan struct{})
	go func() {
		defer close(looked)
		p.host(ctx) //nolint:errcheck // see above
	}()
	return func() {
		cancel()
		<-looked
	}
}

func (p *place) close() {
	if p.done == nil {
		return
	}
	if err := p.done(); err != nil {
		p.app.reporter.Warn("closing the engine's session: %v", err)
	}
}
