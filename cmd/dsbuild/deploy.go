package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/verify"
	"github.com/dsbuild/dsbuild/wheel"
)

// deployOptions are the flags of dsbuild deploy.
type deployOptions struct {
	changeFlags

	wheel  string
	deps   string
	bundle string
	verify string
	force  bool
}

func newDeployCommand(a *app) *cobra.Command {
	var opts deployOptions
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
			opts.command, opts.inventory = cmd.CommandPath(), args[0]
			ctx := cmd.Context()
			opt, err := opts.installOptions(ctx, a)
			if err != nil {
				return err
			}
			if opt, err = opts.withWheels(ctx, opt); err != nil {
				return err
			}
			d := deploy.New(opt)
			defer d.Close()
			plan, err := d.Survey(ctx)
			return opts.finish(ctx, a, d, survey{plan, newDeployPlan(plan), err})
		},
	}
	addDeployFlags(cmd, &opts)
	return cmd
}

// addDeployFlags gives a command the flags of deploy.
func addDeployFlags(cmd *cobra.Command, opts *deployOptions) {
	addChangeFlags(cmd, &opts.changeFlags)
	flags := cmd.Flags()
	flags.StringVar(&opts.wheel, "wheel", "dist", "the wheel `FILE`, or a folder from which each node gets the one that fits it")
	flags.StringVar(&opts.deps, "deps", "refuse",
		"what to do when requirements are missing on a node: `refuse|bundle` (name them, or install them from the wheelhouse)")
	flags.StringVar(&opts.bundle, "bundle", "", "the wheelhouse `DIR` for --deps bundle (default: wheelhouse beside the wheel)")
	flags.StringVar(&opts.verify, "verify", "load", "what to check on each node: `load|files` (every op loads, or files and metadata alone)")
	flags.BoolVar(&opts.force, "force", false, "install also where the node already runs this wheel")
	addBandwidthFlag(cmd, &opts.changeFlags)
}

// withWheels adds the wheels, the wheelhouse and pip to a fleet's options.
func (o deployOptions) withWheels(ctx context.Context, opt deploy.Options) (deploy.Options, error) {
	var err error
	if opt.Wheels, err = wheel.LoadAll(ctx, o.wheel); err != nil {
		return opt, err
	}
	if deploy.Deps(o.deps) == deploy.DepsBundle {
		if opt.Bundle, err = deploy.LoadBundle(o.bundle, o.wheel); err != nil {
			return opt, err
		}
	}
	opt.Force = o.force
	opt.PipWheel = deploy.DefaultPip()
	return opt, nil
}

// installOptions is changeOptions with the flags of a command that installs.
func (o deployOptions) installOptions(ctx context.Context, a *app) (deploy.Options, error) {
	if o.deps == "index" {
		return deploy.Options{}, usagef("--deps index: pip chose versions on each node for itself; --deps bundle gives all nodes the same")
	}
	if err := oneOf("deps", o.deps, string(deploy.DepsRefuse), string(deploy.DepsBundle)); err != nil {
		return deploy.Options{}, err
	}
	if o.bundle != "" && o.deps != string(deploy.DepsBundle) {
		return deploy.Options{}, usagef("--bundle needs --deps bundle")
	}
	level, err := verifyLevel(o.verify)
	if err != nil {
		return deploy.Options{}, err
	}
	opt, rules, err := o.changeOptions(ctx, a)
	return deploy.Options{Options: opt, Rules: rules, Verify: level}, err
}

func newRollbackCommand(a *app) *cobra.Command {
	var opts changeFlags
	cmd := &cobra.Command{
		Use:   "rollback INVENTORY",
		Short: "Restore the DeepSpeed that each node had before the last deploy",
		Long: `Restore the DeepSpeed that each node had before the last deploy, or remove it
where there was none. dsbuild sends no files, because the node kept them. A node
keeps only one previous version.`,
		Example: `  dsbuild rollback inventory.yaml --limit 'gpu[03-04]'`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.command, opts.inventory = cmd.CommandPath(), args[0]
			opt, rules, err := opts.changeOptions(cmd.Context(), a)
			if err != nil {
				return err
			}
			d := deploy.New(deploy.Options{Options: opt, Rules: rules, Verify: verify.LevelFiles})
			defer d.Close()
			plan, err := d.SurveyRollback(cmd.Context())
			return opts.finish(cmd.Context(), a, d, survey{plan, newDeployPlan(plan), err})
		},
	}
	addChangeFlags(cmd, &opts)
	return cmd
}
