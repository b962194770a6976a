// Package planner turns requests for wheels into plans. It brings the sources, looks
// up releases that the tables lack, asks the backend that builds (a Dagger engine or
// this machine) which build environment it has, and resolves the rest by the tables.
package planner

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/dockerfiles"
	"github.com/dsbuild/dsbuild/internal/scratch"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/wheel"
)

// Options are the settings that all plans of a planner share.
type Options struct {
	Backend *Backend
	Plan    pipeline.Options
	DryRun  bool   // plan without an engine
	Printed bool   // plans are printed, so their left-out ops need no note
	Env     string // python of the environment to build for, or ""
	Report  ui.Reporter
}

// Planner turns requests into plans.
type Planner struct {
	options  Options
	backend  *Backend
	tables   *compat.Tables
	releases *pipeline.Releases          // looks up releases that the tables lack
	env      *pipeline.PythonEnvironment // of Options.Env, or nil
	dir      *scratch.Dir                // clean copies of sources
	quiet    bool                        // nothing is reported
	packages *packageLookup              // of toolchains that the lock of packages lacks
}

// New prepares a planner. It must be closed.
func New(ctx context.Context, o Options) (*Planner, error) {
	tables, err := compat.NewTables()
	if err != nil {
		return nil, err
	}
	dir, err := scratch.New("")
	if err != nil {
		return nil, err
	}
	p := &Planner{options: o, backend: o.Backend, tables: tables, releases: o.Backend.options.Site.Releases(), dir: dir}
	p.packages = &packageLookup{
		site: o.Backend.options.Site, environ: o.Backend.options.Environ,
		found: map[string]*dockerfiles.Packages{},
	}
	if o.Env == "" {
		return p, nil
	}
	env, err := pipeline.ReadEnvironment(ctx, o.Env)
	if err == nil {
		// Where no index has its torch, the wheels can only be built on this machine, beside it.
		why := env.Released(tables)
		if why != nil && p.backend.kind == Auto {
			p.options.Report.Note("building on this machine: %v", why)
			p.backend.kind = Host
		}
		if p.backend.kind != Host {
			err = why
		}
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	p.env, p.backend.env, p.tables = &env, &env, env.Tables(tables)
	return p, nil
}

// Close removes the copies of sources.
func (p *Planner) Close() { _ = p.dir.Close() } // temporary files

// Tables returns the tables that plans are resolved by.
func (p *Planner) Tables() *compat.Tables { return p.tables }

// Redact takes the site's secrets out of an error.
func (p *Planner) Redact(err error) error { return p.backend.options.Site.Error(err) }

// ReportingAs returns a planner whose messages name the wheel that they are about.
func (p *Planner) ReportingAs(name string) *Planner {
	named := *p
	named.options.Report = ui.Prefixed(p.options.Report, name)
	return &named
}

// Quiet returns a planner that plans without an engine and reports nothing.
func (p *Planner) Quiet() *Planner {
	quiet := *p
	quiet.options.DryRun, quiet.quiet = true, true
	return &quiet
}

// Plan resolves a request and lists the steps.
func (p *Planner) Plan(ctx context.Context, r Request) (*pipeline.Plan, error) {
	t, err := p.OpenTarget(ctx, r)
	if err != nil {
		return nil, err
	}
	return p.PlanTarget(ctx, r, t)
}

// PlanWithoutEngine resolves a target as a dry run does, and reports nothing. It
// also returns the request by which the store knows such a wheel.
func (p *Planner) PlanWithoutEngine(ctx context.Context, r Request, t Target) (*pipeline.Plan, string, error) {
	plan, err := p.Quiet().PlanTarget(ctx, r, t)
	if err != nil {
		return nil, "", err
	}
	request, err := pipeline.RequestDigest(plan, p.backend.options.Kind)
	return plan, request, err
}

// Target is a request whose values are read and whose sources are here.
type Target struct {
	Spec   wheel.Request
	source pipeline.Source
	tables *compat.Tables // with the releases that were looked up
}

// WithSpec returns a target of the same sources.
func (t Target) WithSpec(spec wheel.Request) Target {
	t.Spec = spec
	return t
}

// Tables returns the tables with the releases that were looked up for this target.
func (t Target) Tables() *compat.Tables { return t.tables }

// OpenTarget reads a request, and brings the sources if they are no release.
func (p *Planner) OpenTarget(ctx context.Context, r Request) (Target, error) {
	t := Target{source: pipeline.Source{Kind: pipeline.SourceRelease}, tables: p.tables}
	var err error
	if t.Spec, err = r.spec(p.tables); err != nil {
		return t, err
	}
	dir, err := os.MkdirTemp(p.dir.Path, "source-")
	if err != nil {
		return t, err
	}
	if r.DeepSpeed != "" && r.DeepSpeed != compat.Latest {
		if t.source, err = pipeline.OpenSource(ctx, r.DeepSpeed, dir, p.backend.options.Environ); err != nil {
			return t, err
		}
	} else {
		t.source.Version = r.DeepSpeed
	}
	t.Spec.DeepSpeed, t.Spec.Foreign = t.source.Version, t.source.Kind != pipeline.SourceRelease
	if !t.Spec.Foreign {
		found, err := p.releases.DeepSpeed(ctx, t.tables, t.Spec.DeepSpeed)
		if err != nil {
			return t, err
		}
		p.reportLookup(found)
		t.tables, t.Spec.DeepSpeed = found.Tables, found.Version
	}
	return t, p.LookUpTorch(ctx, &t, t.Spec)
}

// Retarget reads another request for the sources of a target.
func (p *Planner) Retarget(ctx context.Context, t Target, r Request) (Target, error) {
	spec, err := r.spec(p.tables)
	if err != nil {
		return t, err
	}
	spec.DeepSpeed, spec.Foreign = t.Spec.DeepSpeed, t.Spec.Foreign
	t.Spec = spec
	return t, p.LookUpTorch(ctx, &t, spec)
}

// LookUpTorch adds the torch of a spec to the target's tables if they lack it.
// With Options.Env the environment's torch is known already.
func (p *Planner) LookUpTorch(ctx context.Context, t *Target, s wheel.Request) error {
	if p.env != nil {
		return nil
	}
	found, err := p.releases.Torch(ctx, t.tables, s)
	p.reportLookup(found)
	t.tables = found.Tables
	return err
}

// reportLookup reports the result of a lookup.
func (p *Planner) reportLookup(found pipeline.Found) {
	if p.quiet {
		return
	}
	report := p.backend.options.Site.Reporter(p.options.Report)
	for _, note := range found.Notes {
		report.Note("%s", note)
	}
}

// PlanTarget chooses the settings that the request leaves open, and lists the steps.
func (p *Planner) PlanTarget(ctx context.Context, r Request, t Target) (*pipeline.Plan, error) {
	base, environments, err := p.buildEnvironment(ctx, r)
	if err != nil {
		return nil, err
	}
	spec := t.Spec
	if p.env != nil {
		if !base.Host && spec.Glibc == "" { // a container must have no newer glibc than the environment
			spec.Glibc = p.env.Glibc
		}
		if spec, err = p.env.Asked(spec); err != nil {
			return nil, err
		}
	}
	tc, err := t.tables.Resolve(spec, environments...)
	if err != nil {
		var bad *compat.ConflictError
		if errors.As(err, &bad) {
			bad.Fix = r.followable(bad.Fix, spec, p.env != nil)
		}
		return nil, err
	}
	if spec.ABI == "" && tc.ABI == wheel.StableABI && p.env == nil {
		// Take the newest, so that there is one such wheel: it serves the torch and the Python asked for anyway.
		_, spec.CUDA, _ = tc.Serves()
		spec.Torch, spec.Python = "", ""
		if newest, err := t.tables.Resolve(spec, environments...); err == nil {
			tc = newest
		}
	}
	if base.Ref == "" {
		if base, err = p.backend.chosenBase(ctx, tc.Environment, p.options.DryRun); err != nil {
			return nil, err
		}
	}
	if t.source.Kind == pipeline.SourceRelease {
		t.source = pipeline.Release(tc.DeepSpeed, tc.Source)
	}
	opt := p.options.Plan
	opt.KeepDebug = r.KeepDebug
	if opt.Packages, err = p.packages.find(ctx, tc, base.Host && p.env != nil); err != nil {
		return nil, err
	}
	if opt.Packages != nil && !p.quiet {
		p.options.Report.Note("torch %s for Python %s is not in the lock of this dsbuild: "+
			"the plan has the sha256 of its packages as the index has them now", tc.Torch, tc.Python)
	}
	plan, err := pipeline.NewPlan(tc, t.source, base, opt)
	if err != nil || p.quiet {
		return plan, err
	}
	p.reportRemarks(plan)
	if !base.Host || !p.options.DryRun {
		return plan, nil
	}
	builder, err := p.backend.hostBuilder(ctx)
	if err != nil {
		return nil, err
	}
	return plan, builder.CheckPackages(ctx, plan, p.options.Report)
}

// reportRemarks reports the remarks of a plan's toolchain, and the ops it leaves out.
func (p *Planner) reportRemarks(plan *pipeline.Plan) {
	for _, remark := range plan.Toolchain.Remarks {
		p.options.Report.Warn("%s", remark)
	}
	for _, note := range plan.Toolchain.Notes {
		p.options.Report.Note("%s", note)
	}
	if p.options.Printed {
		return
	}
	for _, left := range plan.Toolchain.Left {
		p.options.Report.Note("without %s: %s", left.Name, left.Why)
	}
}

// buildEnvironment inspects where the wheel will be built, where the user or the
// backend decides that. Elsewhere both are empty, and the toolchain decides.
func (p *Planner) buildEnvironment(ctx context.Context, r Request) (pipeline.Base, []compat.BuildHost, error) {
	host, err := p.backend.usesHost(ctx, p.options.DryRun)
	switch {
	case err != nil:
		return pipeline.Base{}, nil, err
	case host:
		if r.Base != "" {
			err := fmt.Errorf("--base %s does not work with the host builder, which builds on this machine", r.Base)
			return pipeline.Base{}, nil, &RequestError{err: err}
		}
		builder, err := p.backend.hostBuilder(ctx)
		if err != nil {
			return pipeline.Base{}, nil, err
		}
		return builder.Base(), []compat.BuildHost{builder.Environment().BuildHost}, nil
	case r.Base == "":
		return pipeline.Base{}, nil, nil
	}
	base, err := pipeline.NewBase(r.Base)
	if err != nil {
		return base, nil, err
	}
	env, known := p.tables.EnvironmentOfImage(r.Base)
	if base.File == "" && base.Digest == "" && !p.options.DryRun {
		if base, err = p.backend.pinBase(ctx, base); err != nil {
			return base, nil, err
		}
	}
	if !known {
		builder, err := p.backend.connect(ctx)
		if err == nil {
			env, err = builder.Look(ctx, base)
		}
		if err != nil {
			return base, nil, err
		}
		env = p.tables.Offered(env)
	}
	return base, []compat.BuildHost{env}, nil
}

// PlanBundle plans the wheelhouse beside a wheel: its companions, and with
// dependencies also the packages that they and DeepSpeed require. It returns nil
// where neither is asked for.
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
