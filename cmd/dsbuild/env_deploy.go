package main

import (
	"context"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/fleet/envdeploy"
	"github.com/dsbuild/dsbuild/fleet/environment"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// envDeployFlags are the flags of dsbuild env deploy.
type envDeployFlags struct {
	nodes  nodeFlags
	change changeFlags
	send   sendFlags
	files  filesFlags

	lock   string
	verify string
	force  bool
}

func newEnvDeployCommand(a *app) *cobra.Command {
	var f envDeployFlags
	cmd := &cobra.Command{
		Use:   "deploy INVENTORY",
		Short: "Give every node the environment of a lock",
		Long: `Give every node the environment of a lock, and prove that all have the same.

dsbuild first collects the files of the lock on this machine, then probes every
node, and refuses a node that the lock has no files for before it sends
anything. Each node gets the wheels that it lacks, and uv makes the environment
there from these files alone, beside the current one. dsbuild compares every
file with its wheel and loads every op of DeepSpeed. Then it switches by one
rename of the link current. If anything fails or is interrupted, the old
environment stays. A second run changes nothing.

It refuses a node whose current environment is used by running processes, and
names them; --in-use changes that.`,
		Example: `  dsbuild env deploy inventory.yaml
  dsbuild env deploy inventory.yaml --lock train.lock --limit 'gpu[01-04]' --dry-run`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.nodes.command, f.nodes.inventory = cmd.CommandPath(), args[0]
			return runEnvDeploy(cmd.Context(), a, f)
		},
	}
	f.nodes.add(cmd)
	f.change.add(cmd)
	f.send.add(cmd)
	f.files.add(cmd)
	addLockFlag(cmd, &f.lock)
	cmd.Flags().StringVar(&f.verify, "verify", "load",
		"what to check on each node: `load|files` (every op loads, or files alone)")
	cmd.Flags().BoolVar(&f.force, "force", false, "make the environment anew also where a node has it already")
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
	if done, err := f.change.endSurvey(ctx, a, f.nodes, plan, newEnvPlan(plan), err); done {
		return err
	}
	return reportOutcome(ctx, a, f.nodes, d.Apply(ctx))
}

// options checks the flags, reads the lock, the inventory and the policy, and collects the files of the lock.
func (f envDeployFlags) options(ctx context.Context, a *app) (opt envdeploy.Options, err error) {
	if opt.Verify, err = verifyLevel(f.verify); err != nil {
		return opt, err
	}
	if opt.Lock, err = environment.ReadLock(f.lock); err != nil {
		return opt, err
	}
	if opt.Options, opt.Rules, err = f.change.options(ctx, a, f.nodes, f.send); err != nil {
		return opt, err
	}
	opt.Force = f.force
	file := strings.TrimSuffix(f.lock, filepath.Ext(f.lock)) + ".yaml"
	if spec, err := environment.Read(file, nil); err == nil && !opt.Lock.Answers(spec) {
		a.reporter.Warn("%s has changed since %s was made, and dsbuild deploys what the lock says: "+
			"dsbuild env lock makes a new one",
			ui.Clean(file), ui.Clean(f.lock))
	}
	c, _, err := f.files.collector(a)
	if err != nil {
		return opt, err
	}
	paths, err := c.Collect(ctx, opt.Lock, allFiles(opt.Lock))
	if err == nil {
		opt.Files, err = envdeploy.OpenFiles(ctx, opt.Lock, paths)
	}
	return opt, err
}
