package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/verify"
	"github.com/dsbuild/dsbuild/wheel"
)

// deployFlags are the flags of dsbuild deploy.
type deployFlags struct {
	nodes  nodeFlags
	change changeFlags
	send   sendFlags

	wheel  string
	deps   deploy.Deps
	bundle string
	verify verify.Level
	force  bool
}

func newDeployCommand(a *app) *cobra.Command {
	var f deployFlags
	cmd := &cobra.Command{
		Use:        "deploy INVENTORY",
		SuggestFor: []string{"install"},
		Short:      "Install wheels on every node",
		Long: `Install DeepSpeed wheels on every node of an inventory.

All nodes are probed first; incompatible nodes are rejected before anything is
sent. On each remaining node, deploy installs the wheel with the environment's
own pip, compares every file, loads every op, and rolls back if a step fails or
the run is interrupted. Deploys are idempotent: nodes that already run the wheel
are only verified. Torch and its dependencies are never changed.

By default, nodes that lack requirements or whose environment is in use are
rejected; --deps and --in-use change this. An environment that several nodes
share is updated once.`,
		Annotations: map[string]string{
			helpSeeAlso: `"dsbuild ship" builds the wheels first; "dsbuild env deploy" installs complete environments on nodes that have only a Python.`,
		},
		Example: `  # Preview, then deploy the wheels in dist/
  $ dsbuild deploy inventory.yaml --dry-run
  $ dsbuild deploy inventory.yaml

  # Roll out to 1 node, 10% and the rest; stop after a batch with failures
  $ dsbuild deploy inventory.yaml --serial 1,10%,100% --report deploy.html

  # Reach the nodes through Slurm, waiting up to 2 hours for busy ones
  $ dsbuild deploy inventory.yaml --via slurm --slurm-wait 2h`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.nodes.command, f.nodes.inventory = cmd.CommandPath(), args[0]
			return runDeploy(cmd.Context(), a, f)
		},
	}
	f.add(cmd)
	return cmd
}

// add declares the flags; dsbuild nightly sets the same ones from its file.
func (f *deployFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.wheel, "wheel", "dist", "`PATH` Wheel, or directory from which each node gets the best match")
	choiceVar(flags, &f.deps, "deps", deploy.DepsRefuse, []deploy.Deps{deploy.DepsRefuse, deploy.DepsBundle},
		"Nodes with missing requirements: reject, or install from the wheelhouse")
	flags.StringVar(&f.bundle, "bundle", "",
		"`DIR` Wheelhouse for --deps bundle, from dsbuild wheel --bundle (default: \"wheelhouse\" next to the wheel)")
	addVerifyFlag(cmd, &f.verify, "Load every op, or only compare files and metadata")
	flags.BoolVar(&f.force, "force", false, "Reinstall on nodes that already run the wheel")
	inGroup(cmd, groupWheel, "wheel", "deps", "bundle", "verify", "force")
	f.nodes.add(cmd)
	f.change.add(cmd)
	f.change.addGate(cmd)
	f.send.add(cmd)
}

func runDeploy(ctx context.Context, a *app, f deployFlags) error {
	opt, err := f.optionsWithWheels(ctx, a)
	if err != nil {
		return err
	}
	d := deploy.New(opt)
	defer d.Close()
	plan, err := d.Survey(ctx)
	if done, err := f.change.endSurvey(ctx, a, f.nodes, plan, func() any { return newDeployPlan(plan, a.hints) }, err); done {
		return err
	}
	r := d.Apply(ctx)
	if f.gate(a, opt.Options).pass(ctx, d.Run, r) {
		r = d.Report()
	}
	return reportOutcome(ctx, a, f.nodes, r)
}

// gate returns the gate of a run.
func (f deployFlags) gate(a *app, opt fleet.Options) gate {
	return gate{a, f.change.gate, opt}
}

// options checks the flags, and reads the inventory and the policy. It reads no wheels: ship builds them.
func (f deployFlags) options(ctx context.Context, a *app) (opt deploy.Options, err error) {
	if f.bundle != "" && f.deps != deploy.DepsBundle {
		return opt, usagef("--bundle requires --deps bundle")
	}
	opt.Verify = f.verify
	opt.Options, opt.Rules, err = f.change.options(ctx, a, f.nodes, f.send)
	opt.Force, opt.PipWheel = f.force, deploy.DefaultPip()
	return opt, err
}

// optionsWithWheels also reads the wheels, and the wheelhouse.
func (f deployFlags) optionsWithWheels(ctx context.Context, a *app) (deploy.Options, error) {
	opt, err := f.options(ctx, a)
	if err != nil {
		return opt, err
	}
	if opt.Wheels, err = wheel.LoadAll(ctx, f.wheel); err == nil && f.deps == deploy.DepsBundle {
		opt.Bundle, err = deploy.LoadBundle(ctx, f.bundle, f.wheel)
	}
	return opt, err
}
