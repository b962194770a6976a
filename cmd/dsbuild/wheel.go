package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/pipeline/planner"
	"github.com/dsbuild/dsbuild/wheel"
)

// wheelFlags are the flags of dsbuild wheel.
type wheelFlags struct {
	request requestFlags
	build   buildFlags
	network networkFlags
	nodes   forFlags // to build for, instead of one wheel

	env     string
	with    []string
	bundle  bool
	dryRun  bool
	verbose bool // the plan of a dry run is printed whole
	json    bool
}

func newWheelCommand(a *app) *cobra.Command {
	var f wheelFlags
	cmd := &cobra.Command{
		Use:   "wheel",
		Short: "Build a DeepSpeed wheel with its operators compiled",
		Long: `wheel builds DeepSpeed with the given operators compiled, in a clean container
on a Dagger engine or on this machine. Then it opens the wheel again and
compares it with the request, installs it in a fresh environment and loads every
operator. It writes the wheel, its manifest and SHA256SUMS to -o.

The wheel has code for every GPU, and it works under torch 2.10 and newer and
every Python from 3.10 on. For fewer GPUs, and a smaller wheel, name them
(--gpu A100, --gpu "RTX 4090") or their compute capability, as dsbuild gpus
lists them. dsbuild ops lists the operators. An older torch, or an operator that
is not proven with torch's stable ABI, gets a wheel for one minor of torch and
one Python; the plan says so (--abi). dsbuild chooses the rest so that all parts
fit together: --gpu V100 takes the newest torch and CUDA that still support a
V100. A GPU that is sold with an Arm CPU (GH200, DGX Spark) gets a wheel for
aarch64.

With --for it asks the nodes of an inventory instead, and builds the fewest
wheels that serve them all; dsbuild ship also installs them.`,
		Example: `  dsbuild wheel
  dsbuild wheel --gpu A100
  dsbuild wheel --arch "8.0;9.0+PTX" --ops cpu_adam,utils,fused_adam,fused_lamb
  dsbuild wheel --gpu V100 --dry-run
  dsbuild wheel --gpu GH200 --gpu A100
  dsbuild wheel --for inventory.yaml
  dsbuild wheel --gpu H100 --deepspeed git+https://github.com/deepspeedai/DeepSpeed@master`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runWheel(cmd.Context(), a, f) },
	}
	f.request.add(cmd)
	f.build.add(cmd)
	f.network.addForBuild(cmd)
	f.nodes.add(cmd, "build the fewest wheels that serve all nodes of this `INVENTORY`")
	flags := cmd.Flags()
	flags.StringVar(&f.env, "env", "", "build for the environment of this `PYTHON`; dsbuild does not change it")
	flags.StringArrayVar(&f.with, "with", nil,
		"`COMPANION` to build in the same environment, repeatable: NAME==VERSION, NAME@git+URL@REF or NAME@PATH")
	flags.BoolVar(&f.bundle, "bundle", false,
		"also collect the requirements of DeepSpeed and the companions, without torch, in a wheelhouse")
	flags.BoolVar(&f.dryRun, "dry-run", false, "print the plan and stop")
	flags.BoolVar(&f.verbose, "verbose", false, "with --dry-run: print every step, variable and package of the plan")
	flagsNeed(cmd, "dry-run", "verbose")
	flags.BoolVar(&f.json, "json", false, "print one JSON document on stdout")
	flagsExclude(cmd, "env", "for", "dsbuild builds for the environments of the nodes")
	return cmd
}

// runWheel plans wheels, and builds them or prints the plan.
func runWheel(ctx context.Context, a *app, f wheelFlags) (err error) {
	network, err := f.network.read()
	if err != nil {
		return err
	}
	defer func() { err = network.Error(err) }()
	request, err := f.request.request()
	if err != nil {
		return err
	}
	if f.nodes.inventory != "" {
		return runWheelFor(ctx, a, f, network, request)
	}
	opt := planner.Options{DryRun: f.dryRun, Printed: f.dryRun && !f.json, Env: f.env}
	tools, err := f.build.open(ctx, a, network, opt)
	if err != nil {
		return err
	}
	defer tools.Close()
	plans, err := tools.planner(ctx, f.request.source)
	if err != nil {
		return err
	}
	requests := plans.ByMachine(request)
	switch {
	case len(requests) < 2:
		return f.buildOne(ctx, a, tools, plans, request)
	case len(f.with) > 0 || f.bundle:
		return usagef("--with and --bundle work for one wheel only, and these GPUs are in machines with different CPUs: " +
			"give --machine")
	}
	var planned []*pipeline.Plan
	for _, r := range requests {
		plan, err := plans.Plan(ctx, r.CPU.Machine(), r)
		if err != nil {
			return err
		}
		planned = append(planned, plan)
	}
	if f.dryRun {
		return f.printPlans(ctx, a, planned)
	}
	return f.buildSeveral(ctx, a, tools, planned)
}

// buildOne builds one wheel and its wheelhouse, or prints their plans.
func (f wheelFlags) buildOne(
	ctx context.Context, a *app, tools *buildTools, plans *planner.Planner, request wheel.Request,
) error {
	plan, err := plans.Plan(ctx, "", request)
	if err != nil {
		return err
	}
	house, err := plans.PlanBundle(ctx, plan, f.with, f.bundle)
	if err != nil {
		return err
	}
	if _, _, python := plan.Toolchain().Serves(); house != nil && python != plan.Toolchain().Python {
		a.reporter.Note("the wheelhouse is for Python %s alone, the wheel for Python %s: "+
			"dsbuild ship --deps bundle makes one for each Python of the nodes", plan.Toolchain().Python, python)
	}
	if f.dryRun {
		return f.printDryRun(ctx, a, plan, house)
	}
	artifact, err := tools.runner.Run(ctx, plan)
	if err != nil {
		return err
	}
	var bundle *wheel.Bundle
	if house != nil {
		made, err := tools.runner.Bundle(ctx, house, artifact)
		if err != nil {
			return err
		}
		bundle = &made
	}
	if f.json {
		return ui.JSON(a.stdout, newWheelResult(artifact, filepath.Join(f.build.out, wheel.WheelhouseDir), bundle))
	}
	return errors.Join(printWheel(a, artifact), printWheelhouse(a, f.build.out, bundle))
}

// buildSeveral builds wheels for several machines.
func (f wheelFlags) buildSeveral(ctx context.Context, a *app, tools *buildTools, plans []*pipeline.Plan) error {
	results := tools.runner.RunAll(ctx, plans, nil)
	built := newWheelsResult(nil)
	for _, r := range results {
		built.add(nil, r.Plan.Name, r.Artifact, r.Err)
	}
	if err := built.print(a, f.json); err != nil {
		return err
	}
	// The error if something failed. Its exit code is 4 if all failed wheels were
	// built but do not match the request, and 1 if one could not be built.
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var failed []string
	code := exitWheel
	for _, r := range results {
		if r.Err == nil {
			continue
		}
		failed = append(failed, r.Plan.Name)
		if fault.ExitCode(r.Err) != exitWheel {
			code = exitFailed
		}
	}
	if len(failed) == 0 {
		return nil
	}
	err := fmt.Errorf("%d of %d wheels failed: %s", len(failed), len(results), strings.Join(failed, ", "))
	return fault.WithCode(err, code)
}

// printPlans prints the plans of several wheels.
func (f wheelFlags) printPlans(ctx context.Context, a *app, plans []*pipeline.Plan) error {
	if f.json {
		return ui.JSON(a.stdout, newWheelsPlan(plans))
	}
	for i, p := range plans {
		gap := ""
		if i > 0 {
			gap = "\n"
		}
		if _, err := fmt.Fprintf(a.stdout, "%s== %s\n", gap, p.Name); err != nil {
			return err
		}
		if err := f.printPlan(ctx, a, p); err != nil {
			return err
		}
	}
	return nil
}

// printDryRun prints the plan of a wheel and of its wheelhouse, if there is one.
func (f wheelFlags) printDryRun(ctx context.Context, a *app, plan *pipeline.Plan, house *pipeline.BundlePlan) error {
	if f.json {
		return ui.JSON(a.stdout, newWheelPlan(plan, house))
	}
	err := f.printPlan(ctx, a, plan)
	switch {
	case err != nil || house == nil:
		return err
	case f.verbose:
		return house.PrintSteps(a.stdout)
	}
	with := "the companions"
	if f.bundle {
		with = "the packages that DeepSpeed requires"
	}
	_, err = fmt.Fprintf(a.stdout, "wheelhouse %s, with %s\n", filepath.Join(f.build.out, wheel.WheelhouseDir), with)
	return err
}

// printPlan prints a plan for people: in short, or whole with --verbose.
func (f wheelFlags) printPlan(ctx context.Context, a *app, plan *pipeline.Plan) error {
	if f.verbose {
		return plan.Print(a.stdout)
	}
	var builder string
	switch {
	case plan.Base.Host:
		builder = "this machine, without a container"
	case f.build.engine != "":
		builder = "the engine " + f.build.engine
	case f.build.builder == planner.Dagger:
		builder = "a Dagger engine, which is searched for"
	default:
		builder = "a Dagger engine if one is found, else this machine (--builder host shows that plan)"
	}
	_, stored, err := pipeline.DefaultStore().Find(ctx, plan.Digest)
	if err != nil {
		return err
	}
	return plan.PrintSummary(a.stdout, builder, stored)
}

// printWheel describes a wheel in three lines.
func printWheel(a *app, w wheel.Artifact) error {
	cached := ""
	if w.Cached {
		cached = ", from the store"
	}
	m := w.Manifest
	holds := "no device code"
	if len(m.Archs) > 0 {
		holds = "arch " + strings.Join(m.Archs, ", ")
	}
	torch := m.Torch
	if m.TorchABI != nil {
		torch += " and newer"
	}
	took := ui.Duration(time.Duration(w.Seconds * float64(time.Second)))
	_, err := fmt.Fprintf(a.stdout, "%s\n  %s, sha256 %s, %s%s\n"+
		"  ops %s; %s; %s; torch %s, CUDA %s, Python %s, glibc %s\n",
		relativePath(w.Path), ui.Size(w.Size), w.SHA256, took, cached,
		strings.Join(m.Ops, ", "), holds, m.CPU, torch, m.CUDA, m.Python, wheel.InstallableGlibc(m.Name, m.Glibc))
	return err
}

// printWheelhouse names the wheelhouse and lists its wheels.
func printWheelhouse(a *app, dir string, b *wheel.Bundle) error {
	if b == nil {
		return nil
	}
	var size int64
	lists := map[string][]string{}
	for _, w := range b.Wheels {
		size += w.Size
		lists[w.Why] = append(lists[w.Why], w.Name+" "+w.Version)
	}
	_, err := fmt.Fprintf(a.stdout, "%s\n  %d wheels for Python %s, %s\n",
		relativePath(filepath.Join(dir, wheel.WheelhouseDir)), len(b.Wheels), b.Python, ui.Size(size))
	for _, l := range [][2]string{{wheel.Companion, "companions"}, {wheel.Dependency, "dependencies"}} {
		if err == nil && len(lists[l[0]]) > 0 {
			_, err = fmt.Fprintf(a.stdout, "  %s %s\n", l[1], strings.Join(lists[l[0]], ", "))
		}
	}
	return err
}
