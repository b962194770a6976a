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
	"github.com/dsbuild/dsbuild/internal/lists"
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

	env    string
	with   []string
	bundle bool
	dryRun bool
	json   bool
}

func newWheelCommand(a *app) *cobra.Command {
	var f wheelFlags
	cmd := &cobra.Command{
		Use:        "wheel",
		SuggestFor: []string{"build", "compile"},
		Short:      "Build a DeepSpeed wheel with its ops compiled",
		Long: `Build a DeepSpeed wheel with its ops compiled, in a clean container on a Dagger
engine or on this machine.

By default the wheel has code for every supported GPU, and works with torch 2.10
or newer and Python 3.10 or newer. --gpu and --arch make a smaller wheel. An
older torch, or an op that is not proven with torch's stable ABI, gets a wheel
for one torch minor version and one Python (--abi). Everything else is chosen to
be compatible: --gpu V100 selects the newest torch and CUDA that still support a
V100, and --gpu GH200 builds for aarch64.

The finished wheel is compared with the request and installed in a fresh
environment, where every op is loaded. The wheel, its manifest and SHA256SUMS
are written to the --output directory.`,
		Annotations: map[string]string{
			helpSeeAlso: `"dsbuild ship" builds the wheels that nodes need and deploys them; "dsbuild gpus" and "dsbuild ops" ` +
				`list the values of --gpu, --arch and --ops.`,
		},
		Example: `  # One wheel for all supported GPUs
  $ dsbuild wheel

  # A smaller wheel, and one with chosen architectures and ops
  $ dsbuild wheel --gpu A100
  $ dsbuild wheel --arch "8.0;9.0+PTX" --ops cpu_adam,utils,fused_lamb

  # Show what would be built for an older GPU
  $ dsbuild wheel --gpu V100 --dry-run

  # Two wheels: x86_64 for the A100, aarch64 for the GH200
  $ dsbuild wheel --gpu GH200 --gpu A100

  # The wheels that the nodes of an inventory need
  $ dsbuild wheel --for inventory.yaml

  # Build DeepSpeed from a Git branch
  $ dsbuild wheel --gpu H100 \
      --deepspeed git+https://github.com/deepspeedai/DeepSpeed@master`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runWheel(cmd.Context(), a, f) },
	}
	f.request.add(cmd)
	f.build.add(cmd)
	f.network.addForBuild(cmd)
	f.nodes.add(cmd, "`INVENTORY` Build the fewest wheels that serve all nodes")
	flags := cmd.Flags()
	flags.StringVar(&f.env, "env", "", "`PYTHON` Build for the environment of this interpreter, which stays unchanged")
	flags.StringArrayVar(&f.with, "with", nil,
		"`PACKAGE` Extra wheel to build in the same environment: NAME==VERSION, NAME@git+URL@REF or NAME@PATH; repeatable")
	flags.BoolVar(&f.bundle, "bundle", false,
		"Also collect the requirements of DeepSpeed and the extra wheels, without torch, in a wheelhouse")
	flags.BoolVar(&f.dryRun, "dry-run", false, "Print the plan without building")
	inGroup(cmd, groupSources, "env", "with", "bundle")
	inGroup(cmd, groupBuild, "dry-run")
	flags.BoolVar(&f.json, "json", false, "Print one JSON document")
	inGroup(cmd, groupOutput, "json")
	flagsExclude(cmd, "env", "for", "the nodes' environments decide")
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
		return usagef("--with and --bundle require a single wheel, but this builds one for each CPU architecture: " +
			"set --machine")
	}
	var planned []*pipeline.Plan
	for _, r := range requests {
		plan, err := plans.Plan(ctx, r.Machine, r)
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
		a.reporter.Note("the wheelhouse is for Python %s only, the wheel for Python %s; "+
			"dsbuild ship --deps bundle makes a wheelhouse for each Python on the nodes", plan.Toolchain().Python, python)
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
	case a.show.Verbose:
		return house.PrintSteps(a.stdout)
	}
	with := "the extra wheels"
	if f.bundle {
		with = "the packages that DeepSpeed requires"
	}
	_, err = fmt.Fprintf(a.stdout, "wheelhouse %s, with %s\n", filepath.Join(f.build.out, wheel.WheelhouseDir), with)
	return err
}

// printPlan prints a summary of a plan, or all of it with --verbose.
func (f wheelFlags) printPlan(ctx context.Context, a *app, plan *pipeline.Plan) error {
	if a.show.Verbose {
		return plan.Print(a.stdout)
	}
	var builder string
	switch {
	case plan.Base.Host:
		builder = "this machine, without a container"
	case f.build.engine != "":
		builder = "Dagger engine " + f.build.engine
	case f.build.builder == planner.Dagger:
		builder = "a Dagger engine"
	default:
		builder = "a Dagger engine if available, else this machine (see the plan with --builder host)"
	}
	_, stored, err := pipeline.DefaultStore().Find(ctx, plan, plan.Digest)
	if err != nil {
		return err
	}
	return plan.PrintSummary(a.stdout, builder, stored)
}

// printWheel describes a wheel in three lines.
func printWheel(a *app, w wheel.Artifact) error {
	cached := ""
	if w.Cached {
		cached = ", cached"
	}
	m := w.Manifest
	holds := "no device code"
	if len(m.Archs) > 0 {
		holds = "arch " + strings.Join(m.Archs, ", ")
	}
	torch := m.Torch
	if m.TorchABI != nil {
		torch += " or newer"
	}
	if cudas := m.CUDAs(); len(cudas) > 0 {
		torch += ", CUDA " + lists.And(cudas)
	}
	cpus := lists.Map(m.CPUs(), func(l wheel.CPULevel) string { return string(l) })
	took := ui.Duration(time.Duration(w.Seconds * float64(time.Second)))
	_, err := fmt.Fprintf(a.stdout, "%s\n  %s, sha256 %s, %s%s\n"+
		"  ops %s; %s; %s; torch %s, Python %s, glibc %s\n",
		relativePath(w.Path), ui.Size(w.Size), w.SHA256, took, cached,
		strings.Join(m.Ops, ", "), holds, lists.And(cpus), torch, m.Python, wheel.MinGlibcForInstall(m.Name, m.Glibc))
	return err
}

// printWheelhouse prints the wheelhouse and lists its wheels.
func printWheelhouse(a *app, dir string, b *wheel.Bundle) error {
	if b == nil {
		return nil
	}
	var size int64
	byWhy := map[string][]string{}
	for _, w := range b.Wheels {
		size += w.Size
		byWhy[w.Why] = append(byWhy[w.Why], w.Name+" "+w.Version)
	}
	_, err := fmt.Fprintf(a.stdout, "%s\n  %d wheels for Python %s, %s\n",
		relativePath(filepath.Join(dir, wheel.WheelhouseDir)), len(b.Wheels), b.Python, ui.Size(size))
	for _, l := range [][2]string{{wheel.Companion, "extra wheels"}, {wheel.Dependency, "dependencies"}} {
		if err == nil && len(byWhy[l[0]]) > 0 {
			_, err = fmt.Fprintf(a.stdout, "  %s %s\n", l[1], strings.Join(byWhy[l[0]], ", "))
		}
	}
	return err
}
