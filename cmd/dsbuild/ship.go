package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dsbuild/dsbuild/deploy"
	"github.com/dsbuild/dsbuild/internal/flow"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// shipOptions are the flags of dsbuild ship: those of builds, and those of
// deploys.
type shipOptions struct {
	build       wheelOptions
	fleet       deployOptions
	verifyGiven bool // --verify was said
}

func newShipCommand(a *app) *cobra.Command {
	var o shipOptions
	cmd := &cobra.Command{
		Use:        "ship INVENTORY",
		SuggestFor: []string{"all", "release"},
		Short:      "Build what the nodes need, put it on every node and prove it",
		Long: `Ask the nodes of an inventory what they need, build the fewest wheels that serve
them all, put each where it fits, and prove that every node runs it.

What a wheel is for, the nodes say: their Python, torch, GPUs, CPU, glibc and
libstdc++. Nodes that agree in Python and torch share one wheel, with the archs of
all their GPUs, for the oldest of their CPUs and systems. The plan is shown with
the reason for each part of it before anything is built. A node without a visible
GPU gets the operators that need none; --gpu and --arch add to what the nodes show.

A wheel that the store has is not built again, and a node that runs its wheel is
left alone: its files are compared, and with --verify load its operators loaded. A
second run, with nothing changed, needs no engine and takes seconds. Wheels are
built side by side where there is room. One that fails stops no other: its nodes
stay as they are, and the report says why.

Nodes are changed as by dsbuild deploy, and dsbuild rollback goes back.`,
		Example: `  dsbuild ship inventory.yaml --dry-run
  dsbuild ship inventory.yaml
  dsbuild ship inventory.yaml --ops all --limit a100 --report ship.json
  dsbuild ship inventory.yaml --deepspeed git+https://github.com/deepspeedai/DeepSpeed@master`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.fleet.command, o.fleet.inventory = cmd.CommandPath(), args[0]
			if err := o.check(cmd.Flags()); err != nil {
				return err
			}
			site, err := newSite(o.build.siteOptions)
			if err != nil {
				return err
			}
			o.build.site = site
			return site.Error(runShip(cmd.Context(), a, o))
		},
	}
	f := cmd.Flags()
	o.build.nodesFlags(f)
	f.Lookup("cpu").Usage += " (default: v3, or as the oldest of its nodes)"
	o.build.buildFlags(f)
	addFleetFlags(cmd, &o.fleet)
	addBandwidthFlag(cmd, &o.fleet)
	f.StringVar(&o.fleet.deps, "deps", "refuse", "what to do when requirements are missing on a node: `refuse|bundle|index` (name them, gather them for these nodes and bring them, or install them from the node's own index)")
	f.StringVar(&o.fleet.verify, "verify", "load", "what to prove on each node: `load|files` (every op loads, or files and metadata alone); by default load where a wheel is installed, files elsewhere")
	f.BoolVar(&o.fleet.force, "force", false, "install also where the node already runs its wheel")
	return cmd
}

// check finds what flags cannot say by their types.
func (o *shipOptions) check(f *pflag.FlagSet) error {
	if err := o.build.checkBuild(f, o.fleet.command); err != nil {
		return err
	}
	o.verifyGiven = f.Changed("verify")
	o.build.dryRun, o.build.json = o.fleet.dryRun, o.fleet.json
	return nil
}

// runShip ships as o says. The report is printed and written also when builds
// or nodes failed, or the run was interrupted.
func runShip(ctx context.Context, a *app, o shipOptions) error {
	fleet, err := o.fleet.fleet(ctx, a)
	if err != nil {
		return err
	}
	at := &place{app: a, way: o.build.builder, engine: o.build.firstEngine(), site: o.build.site}
	defer at.close()
	planner, err := o.build.planner(ctx, a, o.fleet.command, at)
	if err != nil {
		return err
	}
	defer planner.close()
	opt, err := o.build.flow(ctx, a, at, planner)
	if err != nil {
		return err
	}
	opt.Fleet = fleet
	opt.Fleet.Force, opt.Fleet.Index = o.fleet.force, deploy.Deps(o.fleet.deps) == deploy.DepsIndex
	opt.Fleet.PipWheel = deploy.DefaultPip()
	if deploy.Deps(o.fleet.deps) == deploy.DepsBundle {
		opt.Bundle = o.build.wheelhouses(a, at)
	}
	if !o.verifyGiven {
		opt.Fleet.VerifyLeft = deploy.VerifyFiles
	}
	return ship(ctx, a, o.fleet, flow.New(opt))
}

// ship takes a run through its stages.
func ship(ctx context.Context, a *app, o deployOptions, s *flow.Ship) error {
	defer s.Close()
	plan, err := s.Survey(ctx)
	switch {
	case err != nil && ctx.Err() != nil && !o.dryRun:
		return errors.Join(context.Cause(ctx), printReport(a, o, s.Report()))
	case err != nil:
		return err
	case o.dryRun:
		preview, err := s.Preview(ctx)
		return errors.Join(err, printShipPlan(a, o, plan, preview))
	}
	for _, line := range plan.Lines() {
		a.reporter.Note("%s", line)
	}
	report, err := s.Run(ctx)
	return errors.Join(err, printReport(a, o, report))
}

// printShipPlan prints what a run would build, and do on every node.
func printShipPlan(a *app, o deployOptions, plan *flow.Plan, preview deploy.Plan) error {
	if o.json {
		return ui.JSON(a.stdout, struct {
			Groups []deploy.Group  `json:"groups"`
			Left   []flow.Leftover `json:"left"`
			planDocument
		}{plan.Groups(), plan.Leftovers(), newPlanDocument(preview)})
	}
	return errors.Join(plan.Print(a.stdout), preview.Print(a.stdout))
}
