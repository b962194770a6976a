package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/dockerfiles"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/pipeline/daggerbuilder"
	"github.com/dsbuild/dsbuild/pipeline/engine"
	"github.com/dsbuild/dsbuild/wheel"
)

// wheelOptions are the flags of dsbuild wheel.
type wheelOptions struct {
	archs     []string
	ops       []string
	deepspeed string
	torch     string
	cuda      string
	python    string
	cpu       string
	builder   string
	engine    string
	base      string
	out       string
	jobs      int
	noCache   bool
	keepDebug bool
	dryRun    bool
	json      bool
}

func newWheelCommand(a *app) *cobra.Command {
	var o wheelOptions
	cmd := &cobra.Command{
		Use:   "wheel --arch X.Y",
		Short: "Build a DeepSpeed wheel with its operators compiled",
		Long: `wheel builds DeepSpeed with the given operators compiled for the given GPUs, in
a clean container on a Dagger engine, opens the result again and compares it
with what was asked, installs it in a fresh environment and loads every
operator. The wheel, its manifest and SHA256SUMS are written to -o.

A compute capability is NVIDIA's number for a GPU: 8.0 is A100, 8.6 is RTX 3090
and A40, 8.9 is L40S and RTX 4090, 9.0 is H100.`,
		Example: `  dsbuild wheel --arch 8.0
  dsbuild wheel --arch "8.0;9.0+PTX" --ops cpu_adam,utils,fused_adam,fused_lamb
  dsbuild wheel --arch 8.0 --dry-run`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runWheel(cmd.Context(), a, o, cmd.CommandPath())
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&o.archs, "arch", nil, `compute capability, repeatable or joined: "8.0;8.6+PTX"`)
	f.StringSliceVar(&o.ops, "ops", wheel.DefaultOps(), "operators to compile, or all")
	f.StringVar(&o.deepspeed, "deepspeed", "", "release of DeepSpeed (default: the newest known)")
	f.StringVar(&o.torch, "torch", "", "torch to build for (default: the newest known)")
	f.StringVar(&o.cuda, "cuda", "", "CUDA to build for (default: that of torch)")
	f.StringVar(&o.python, "python", "", "Python to build for (default: that of the base)")
	f.StringVar(&o.cpu, "cpu", "x86-64-v3", "oldest CPU that must run it: x86-64-v2, -v3 (AVX2), -v4 (AVX-512)")
	f.StringVar(&o.builder, "builder", "auto", "auto or dagger")
	f.StringVar(&o.engine, "engine", "", "address of a Dagger engine: unix:///path/engine.sock, tcp://host:port")
	f.StringVar(&o.base, "base", "", "base: an image reference, a root file system tar or an OCI tar (default: "+dockerfiles.DefaultImage+", or the tar 'make engine' made)")
	f.IntVar(&o.jobs, "jobs", 0, "compile jobs at once (default: as many as cores)")
	f.BoolVar(&o.noCache, "no-cache", false, "compile anew: neither the store nor cached objects are read")
	f.BoolVar(&o.keepDebug, "keep-debug", false, "leave debug information in the extensions")
	f.StringVarP(&o.out, "output", "o", "dist", "directory for the wheel")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the plan and stop")
	f.BoolVar(&o.json, "json", false, "print one JSON document on stdout")
	return cmd
}

// runWheel resolves what was asked, plans it, and runs the plan or prints it.
func runWheel(ctx context.Context, a *app, o wheelOptions, command string) error {
	if o.builder != "auto" && o.builder != "dagger" {
		return usageErrorf(command, "--builder %q: only auto and dagger exist in this version", o.builder)
	}
	toolchain, base, err := o.resolve(command)
	if err != nil {
		return err
	}
	for _, remark := range toolchain.Remarks {
		a.reporter.Warn("%s", remark)
	}
	connection := &lazyBuilder{app: a, engine: o.engine}
	defer connection.close()
	if base.Digest == "" && !o.dryRun {
		if base, err = connection.resolve(ctx, base); err != nil {
			return err
		}
	}
	plan, err := pipeline.NewPlan(toolchain, pipeline.Release(toolchain.DeepSpeed, toolchain.Source), base, pipeline.Options{Jobs: o.jobs, NoCache: o.noCache, KeepDebug: o.keepDebug})
	if err != nil {
		return err
	}
	if o.dryRun {
		return printWheelPlan(a, o.json, plan)
	}
	artifact, err := pipeline.Runner{
		Store: pipeline.DefaultStore(), Dir: o.out, Logs: pipeline.DefaultLogs(), Version: a.version,
		Builder: connection.open, Report: a.reporter,
	}.Run(ctx, plan)
	if err != nil {
		return err
	}
	return printWheels(a, o.json, []wheel.Artifact{artifact})
}

// resolve turns the flags into a toolchain and a base, or says what is wrong
// with them.
func (o wheelOptions) resolve(command string) (compat.Toolchain, pipeline.Base, error) {
	var none compat.Toolchain
	spec := wheel.Spec{DeepSpeed: o.deepspeed, Ops: o.ops, Torch: o.torch, CUDA: o.cuda, Python: o.python}
	var err error
	if spec.Archs, err = wheel.ParseArchs(o.archs); err != nil {
		return none, pipeline.Base{}, err
	}
	if spec.CPU, err = wheel.ParseCPULevel(o.cpu); err != nil {
		return none, pipeline.Base{}, usageErrorf(command, "--cpu: %w", err)
	}
	if o.jobs < 0 {
		return none, pipeline.Base{}, usageErrorf(command, "--jobs %d: a number of jobs is at least 1", o.jobs)
	}
	if len(o.ops) == 0 {
		return none, pipeline.Base{}, usageErrorf(command, "--ops: no operator is named")
	}
	tables, err := compat.NewTables()
	if err != nil {
		return none, pipeline.Base{}, err
	}
	toolchain, err := tables.Resolve(spec)
	if err != nil {
		return none, pipeline.Base{}, err
	}
	if o.base == "" {
		o.base = engine.BaseTar()
	}
	if o.base == "" {
		o.base = dockerfiles.DefaultImage
	}
	base, err := pipeline.NewBase(o.base)
	return toolchain, base, err
}

// printWheelPlan prints what a run would do, for people or as one JSON document.
func printWheelPlan(a *app, asJSON bool, p *pipeline.Plan) error {
	if !asJSON {
		return p.Print(a.stdout)
	}
	return ui.JSON(a.stdout, struct {
		Digest string `json:"plan_digest"`
		*pipeline.Plan
	}{p.Digest, p})
}

// lazyBuilder connects to an engine when one is first needed.
type lazyBuilder struct {
	app     *app
	engine  string
	builder *daggerbuilder.Builder
	done    func() error
}

func (l *lazyBuilder) connect(ctx context.Context) (*daggerbuilder.Builder, error) {
	if l.builder != nil {
		return l.builder, nil
	}
	found, err := engine.NewFinder(l.engine, l.app.reporter.Note).Find(ctx)
	if err != nil {
		return nil, err
	}
	step := l.app.reporter.Step("engine: " + found.How)
	builder, done, err := daggerbuilder.Connect(ctx, found, &lineWriter{line: step.Log})
	if err != nil {
		step.End(ui.Failed, "")
		return nil, err
	}
	step.End(ui.Done, "")
	l.builder, l.done = builder, done
	return builder, nil
}

// open is connect for a pipeline.Runner.
func (l *lazyBuilder) open(ctx context.Context) (pipeline.Builder, error) {
	return l.connect(ctx)
}

// resolve asks the engine which bytes an image's tag stands for now.
func (l *lazyBuilder) resolve(ctx context.Context, base pipeline.Base) (pipeline.Base, error) {
	builder, err := l.connect(ctx)
	if err != nil {
		return base, err
	}
	return builder.ResolveBase(ctx, base)
}

func (l *lazyBuilder) close() {
	if l.done == nil {
		return
	}
	if err := l.done(); err != nil {
		l.app.reporter.Warn("closing the engine's session: %v", err)
	}
}

// wheelsDocument is the JSON that dsbuild wheel prints.
type wheelsDocument struct {
	Wheels []wheel.Artifact `json:"wheels"`
}

func printWheels(a *app, asJSON bool, artifacts []wheel.Artifact) error {
	if asJSON {
		return ui.JSON(a.stdout, wheelsDocument{artifacts})
	}
	for _, w := range artifacts {
		cached := ""
		if w.Cached {
			cached = ", from the store"
		}
		m := w.Manifest
		holds := "no device code"
		if len(m.Archs) > 0 {
			holds = "arch " + strings.Join(m.Archs, ", ")
		}
		_, err := fmt.Fprintf(a.stdout, "%s\n  %s, sha256 %s, %s%s\n  ops %s; %s; %s; torch %s, CUDA %s, Python %s, glibc %s\n",
			relative(w.Path), ui.Size(w.Size), w.SHA256, ui.Duration(time.Duration(w.Seconds*float64(time.Second))), cached,
			strings.Join(m.Ops, ", "), holds, m.CPU, m.Torch, m.CUDA, m.Python, m.Glibc)
		if err != nil {
			return err
		}
	}
	return nil
}

// relative shows a path as the user would type it, where that is shorter.
func relative(path string) string {
	cwd, err := os.Getwd()
	if err != nil {
		return path
	}
	if rest, ok := strings.CutPrefix(path, cwd+string(os.PathSeparator)); ok {
		return rest
	}
	return path
}

// lineWriter passes what is written to it on, line by line.
type lineWriter struct {
	line func(string)
	rest []byte
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	for {
		i := bytes.IndexByte(w.rest, '\n')
		if i < 0 {
			return len(p), nil
		}
		if line := bytes.TrimSpace(w.rest[:i]); len(line) > 0 {
			w.line(string(line))
		}
		w.rest = w.rest[i+1:]
	}
}
