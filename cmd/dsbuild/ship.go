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
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/pipeline/planner"
	"github.com/dsbuild/dsbuild/wheel"
)

// shipFlags are the flags of dsbuild ship: those of builds, and those of deploys.
type shipFlags struct {
	request requestFlags
	build   buildFlags
	network networkFlags
	deploy  deployFlags // without --wheel and --bundle

	verifyGiven    bool // --verify was said
	env            string
	lock           string
	allowOpRemoval bool
	verbose        bool // the plan of a dry run is printed whole
}

func newShipCommand(a *app) *cobra.Command {
	var f shipFlags
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
left out, unless --allow-op-removal is given. If a wheel fails, its nodes stay
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
			f.deploy.nodes.command, f.deploy.nodes.inventory = cmd.CommandPath(), args[0]
			f.verifyGiven = cmd.Flags().Changed("verify")
			return runShip(cmd.Context(), a, f)
		},
	}
	f.request.addForNodes(cmd)
	f.build.add(cmd)
	f.network.addForBuild(cmd)
	f.deploy.nodes.add(cmd)
	f.deploy.change.add(cmd)
	f.deploy.send.add(cmd)
	flags := cmd.Flags()
	flags.Lookup("cpu").Usage += " (default: v3, or the level of the oldest node)"
	flags.StringVar(&f.deploy.deps, "deps", string(deploy.DepsRefuse),
		"what to do when requirements are missing on a node: `refuse|bundle` "+
			"(name them, or collect and copy them)")
	flags.StringVar(&f.deploy.verify, "verify", "load",
		"what to check on each node: `load|files` (every op loads, or files and metadata alone); "+
			"without this flag, files on a node that already runs its wheel")
	flags.StringVar(&f.env, "env", "", "deploy the whole environment of `FILE`, with the DeepSpeed that it says to build")
	flags.StringVar(&f.lock, "lock", "",
		"the lock that --env writes: `FILE` (default: the environment file's name with .lock)")
	flags.BoolVar(&f.deploy.force, "force", false, "install also where the node already runs its wheel")
	flags.BoolVar(&f.allowOpRemoval, "allow-op-removal", false,
		"install also where the wheel lacks operators that the DeepSpeed of the node has")
	flags.BoolVar(&f.verbose, "verbose", false, "with --dry-run: print the targets of each wheel, and all reasons")
	flagsNeed(cmd, "env", "lock")
	flagsNeed(cmd, "dry-run", "verbose")
	return cmd
}

// runShip ships, or previews that. The report is printed and written also when builds or nodes failed, or the run was
// interrupted.
func runShip(ctx context.Context, a *app, f shipFlags) (err error) {
	network, err := f.network.read()
	if err != nil {
		return err
	}
	defer func() { err = network.Error(err) }()
	request, err := f.request.request()
	if err != nil {
		return err
	}
	if f.env != "" {
		return runShipEnv(ctx, a, f, network, request)
	}
	deployment, err := f.deploy.options(ctx, a)
	if err != nil {
		return err
	}
	tools, opt, err := f.open(ctx, a, network, request)
	if err != nil {
		return err
	}
	defer tools.Close()
	opt.AllowOpRemoval = f.allowOpRemoval
	if f.deploy.deps == string(deploy.DepsBundle) {
		opt.Bundle = tools.runner.BundleFor
	}
	if !f.verifyGiven {
		deployment.VerifyUnchanged = verify.LevelFiles
	}
	d := deploy.New(deployment)
	defer d.Close()
	s := ship.New(d, opt)
	plan, err := s.Survey(ctx)
	switch {
	case err != nil && ctx.Err() != nil && !f.deploy.change.dryRun:
		return errors.Join(context.Cause(ctx), printReport(a, f.deploy.nodes, s.Report()))
	case err != nil:
		return err
	case f.deploy.change.dryRun:
		preview, err := s.Preview(ctx)
		if f.deploy.nodes.json {
			return errors.Join(err, ui.JSON(a.stdout, newShipPlan(plan, preview)))
		}
		return errors.Join(err, plan.Print(a.stdout, f.verbose), preview.Print(a.stdout),
			report.PrintHints(a.stdout, preview.Excluded(), f.deploy.nodes.nameInventory))
	}
	for _, line := range plan.Lines() {
		a.reporter.Note("%s", line)
	}
	done, err := s.Run(ctx)
	return errors.Join(err, printReport(a, f.deploy.nodes, done))
}

// open opens what builds the wheels.
func (f shipFlags) open(
	ctx context.Context, a *app, network pipeline.Network, r wheel.Request,
) (*buildTools, ship.Options, error) {
	opt := planner.Options{DryRun: f.deploy.change.dryRun}
	return f.build.openShip(ctx, a, network, opt, f.request.source, r)
}
