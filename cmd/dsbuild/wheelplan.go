package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/internal/mistake"
	"github.com/dsbuild/dsbuild/internal/scratch"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/wheel"
)

// wheelRequest says what one wheel shall be: the flags of dsbuild wheel that an
// entry of a matrix has too.
type wheelRequest struct {
	archs     []string
	gpus      []string
	ops       []string
	deepspeed string
	torch     string
	cuda      string
	python    string
	cpu       string
	glibc     string
	driver    string
	base      string
	keepDebug bool
}

func (r *wheelRequest) flags(f *pflag.FlagSet) {
	r.nodesFlags(f)
	f.StringVar(&r.torch, "torch", "", "torch to build for, X.Y or X.Y.Z (default: the newest that serves)")
	f.StringVar(&r.cuda, "cuda", "", "CUDA that torch is built for, X or X.Y (default: that of torch)")
	f.StringVar(&r.python, "python", "", "Python to build for, X.Y (default: that of the base)")
	f.StringVar(&r.glibc, "glibc", "", "glibc of the oldest node, X.Y (2.28 or newer): a wheel that needs more is refused")
	f.StringVar(&r.driver, "driver", "", "NVIDIA driver of the oldest node, such as 550.54: torch for a CUDA that it runs (below 580: CUDA 12)")
	f.Lookup("cpu").DefValue, r.cpu = defaultCPU, defaultCPU
}

// nodesFlags are those that mean something also where the nodes say what a wheel
// is for.
func (r *wheelRequest) nodesFlags(f *pflag.FlagSet) {
	f.StringArrayVar(&r.archs, "arch", nil, `compute capability, repeatable or joined: "8.0;8.6+PTX"`)
	f.StringArrayVar(&r.gpus, "gpu", nil, `GPU by name, repeatable: A100, "RTX 4090"`)
	f.StringSliceVar(&r.ops, "ops", nil, "operators to compile, or all that can be (default "+strings.Join(wheel.DefaultOps(), ",")+")")
	f.StringVar(&r.deepspeed, "deepspeed", "", "release, latest, git+URL@REF, directory or source distribution (default: the newest release that this dsbuild knows)")
	f.StringVar(&r.cpu, "cpu", "", "oldest CPU that must run it: x86-64-v2, -v3 (AVX2), -v4 (AVX-512), or native: as this machine's")
	f.StringVar(&r.base, "base", "", "base: an image reference, a root file system tar or an OCI tar (default: chosen, a Debian or Ubuntu)")
	f.BoolVar(&r.keepDebug, "keep-debug", false, "leave debug information in the extensions")
}

// defaultCPU is the level of wheels for nodes that nobody has asked.
const defaultCPU = "x86-64-v3"

// nativeCPU asks for the level of the machine dsbuild runs on.
const nativeCPU = "native"

// spec reads the request's values, or says what is wrong with them.
func (r wheelRequest) spec(command string) (wheel.Spec, error) {
	spec := wheel.Spec{GPUs: r.gpus, Ops: r.ops, Torch: r.torch, CUDA: r.cuda, Python: r.python, Glibc: r.glibc, Driver: r.driver}
	var err error
	if spec.Archs, err = wheel.ParseArchs(r.archs); err != nil {
		for _, name := range r.archs {
			if isGPU(name) {
				return spec, hint.With(err, "did you mean --gpu %s?", name)
			}
		}
		return spec, err
	}
	switch r.cpu {
	case "": // as the nodes have it
	case nativeCPU:
		spec.CPU, err = hostCPU()
	default:
		spec.CPU, err = wheel.ParseCPULevel(r.cpu)
	}
	if err != nil {
		return spec, &usageError{err: fmt.Errorf("--cpu: %w", err), command: command, hint: meantCPU(r.cpu)}
	}
	if r.ops != nil && len(r.ops) == 0 { // none at all is the default
		return spec, usageErrorf(command, "--ops: no operator is named")
	}
	return spec, nil
}

// meantCPU names the level that a set of instructions belongs to.
func meantCPU(text string) string {
	text = strings.ToLower(text)
	for _, set := range []struct{ prefix, level string }{
		{"avx512", "v4"}, {"avx-512", "v4"}, {"skylake", "v4"}, {"avx", "v3"}, {"fma", "v3"}, {"haswell", "v3"}, {"sse4", "v2"},
	} {
		if strings.HasPrefix(text, set.prefix) {
			return "did you mean --cpu " + set.level + "?"
		}
	}
	return mistake.DidYouMean(text, []string{nativeCPU})
}

// planner turns requests into plans.
type planner struct {
	app     *app
	command string
	tables  *compat.Tables
	index   *pipeline.Releases // for releases that the tables lack
	place   *place
	options pipeline.Options
	env     *pipeline.Environment // --env, or nil
	dir     *scratch.Dir          // its own: clean copies of sources
	dryRun  bool
	printed bool // plans are printed, and what they leave out with them
	quiet   bool // nothing is said of plans
}

func newPlanner(a *app, command string, at *place, opt pipeline.Options, dryRun bool) (*planner, error) {
	tables, err := compat.NewTables()
	if err != nil {
		return nil, err
	}
	dir, err := scratch.New("")
	return &planner{app: a, command: command, tables: tables, index: at.site.Releases(), place: at, options: opt, dir: dir, dryRun: dryRun}, err
}

func (p *planner) close() { _ = p.dir.Close() } // temporary files

// plan resolves what was asked and lists the steps.
func (p *planner) plan(ctx context.Context, r wheelRequest) (*pipeline.Plan, error) {
	defer p.place.lookAhead(ctx)()
	w, err := p.want(ctx, r)
	if err != nil {
		return nil, err
	}
	return p.resolve(ctx, r, w)
}

// wanted is what was asked for: a Spec, the sources, and the tables that know both.
type wanted struct {
	spec   wheel.Spec
	source pipeline.Source
	tables *compat.Tables
}

// want reads what was asked, and brings the sources if they are no release.
func (p *planner) want(ctx context.Context, r wheelRequest) (wanted, error) {
	w := wanted{source: pipeline.Source{Kind: pipeline.SourceRelease}, tables: p.tables}
	var err error
	if w.spec, err = r.spec(p.command); err != nil {
		return w, err
	}
	dir, err := os.MkdirTemp(p.dir.Path, "source-")
	if err != nil {
		return w, err
	}
	if r.deepspeed != "" && r.deepspeed != compat.Latest {
		if w.source, err = pipeline.OpenSource(ctx, r.deepspeed, dir); err != nil {
			return w, err
		}
	} else {
		w.source.Version = r.deepspeed
	}
	w.spec.DeepSpeed, w.spec.Foreign = w.source.Version, w.source.Kind != pipeline.SourceRelease
	if !w.spec.Foreign {
		found, err := p.index.DeepSpeed(ctx, w.tables, w.spec.DeepSpeed)
		if err != nil {
			return w, err
		}
		p.say(found)
		w.tables, w.spec.DeepSpeed = found.Tables, found.Version
	}
	return w, p.learnTorch(ctx, &w, w.spec)
}

// learnTorch looks up the torch of a spec where the tables do not know it. That of
// an environment is known.
func (p *planner) learnTorch(ctx context.Context, w *wanted, s wheel.Spec) error {
	if p.env != nil {
		return nil
	}
	found, err := p.index.Torch(ctx, w.tables, s)
	p.say(found)
	w.tables = found.Tables
	return err
}

// say tells what a lookup came to.
func (p *planner) say(found pipeline.Found) {
	rep := p.place.site.Reporter(p.app.reporter)
	for _, note := range found.Notes {
		if !p.quiet {
			rep.Note("%s", note)
		}
	}
}

// resolve chooses what is left open and lists the steps.
func (p *planner) resolve(ctx context.Context, r wheelRequest, w wanted) (*pipeline.Plan, error) {
	base, grounds, err := p.ground(ctx, r)
	if err != nil {
		return nil, err
	}
	spec, err := p.beside(w.spec, base)
	if err != nil {
		return nil, err
	}
	tc, err := w.tables.Resolve(spec, grounds...)
	if err != nil {
		return nil, err
	}
	if base.Ref == "" {
		if base, err = p.place.base(ctx, tc.Ground, p.dryRun); err != nil {
			return nil, err
		}
	}
	src := w.source
	if src.Kind == pipeline.SourceRelease {
		src = pipeline.Release(tc.DeepSpeed, tc.Source)
	}
	opt := p.options
	opt.KeepDebug = r.keepDebug
	plan, err := pipeline.NewPlan(tc, src, base, opt)
	if err == nil && !p.quiet {
		p.remark(plan)
	}
	return plan, err
}

// forEnvironment makes it the environment that all wheels are for. One whose torch
// no index has can only be built beside.
func (p *planner) forEnvironment(env pipeline.Environment) error {
	err := env.Released(p.tables)
	if err != nil && p.place.way == builderAuto {
		p.app.reporter.Note("building on this machine: %v", err)
		p.place.way = builderHost
	}
	if err != nil && p.place.way != builderHost {
		return err
	}
	p.env, p.place.env, p.tables = &env, &env, env.Tables(p.tables)
	return nil
}

// beside narrows what is asked for to the environment of --env. A container must
// have no newer glibc than that.
func (p *planner) beside(spec wheel.Spec, base pipeline.Base) (wheel.Spec, error) {
	if p.env == nil {
		return spec, nil
	}
	if !base.Host && spec.Glibc == "" {
		spec.Glibc = p.env.Glibc
	}
	return p.env.Asked(spec)
}

// remark says of a plan what its user should know.
func (p *planner) remark(plan *pipeline.Plan) {
	for _, remark := range plan.Toolchain.Remarks {
		p.app.reporter.Warn("%s", remark)
	}
	for _, note := range plan.Toolchain.Notes {
		p.app.reporter.Note("%s", note)
	}
	if p.printed {
		return
	}
	for _, left := range plan.Toolchain.Left {
		p.app.reporter.Note("without %s: %s", left.Name, left.Why)
	}
}

// ground looks at where the wheel will be built, where the user or the builder
// decides that; elsewhere both are empty and the toolchain decides.
func (p *planner) ground(ctx context.Context, r wheelRequest) (pipeline.Base, []compat.Ground, error) {
	if host, err := p.place.isHost(ctx, p.dryRun); host || err != nil {
		if err == nil && r.base != "" {
			err = usageErrorf(p.command, "--base %s: the host builder builds on this machine", r.base)
		}
		if err != nil {
			return pipeline.Base{}, nil, err
		}
		builder, err := p.place.host(ctx)
		if err != nil {
			return pipeline.Base{}, nil, err
		}
		return builder.Base(), []compat.Ground{builder.Ground().Ground}, nil
	}
	if r.base == "" {
		return pipeline.Base{}, nil, nil
	}
	base, err := pipeline.NewBase(r.base)
	if err != nil {
		return base, nil, err
	}
	ground, known := p.tables.GroundOf(r.base)
	if base.File == "" && base.Digest == "" && !p.dryRun {
		if base, err = p.place.pin(ctx, base); err != nil {
			return base, nil, err
		}
	}
	if !known {
		if ground, err = p.place.look(ctx, base); err != nil {
			return base, nil, err
		}
		ground = p.tables.Offered(ground)
	}
	return base, []compat.Ground{ground}, nil
}
