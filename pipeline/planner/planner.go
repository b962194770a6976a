// Package planner turns requests for wheels into plans. It fetches the source, looks
// up releases that the tables lack, asks the backend that builds (a Dagger engine or
// this machine) which build environment it has, and resolves the rest by the tables.
package planner

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/compat/evidence"
	"github.com/dsbuild/dsbuild/dockerfiles"
	"github.com/dsbuild/dsbuild/internal/scratch"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/wheel"
)

// Options are the settings that all plans of a planner share.
type Options struct {
	DryRun  bool   // Plan queries no engine either
	Printed bool   // plans are printed, so their left-out ops need no note
	Env     string // python of the environment to build for, or ""
	Report  ui.Reporter
}

// Planner turns requests for wheels of one source into plans. Secrets of the network are taken out of its errors.
type Planner struct {
	options  Options
	backend  *Backend
	source   pipeline.Source
	tables   *compat.Tables        // with the releases that were looked up for all plans
	releases *pipeline.Releases    // looks up releases that the tables lack
	env      *pipeline.GivenPython // of Options.Env, or nil
	dir      *scratch.Dir          // clean copies of sources
	packages *packageLookup        // of toolchains that the lock of packages lacks
}

// Open fetches the source of wheels, a value of --deepspeed. An empty source means the newest release of the
// tables. The planner must be closed.
func Open(ctx context.Context, o Options, b *Backend, source string) (*Planner, error) {
	tables, err := compat.NewTables()
	if err != nil {
		return nil, err
	}
	dir, err := scratch.New("")
	if err != nil {
		return nil, err
	}
	network := b.options.Network
	p := &Planner{
		options: o, backend: b, tables: tables, releases: network.Releases(), dir: dir,
		packages: &packageLookup{network: network, environ: b.options.Environ, found: map[string]dockerfiles.Packages{}},
	}
	if err = p.readEnvironment(ctx); err == nil {
		err = p.openSource(ctx, source)
	}
	if err != nil {
		p.Close()
		return nil, network.Error(err)
	}
	return p, nil
}

// readEnvironment reads the environment to build for. If no index has its torch, the wheels can only be built with
// that torch on this machine.
func (p *Planner) readEnvironment(ctx context.Context) error {
	if p.options.Env == "" {
		return nil
	}
	env, err := pipeline.ReadGivenPython(ctx, p.options.Env)
	if err != nil {
		return err
	}
	why := env.Released(p.tables)
	if why != nil && p.backend.kind == Auto {
		p.options.Report.Note("building on this machine: %v", why)
		p.backend.kind = Host
	}
	p.env, p.backend.env, p.tables = &env, &env, env.Tables(p.tables)
	if p.backend.kind != Host {
		return why
	}
	return nil
}

// openSource copies the source, or looks the release up.
func (p *Planner) openSource(ctx context.Context, source string) error {
	p.source = pipeline.Source{Kind: pipeline.SourceRelease, Version: source}
	if source != "" && source != compat.Latest {
		dir, err := os.MkdirTemp(p.dir.Path, "source-")
		if err != nil {
			return err
		}
		if p.source, err = pipeline.OpenSource(ctx, source, dir, p.backend.options.Environ); err != nil {
			return err
		}
	}
	if p.source.Kind != pipeline.SourceRelease {
		changed, err := p.compareOps()
		if err != nil {
			p.options.Report.Note("cannot compare the ops of %s with those that are proven: %v", p.source.Ref, err)
		}
		p.tables = p.tables.WithSources(compat.DeepSpeed{Version: p.source.Version, Changed: changed})
		return nil
	}
	found, err := p.releases.DeepSpeed(ctx, p.tables, p.source.Version)
	if err != nil {
		return err
	}
	p.reportLookup(p.options.Report, found)
	p.tables, p.source.Version = found.Tables, found.Version
	return nil
}

// compareOps compares the ops of the source's copy with those that were proven.
func (p *Planner) compareOps() (evidence.Changes, error) {
	f, err := os.Open(p.source.File)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // was read
	sources, err := evidence.Read(f)
	if err != nil {
		return nil, err
	}
	return p.tables.Evidence.Judge(sources), nil
}

// Close removes the copies of sources.
func (p *Planner) Close() { _ = p.dir.Close() } // temporary files

// Tables returns the tables that plans are resolved by.
func (p *Planner) Tables() *compat.Tables { return p.tables }

// Plan chooses the settings that a request leaves open, and lists the steps. It may ask the engine. Its messages
// begin with the name of the plan, if it has one.
func (p *Planner) Plan(ctx context.Context, name string, r wheel.Request) (*pipeline.Plan, error) {
	report := p.options.Report
	if name != "" {
		report = ui.WithPrefix(report, name)
	}
	plan, err := p.plan(ctx, r, report, p.options.DryRun)
	if err != nil {
		return nil, p.backend.options.Network.Error(err)
	}
	p.backend.explainHost()
	plan.Name = name
	p.reportWarnings(report, plan)
	if plan.Base.Host && p.options.DryRun {
		builder, err := p.backend.hostBuilder(ctx)
		if err != nil {
			return nil, err
		}
		return plan, builder.CheckTools(plan)
	}
	return plan, nil
}

// Sketch plans without an engine, and reports nothing. The plan has its key in the store.
func (p *Planner) Sketch(ctx context.Context, r wheel.Request) (*pipeline.Plan, error) {
	plan, err := p.plan(ctx, r, ui.New(io.Discard, ui.Options{}), true)
	if err != nil {
		return nil, p.backend.options.Network.Error(err)
	}
	plan.Key = pipeline.KeyOf(plan, p.backend.options.Kind)
	return plan, nil
}

// SketchHere is Sketch for this machine. It returns nil if an engine builds, or the wheel cannot be built here.
func (p *Planner) SketchHere(ctx context.Context, r wheel.Request) *pipeline.Plan {
	if host, err := p.backend.usesHost(ctx, false); err != nil || !host {
		return nil // a build reports the error
	}
	plan, err := p.Sketch(ctx, r)
	if err != nil {
		return nil
	}
	return plan
}

// Group finds the fewest wheels for nodes. For nodes that get none it looks up the torches that the tables lack. If no
// index has a node's torch, the node gets no wheel for it.
func (p *Planner) Group(ctx context.Context, nodes []compat.Member, r wheel.Request) compat.Grouping {
	r = p.ofSource(r)
	grouping := p.tables.Group(nodes, r)
	if len(grouping.Unserved) == 0 || r.ABI == wheel.StableABI {
		return grouping
	}
	asked := map[[2]string]bool{}
	for _, n := range nodes {
		torch := wheel.Request{Torch: n.Facts.Torch, CUDA: n.Facts.TorchCUDA}
		known := p.tables.OffersTorch(wheel.Request{Torch: wheel.Minor(torch.Torch), CUDA: torch.CUDA})
		if torch.Torch == "" || torch.CUDA == "" || asked[[2]string{torch.Torch, torch.CUDA}] || known {
			continue
		}
		asked[[2]string{torch.Torch, torch.CUDA}] = true
		tables, err := p.lookUpTorch(ctx, torch, p.options.Report)
		if p.tables = tables; err != nil {
			break // interrupted
		}
	}
	return p.tables.Group(nodes, r)
}

// ofSource returns a request for the source, in the words of the resolver.
func (p *Planner) ofSource(r wheel.Request) wheel.Request {
	r = narrowed(r)
	r.DeepSpeed = p.source.Version
	return r
}

// lookUpTorch returns the tables with the torch of a request, which they may lack. With Options.Env the environment's
// torch is known already.
func (p *Planner) lookUpTorch(ctx context.Context, r wheel.Request, report ui.Reporter) (*compat.Tables, error) {
	if p.env != nil {
		return p.tables, nil
	}
	found, err := p.releases.Torch(ctx, p.tables, r)
	p.reportLookup(report, found)
	return found.Tables, err
}

// reportLookup reports the result of a lookup.
func (p *Planner) reportLookup(report ui.Reporter, found pipeline.Found) {
	report = p.backend.options.Network.Reporter(report)
	for _, note := range found.Notes {
		report.Note("%s", note)
	}
}

// plan chooses the settings that a request leaves open, and lists the steps. Without an engine, an image's tag stands
// for the image; only a base that the tables lack is looked at all the same.
func (p *Planner) plan(
	ctx context.Context, asked wheel.Request, report ui.Reporter, withoutEngine bool,
) (*pipeline.Plan, error) {
	r := p.ofSource(asked)
	tables, err := p.lookUpTorch(ctx, r, report)
	if err != nil {
		return nil, err
	}
	base, hosts, err := p.buildHost(ctx, r.Base, withoutEngine)
	if err != nil {
		return nil, err
	}
	if p.env != nil {
		if !base.Host && r.Glibc == "" { // a container must have no newer glibc than the environment
			r.Glibc = p.env.Glibc
		}
		if r, err = p.env.Asked(r); err != nil {
			return nil, err
		}
	}
	tc, err := tables.Resolve(r, hosts...)
	if err != nil {
		var bad *compat.ConflictError
		if errors.As(err, &bad) {
			bad.Fix = followable(bad.Fix, asked, r, p.env != nil)
		}
		if _, elsewhere := tables.Resolve(r); elsewhere == nil && !withoutEngine {
			p.backend.explainHost()
		}
		return nil, err
	}
	if r.ABI == "" && tc.ABI == wheel.StableABI && p.env == nil {
		// Take the newest, so that there is one such wheel: it serves the torch and the Python asked for anyway.
		newest := r
		switch _, cuda, _ := tc.Serves(); {
		case cuda == "": // no op needs CUDA: it is the same wheel for every GPU
			newest.CUDA, newest.GPUs, newest.Archs, newest.Machine = "", nil, nil, tc.CPU.Machine()
		case r.CUDA != "": // any of the major version
			newest.CUDA = cuda
		}
		newest.Torch, newest.Python = "", ""
		if found, err := tables.Resolve(newest, hosts...); err == nil && found.ABI == tc.ABI {
			found.Notes = tc.Notes // they answer what was asked
			r, tc = newest, found
		}
	}
	if base.Ref == "" {
		if base, err = p.backend.chosenBase(ctx, tc.Environment, withoutEngine); err != nil {
			return nil, err
		}
	}
	source := p.source
	if source.Kind == pipeline.SourceRelease {
		source = pipeline.Release(tc.DeepSpeed, tc.Source)
	}
	parts, err := p.parts(ctx, append([]compat.Toolchain{tc}, tables.Variants(r, tc)...), report, base.Host && p.env != nil)
	if err != nil {
		return nil, err
	}
	return pipeline.NewPlan(parts, source, base, r.KeepDebug)
}

// parts returns the parts of a wheel, with the packages of their images. installed means that the torch of the first is
// installed already.
func (p *Planner) parts(
	ctx context.Context, toolchains []compat.Toolchain, report ui.Reporter, installed bool,
) ([]pipeline.Part, error) {
	var parts []pipeline.Part
	for i, tc := range toolchains {
		if i > 0 && tc.CUDASource == toolchains[0].CUDASource {
			parts = append(parts, pipeline.Part{Toolchain: tc})
			continue
		}
		packages, locked, err := p.packages.find(ctx, tc, installed)
		if err != nil {
			return nil, err
		}
		if !locked {
			report.Note("torch %s for Python %s is not in dsbuild's lock: "+
				"the plan uses the index's current sha256 of its packages", tc.Torch, tc.Python)
		}
		parts = append(parts, pipeline.Part{Toolchain: tc, Packages: packages})
	}
	return parts, nil
}

// reportWarnings reports the warnings of a plan's toolchains, and the omitted ops.
func (p *Planner) reportWarnings(report ui.Reporter, plan *pipeline.Plan) {
	said := map[string]bool{} // parts have some in common
	for _, part := range plan.Parts {
		for _, warning := range part.Warnings {
			if !said[warning] {
				report.Warn("%s", warning)
			}
			said[warning] = true
		}
	}
	for _, note := range plan.Toolchain().Notes { // additional parts' toolchains were not requested
		report.Note("%s", note)
	}
	if p.options.Printed {
		return
	}
	for _, left := range plan.Toolchain().SkippedOps {
		report.Note("without %s: %s", left.Name, left.Why)
	}
}

// buildHost inspects where the wheel will be built, where the user (by image, the base) or the backend decides that.
// Elsewhere both results are empty, and the toolchain decides.
func (p *Planner) buildHost(
	ctx context.Context, image string, withoutEngine bool,
) (pipeline.Base, []compat.BuildHost, error) {
	host, err := p.backend.usesHost(ctx, withoutEngine)
	switch {
	case err != nil:
		return pipeline.Base{}, nil, err
	case host:
		if image != "" {
			return pipeline.Base{}, nil, requestError("",
				"--base %s cannot be used with --builder host, which builds on this machine", image)
		}
		builder, err := p.backend.hostBuilder(ctx)
		if err != nil {
			p.backend.explainHost()
			return pipeline.Base{}, nil, err
		}
		return builder.Base(), []compat.BuildHost{builder.Host().BuildHost}, nil
	case image == "":
		return pipeline.Base{}, nil, nil
	}
	base, err := pipeline.NewBase(image)
	if err != nil {
		return base, nil, err
	}
	env, known := p.tables.EnvironmentOfImage(image)
	if base.File == "" && base.Digest == "" && !withoutEngine {
		if base, err = p.backend.pinBase(ctx, base); err != nil {
			return base, nil, err
		}
	}
	if !known {
		builder, err := p.backend.connect(ctx)
		if err == nil {
			env, err = builder.Inspect(ctx, base)
		}
		if err != nil {
			return base, nil, err
		}
		env = p.tables.Offered(env)
	}
	return base, []compat.BuildHost{env}, nil
}

// PlanBundle plans a wheel's wheelhouse: its companions, and with dependencies
// also the packages that they and DeepSpeed require. It returns nil if neither
// is requested.
func (p *Planner) PlanBundle(
	ctx context.Context, plan *pipeline.Plan, companions []string, dependencies bool,
) (*pipeline.BundlePlan, error) {
	if len(companions) == 0 && !dependencies {
		return nil, nil
	}
	var opened []pipeline.Companion
	for _, text := range companions {
		dir, err := os.MkdirTemp(p.dir.Path, "companion-")
		if err != nil {
			return nil, err
		}
		c, err := pipeline.OpenCompanion(ctx, text, dir, p.backend.options.Environ)
		if err != nil {
			return nil, err
		}
		opened = append(opened, c)
	}
	return pipeline.NewBundlePlan(plan, opened, dependencies)
}
