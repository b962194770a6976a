package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/fleet/ship"
	"github.com/dsbuild/dsbuild/fleet/verify"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// shipOptions are the flags of dsbuild ship: those of builds, and those of
// deploys.
type shipOptions struct {
	build       wheelOptions
	fleet       deployOptions
	verifyGiven bool // --verify was said
	env         string
	lock        string
	removeOps   bool
}

func newShipCommand(a *app) *cobra.Command {
	var o shipOptions
	cmd := &cobra.Command{
		Use:   "ship INVENTORY",
		Short: "Build the wheels that the nodes need, install and verify them",
		Long: `Probe the nodes of an inventory, build the fewest wheels that serve them all,
install on each node the wheel that fits it, and check that every node runs its
wheel. A second run without changes needs no engine and takes seconds.

The nodes decide the targets of the wheels: Python, torch, GPUs and CPU. Nodes
with torch 2.10 or newer share one wheel for each major of CUDA, with code for
every GPU; nodes with an older torch share one for their Python and their minor
of torch. dsbuild shows the plan and its reasons before it builds anything. A
node whose torch has no CUDA gets the operators without device code. With --gpu
or --arch the wheels have code for these and for the GPUs of the nodes only.
Where the wheel lacks operators that the DeepSpeed of a node has, the node is
left out, unless --remove-ops is given. If a wheel fails, its nodes stay
unchanged.

Nodes are changed as by dsbuild deploy; dsbuild rollback restores them. With
--env the nodes need neither torch nor pip: dsbuild builds the DeepSpeed that
the environment file describes for them, locks the environment with that wheel,
and deploys it as dsbuild env deploy does.` + whichDeploy,
		Example: `  dsbuild ship inventory.yaml --dry-run
  dsbuild ship inventory.yaml
  dsbuild ship inventory.yaml --arch 9.0 --ops cpu_adam,utils,fused_adam
  dsbuild ship inventory.yaml --ops all --limit a100 --report ship.json
  dsbuild ship inventory.yaml --env environment.yaml
  dsbuild ship inventory.yaml --deepspeed git+https://github.com/deepspeedai/DeepSpeed@master`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.fleet.command, o.fleet.inventory = cmd.CommandPath(), args[0]
			if err := o.build.readBuildFlags(cmd.Flags()); err != nil {
				return err
			}
			o.verifyGiven = cmd.Flags().Changed("verify")
			o.build.dryRun, o.build.json = o.fleet.dryRun, o.fleet.json
			run := runShip
			if o.env != "" {
				run = runShipEnv
			}
			return o.build.site.Error(run(cmd.Context(), a, o))
		},
	}
	f := cmd.Flags()
	addCommonRequestFlags(f, &o.build.request)
	f.Lookup("cpu").Usage += " (default: v3, or the level of the oldest node)"
	o.build.buildFlags(f)
	addChangeFlags(cmd, &o.fleet.changeFlags)
	addBandwidthFlag(cmd, &o.fleet.changeFlags)
	f.StringVar(&o.fleet.deps, "deps", "refuse",
		"what to do when requirements are missing on a node: `refuse|bundle` (name them, or collect and copy them)")
	f.StringVar(&o.fleet.verify, "verify", "load",
		"what to check on each node: `load|files` (every op loads, or files and metadata alone); without this flag, files on a node "+
			"that already runs its wheel")
	f.StringVar(&o.env, "env", "", "deploy the whole environment of `FILE`, with the DeepSpeed that it says to build")
	f.StringVar(&o.lock, "lock", "", "the lock that --env writes: `FILE` (default: the environment file's name with .lock)")
	f.BoolVar(&o.fleet.force, "force", false, "install also where the node already runs its wheel")
	f.BoolVar(&o.removeOps, "remove-ops", false, "install also where the wheel lacks operators that the DeepSpeed of the node has")
	f.BoolVar(&o.build.verbose, "verbose", false, "with --dry-run: print the targets of each wheel, and all reasons")
	flagsNeed(cmd, "env", "lock")
	flagsNeed(cmd, "dry-run", "verbose")
	return cmd
}

// runShip ships as o says, or previews that. The report is printed and written also when builds
// or nodes failed, or the run was interrupted.
func runShip(ctx context.Context, a *app, o shipOptions) error {
	deployment, err := o.fleet.installOptions(ctx, a)
	if err != nil {
		return err
	}
	tools, err := o.build.openBuild(ctx, a)
	if err != nil {
		return err
	}
	defer tools.Close()
	opt, err := o.build.shipOptions(ctx, a, tools)
	if err != nil {
		return err
	}
	deployment.Force, deployment.PipWheel, opt.RemoveOps = o.fleet.force, deploy.DefaultPip(), o.removeOps
	if deploy.Deps(o.fleet.deps) == deploy.DepsBundle {
		opt.Bundle = tools.newBundler(a)
	}
	if !o.verifyGiven {
		deployment.VerifyUnchanged = verify.LevelFiles
	}
	d := deploy.New(deployment)
	defer d.Close()
	s := ship.New(d, opt)
	plan, err := s.Survey(ctx)
	switch {
	case err != nil && ctx.Err() != nil && !o.fleet.dryRun:
		return errors.Join(context.Cause(ctx), printReport(a, o.fleet.fleetFlags, s.Report()))
	case err != nil:
		return err
	case o.fleet.dryRun:
		preview, err := s.Preview(ctx)
		if o.fleet.json {
			return errors.Join(err, ui.JSON(a.stdout, newShipPlan(plan, preview)))
		}
		return errors.Join(err, plan.Print(a.stdout, o.build.verbose), preview.Print(a.stdout),
			report.PrintHints(a.stdout, preview.Left(), o.fleet.nameInventory))
	}
	for _, line := range plan.Lines() {
		a.reporter.Note("%s", line)
	}
	done, err := s.Run(ctx)
	return errors.Join(err, printReport(a, o.fleet.fleetFlags, done))
}
