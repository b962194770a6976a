package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/wheel"
)

// deployFlags are the flags of dsbuild deploy.
type deployFlags struct {
	nodes  nodeFlags
	change changeFlags
	send   sendFlags

	wheel  string
	deps   string
	bundle string
	verify string
	force  bool
}

func newDeployCommand(a *app) *cobra.Command {
	var f deployFlags
	cmd := &cobra.Command{
		Use:   "deploy INVENTORY",
		Short: "Install a wheel on every node and check that all run the same",
		Long: `Install a wheel on every node of an inventory and prove that all run the same.

dsbuild probes every node first, and refuses a node that the wheel does not fit
before it sends anything. Then it copies the wheel, installs it with the pip of
the node's own environment, changes no other package, and loads every op. If
that fails or is interrupted, dsbuild restores the node. It skips a node that
already runs this wheel. It refuses a node whose environment is used by running
processes, and names them; --in-use changes that. Nodes that share one
environment are changed once.

A node that lacks a requirement of DeepSpeed is refused. With --deps bundle it
gets the missing packages from the wheelhouse that dsbuild wheel --bundle made,
without a package index. dsbuild never changes torch and its packages.` + whichDeploy,
		Example: `  dsbuild deploy inventory.yaml
  dsbuild deploy inventory.yaml --wheel dist --limit 'gpu[01-04]' --dry-run
  dsbuild deploy inventory.yaml --serial 1,10%,100% --report fleet.json`,
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
	f.nodes.add(cmd)
	f.change.add(cmd)
	f.send.add(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.wheel, "wheel", "dist",
		"the wheel `FILE`, or a folder from which each node gets the one that fits it")
	flags.StringVar(&f.deps, "deps", string(deploy.DepsRefuse),
		"what to do when requirements are missing on a node: `refuse|bundle` "+
			"(name them, or install them from the wheelhouse)")
	flags.StringVar(&f.bundle, "bundle", "",
		"the wheelhouse `DIR` for --deps bundle (default: wheelhouse beside the wheel)")
	flags.StringVar(&f.verify, "verify", "load",
		"what to check on each node: `load|files` (every op loads, or files and metadata alone)")
	flags.BoolVar(&f.force, "force", false, "install also where the node already runs this wheel")
}

func runDeploy(ctx context.Context, a *app, f deployFlags) error {
	opt, err := f.optionsWithWheels(ctx, a)
	if err != nil {
		return err
	}
	d := deploy.New(opt)
	defer d.Close()
	plan, err := d.Survey(ctx)
	if done, err := f.change.endSurvey(ctx, a, f.nodes, plan, newDeployPlan(plan), err); done {
		return err
	}
	return reportOutcome(ctx, a, f.nodes, d.Apply(ctx))
}

// options checks the flags, and reads the inventory and the policy. It reads no wheels: ship builds them.
func (f deployFlags) options(ctx context.Context, a *app) (opt deploy.Options, err error) {
	if f.deps == "index" {
		return opt, usagef("--deps index: pip chose versions on each node for itself; --deps bundle gives all nodes the same")
	}
	if err := oneOf("deps", f.deps, string(deploy.DepsRefuse), string(deploy.DepsBundle)); err != nil {
		return opt, err
	}
	if f.bundle != "" && f.deps != string(deploy.DepsBundle) {
		return opt, usagef("--bundle needs --deps bundle")
	}
	if opt.Verify, err = verifyLevel(f.verify); err != nil {
		return opt, err
	}
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
	if opt.Wheels, err = wheel.LoadAll(ctx, f.wheel); err == nil && f.deps == string(deploy.DepsBundle) {
		opt.Bundle, err = deploy.LoadBundle(f.bundle, f.wheel)
	}
	return opt, err
}
