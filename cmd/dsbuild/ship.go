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

// shipFlags are the flags of ship, which include those for builds and deploys.
type shipFlags struct {
	request requestFlags
	build   buildFlags
	network networkFlags
	deploy  deployFlags // without --wheel and --bundle

	verifyGiven    bool // --verify was said
	env            string
	lock           string
	allowOpRemoval bool
}

func newShipCommand(a *app) *cobra.Command {
	var f shipFlags
	cmd := &cobra.Command{
		Use:   "ship INVENTORY",
		Short: "Build the wheels a cluster needs and deploy them",
		Long: `Build the wheels that the nodes of an inventory need, and deploy them.

All nodes are probed first. Their Python, torch, GPUs and CPU decide the targets
of the wheels: nodes of one CPU architecture with torch 2.10 or newer share one
wheel, for every supported GPU, CUDA 12 and 13, and every CPU; nodes with an
older torch share one for each Python and torch minor version. The plan is
printed with its reasons before anything is built. Wheels in the cache are not
rebuilt, so a second run takes seconds.

Nodes are then updated as by dsbuild deploy, and dsbuild rollback restores them.
If a build fails, its nodes stay unchanged. Nodes whose DeepSpeed has ops that
the new wheel lacks are rejected unless --allow-op-removal is given.

With --env the nodes need neither torch nor pip: the DeepSpeed described in the
environment file is built, locked with the environment, and deployed as by
dsbuild env deploy.`,
		Annotations: map[string]string{
			helpSeeAlso: `"dsbuild deploy" installs existing wheels; "dsbuild env deploy" installs complete environments on nodes that have only a Python.`,
		},
		Example: `  # Preview, then build and deploy
  $ dsbuild ship inventory.yaml --dry-run
  $ dsbuild ship inventory.yaml

  # Compile every op, for a group of nodes, and write a report
  $ dsbuild ship inventory.yaml --ops all --limit a100 --report ship.json

  # Choose ops and GPU architectures
  $ dsbuild ship inventory.yaml --arch 9.0 --ops cpu_adam,utils,fused_adam

  # Deploy a complete environment
  $ dsbuild ship inventory.yaml --env environment.yaml

  # Build DeepSpeed from a Git branch
  $ dsbuild ship inventory.yaml \
      --deepspeed git+https://github.com/deepspeedai/DeepSpeed@master`,
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
	f.deploy.change.addGate(cmd)
	f.deploy.send.add(cmd)
	flags := cmd.Flags()
	flags.Lookup("cpu").Usage += " (default: x86-64-v2, v3 and v4, the loader selects; armv8-a for aarch64; " +
		"for an older torch the oldest node's, at most x86-64-v3)"
	choiceVar(flags, &f.deploy.deps, "deps", deploy.DepsRefuse, []deploy.Deps{deploy.DepsRefuse, deploy.DepsBundle},
		"Nodes with missing requirements: reject, or collect and install them")
	addVerifyFlag(cmd, &f.deploy.verify,
		"Load every op, or only compare files and metadata; if not set, files on nodes that already run their wheel")
	flags.BoolVar(&f.deploy.force, "force", false, "Reinstall on nodes that already run their wheel")
	flags.BoolVar(&f.allowOpRemoval, "allow-op-removal", false,
		"Also install on nodes whose DeepSpeed has ops that the wheel lacks")
	flags.StringVar(&f.env, "env", "", "`FILE` Deploy this complete environment and the DeepSpeed it describes")
	flags.StringVar(&f.lock, "lock", "",
		"`FILE` Lockfile to write with --env (default: the environment file's name with .lock)")
	inGroup(cmd, groupWheel, "deps", "verify", "force", "allow-op-removal", "env", "lock")
	flagsNeed(cmd, "env", "lock")
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
	if f.deploy.deps == deploy.DepsBundle {
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
	}
	plan.EditHints(a.hints.expand)
	if f.deploy.change.dryRun {
		preview, err := s.Preview(ctx)
		if f.deploy.nodes.json {
			return errors.Join(err, ui.JSON(a.stdout, newShipPlan(plan, preview, a.hints)))
		}
		return errors.Join(err, plan.Print(a.stdout, a.show.Verbose), preview.Print(a.stdout),
			f.deploy.change.printGate(a.stdout), report.PrintHints(a.stdout, preview.Excluded(), a.hints.expand))
	}
	for _, line := range plan.Lines() {
		a.reporter.Note("%s", line)
	}
	done, err := s.Run(ctx)
	if f.deploy.gate(a, deployment.Options).pass(ctx, d.Run, done) {
		done, err = s.Outcome(ctx)
	}
	return errors.Join(err, printReport(a, f.deploy.nodes, done))
}

// open opens what builds the wheels.
func (f shipFlags) open(
	ctx context.Context, a *app, network pipeline.Network, r wheel.Request,
) (*buildTools, ship.Options, error) {
	opt := planner.Options{DryRun: f.deploy.change.dryRun}
	return f.build.openShip(ctx, a, network, opt, f.request.source, r)
}
