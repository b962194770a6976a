package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/pipeline/planner"
	"github.com/dsbuild/dsbuild/wheel"
)

// wheelOptions are the flags of dsbuild wheel.
type wheelOptions struct {
	request        planner.Request
	connectOptions // to the nodes of inventory

	inventory   string // --for: nodes to build for, instead of one wheel
	limit       string // of these nodes
	builder     string
	engine      string // its address
	env         string
	out         string
	with        []string
	bundle      bool
	jobs        int
	noCache     bool
	sign        string // the key that signs the wheels
	siteOptions pipeline.SiteOptions
	site        pipeline.Site
	dryRun      bool
	verbose     bool // the plan of a dry run is printed whole
	json        bool
}

func newWheelCommand(a *app) *cobra.Command {
	var o wheelOptions
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
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.checkFlags(cmd.Flags()); err != nil {
				return err
			}
			build := runWheel
			if o.inventory != "" {
				build = runWheelFor
			}
			return o.site.Error(build(cmd.Context(), a, o))
		},
	}
	f := cmd.Flags()
	addRequestFlags(f, &o.request)
	o.buildFlags(f)
	f.StringVar(&o.inventory, "for", "", "build the fewest wheels that serve all nodes of this `INVENTORY`")
	addLimitFlag(cmd, &o.limit)
	addConnectFlags(cmd, &o.connectOptions)
	flagsNeed(cmd, "for", append(connectFlags(), "limit")...)
	f.StringVar(&o.env, "env", "", "build for the environment of this `PYTHON`; dsbuild does not change it")
	f.StringArrayVar(&o.with, "with", nil,
		"`COMPANION` to build in the same environment, repeatable: NAME==VERSION, NAME@git+URL@REF or NAME@PATH")
	f.BoolVar(&o.bundle, "bundle", false, "also collect the requirements of DeepSpeed and the companions, without torch, in a wheelhouse")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the plan and stop")
	f.BoolVar(&o.verbose, "verbose", false, "with --dry-run: print every step, variable and package of the plan")
	flagsNeed(cmd, "dry-run", "verbose")
	f.BoolVar(&o.json, "json", false, "print one JSON document on stdout")
	flagsExclude(cmd, "env", "for", "dsbuild builds for the environments of the nodes")
	return cmd
}

// checkFlags refuses flags that contradict each other.
func (o *wheelOptions) checkFlags(f *pflag.FlagSet) error {
	if err := o.readBuildFlags(f); err != nil {
		return err
	}
	if err := o.connectOptions.checkFlags(); err != nil {
		return err
	}
	if o.inventory != "" && (len(o.with) > 0 || o.bundle) {
		return usagef("--with and --bundle work for one wheel only: a wheelhouse is for one Python and one torch")
	}
	return nil
}

// runWheel plans one wheel, and builds it or prints the plan.
func runWheel(ctx context.Context, a *app, o wheelOptions) error {
	tools, err := o.openBuild(ctx, a)
	if err != nil {
		return err
	}
	defer tools.Close()
	if requests := tools.plans.ByMachine(o.request); len(requests) > 1 {
		return runByMachine(ctx, a, o, tools, requests)
	}
	plan, err := tools.plans.Plan(ctx, o.request)
	if err != nil {
		return err
	}
	house, err := tools.plans.PlanBundle(ctx, plan, o.with, o.bundle)
	if err != nil {
		return err
	}
	if _, _, python := plan.Toolchain.Serves(); house != nil && python != plan.Toolchain.Python {
		a.reporter.Note("the wheelhouse is for Python %s alone, the wheel for Python %s: dsbuild ship --deps bundle makes one for each Python of the nodes", plan.Toolchain.Python, python)
	}
	if o.dryRun {
		return o.printDryRun(ctx, a, plan, house)
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
	if o.json {
		return ui.JSON(a.stdout, newWheelResult(artifact, filepath.Join(o.out, wheel.WheelhouseDir), bundle))
	}
	return errors.Join(printWheel(a, artifact), printWheelhouse(a, o.out, bundle))
}

// runByMachine builds a wheel for each machine.
func runByMachine(ctx context.Context, a *app, o wheelOptions, tools *buildTools, requests []planner.Request) error {
	if len(o.with) > 0 || o.bundle {
		return usagef("--with and --bundle work for one wheel only, and these GPUs are in machines with different CPUs: give --machine")
	}
	var jobs []pipeline.Job
	for _, r := range requests {
		plan, err := tools.plans.ReportingAs(r.Machine).Plan(ctx, r)
		if err != nil {
			return err
		}
		jobs = append(jobs, pipeline.Job{Name: r.Machine, Plan: plan})
	}
	return runJobs(ctx, a, o, tools, jobs)
}

// printDryRun prints the plan of a wheel and of its wheelhouse, if there is one.
func (o wheelOptions) printDryRun(ctx context.Context, a *app, plan *pipeline.Plan, house *pipeline.BundlePlan) error {
	if o.json {
		return ui.JSON(a.stdout, newWheelPlan(plan, house))
	}
	err := o.printPlan(ctx, a, plan)
	switch {
	case err != nil || house == nil:
		return err
	case o.verbose:
		return house.PrintSteps(a.stdout)
	}
	with := "the companions"
	if o.bundle {
		with = "the packages that DeepSpeed requires"
	}
	_, err = fmt.Fprintf(a.stdout, "wheelhouse %s, with %s\n", filepath.Join(o.out, wheel.WheelhouseDir), with)
	return err
}

// printPlan prints a plan for people: in short, or whole with --verbose.
func (o wheelOptions) printPlan(ctx context.Context, a *app, plan *pipeline.Plan) error {
	if o.verbose {
		return plan.Print(a.stdout)
	}
	var builder string
	switch {
	case plan.Base.Host:
		builder = "this machine, without a container"
	case o.engine != "":
		builder = "the engine " + o.engine
	case o.builder == planner.Dagger:
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
	_, err := fmt.Fprintf(a.stdout, "%s\n  %s, sha256 %s, %s%s\n  ops %s; %s; %s; torch %s, CUDA %s, Python %s, glibc %s\n",
		relativePath(w.Path), ui.Size(w.Size), w.SHA256, ui.Duration(time.Duration(w.Seconds*float64(time.Second))), cached,
		strings.Join(m.Ops, ", "), holds, m.CPU, torch, m.CUDA, m.Python, wheel.InstallableGlibc(m.Name, m.Glibc))
	return err
}

// relativePath returns a path relative to the working directory, if that is shorter.
func relativePath(path string) string {
	cwd, err := os.Getwd()
	if err != nil {
		return path
	}
	if rest, ok := strings.CutPrefix(path, cwd+string(os.PathSeparator)); ok {
		return rest
	}
	return path
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
	_, err := fmt.Fprintf(a.stdout, "%s\n  %d wheels for Python %s, %s\n", relativePath(filepath.Join(dir, wheel.WheelhouseDir)), len(b.Wheels), b.Python, ui.Size(size))
	for _, why := range []struct{ key, title string }{{wheel.Companion, "companions"}, {wheel.Dependency, "dependencies"}} {
		if err == nil && len(lists[why.key]) > 0 {
			_, err = fmt.Fprintf(a.stdout, "  %s %s\n", why.title, strings.Join(lists[why.key], ", "))
		}
	}
	return err
}
