package main

import (
	"context"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/envdeploy"
	"github.com/dsbuild/dsbuild/fleet/environment"
	"github.com/dsbuild/dsbuild/fleet/verify"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline/packages"
)

// envDeployFlags are the flags of dsbuild env deploy.
type envDeployFlags struct {
	nodes  nodeFlags
	change changeFlags
	send   sendFlags
	files  filesFlags

	lock   string
	verify verify.Level
	force  bool
}

func newEnvDeployCommand(a *app) *cobra.Command {
	var f envDeployFlags
	cmd := &cobra.Command{
		Use:        "deploy INVENTORY",
		SuggestFor: []string{"install"},
		Short:      "Install a locked environment on every node",
		Long: `Install a locked environment on every node of an inventory.

All files of the lockfile are collected first, and all nodes are probed; nodes
that the lockfile does not cover are rejected before anything is sent. Each
remaining node receives the wheels that it lacks, and uv creates the new
environment there from these files only, next to the current one. Every file is
compared with its wheel, and every op and every other package with machine code
is loaded, before the node switches to the new environment by renaming a
symbolic link. If a step fails or the run is interrupted, the old environment
stays in use. Deploys are idempotent.

By default, nodes whose current environment is in use are rejected; --in-use
changes this.`,
		Annotations: map[string]string{
			helpSeeAlso: `"dsbuild env lock" writes the lockfile; "dsbuild ship --env" builds, locks and deploys.`,
		},
		Example: `  # Preview, then install the environment of environment.lock
  $ dsbuild env deploy inventory.yaml --dry-run
  $ dsbuild env deploy inventory.yaml

  # Install another environment on four nodes
  $ dsbuild env deploy inventory.yaml --lock train.lock --limit 'gpu[01-04]'`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.nodes.command, f.nodes.inventory = cmd.CommandPath(), args[0]
			return runEnvDeploy(cmd.Context(), a, f)
		},
	}
	f.nodes.add(cmd)
	f.change.add(cmd)
	f.change.addGate(cmd)
	f.send.add(cmd)
	f.files.add(cmd)
	addLockFlag(cmd, &f.lock)
	addVerifyFlag(cmd, &f.verify, "Load every op, or only compare files")
	inGroup(cmd, groupEnv, "verify")
	cmd.Flags().BoolVar(&f.force, "force", false, "Recreate the environment on nodes that already have it")
	inGroup(cmd, groupEnv, "force")
	return cmd
}

func runEnvDeploy(ctx context.Context, a *app, f envDeployFlags) error {
	opt, err := f.options(ctx, a)
	if err != nil {
		return err
	}
	d := envdeploy.New(opt)
	defer d.Close()
	plan, err := d.Survey(ctx)
	if done, err := f.change.endSurvey(ctx, a, f.nodes, plan, func() any { return newEnvPlan(plan, a.hints) }, err); done {
		return err
	}
	r := d.Apply(ctx)
	if f.gate(a, opt.Options).pass(ctx, d.Run, r) {
		r = d.Report()
	}
	return reportOutcome(ctx, a, f.nodes, r)
}

// gate returns the gate of a run.
func (f envDeployFlags) gate(a *app, opt fleet.Options) gate {
	return gate{a, f.change.gate, opt}
}

// options checks the flags, reads the lockfile, the inventory and the policy, and collects the locked files.
func (f envDeployFlags) options(ctx context.Context, a *app) (opt envdeploy.Options, err error) {
	opt.Verify = f.verify
	if opt.Lock, err = environment.ReadLock(f.lock); err != nil {
		return opt, err
	}
	if err = opt.Lock.CheckInstaller(f.lock, packages.Installer()); err != nil {
		return opt, err
	}
	if opt.Options, opt.Rules, err = f.change.options(ctx, a, f.nodes, f.send); err != nil {
		return opt, err
	}
	opt.Force = f.force
	file := strings.TrimSuffix(f.lock, filepath.Ext(f.lock)) + ".yaml"
	if spec, err := environment.Read(file, nil); err == nil && !opt.Lock.Answers(spec) {
		a.reporter.Warn("%s is out of date: %s has changed; to update the lockfile, run: dsbuild env lock %[2]s",
			ui.Clean(f.lock), ui.Clean(file))
	}
	c, network, err := f.files.collector(a)
	defer func() { err = network.Error(err) }()
	if err != nil {
		return opt, err
	}
	paths, err := c.Collect(ctx, opt.Lock, allFiles(opt.Lock))
	if err == nil {
		opt.Files, err = envdeploy.OpenFiles(ctx, opt.Lock, paths)
	}
	if err == nil {
		err = opt.Files.ReadManifests(ctx, opt.Lock, c.Sums)
	}
	return opt, err
}
