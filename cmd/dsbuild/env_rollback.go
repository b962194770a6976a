package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/fleet/envdeploy"
	"github.com/dsbuild/dsbuild/fleet/environment"
	"github.com/dsbuild/dsbuild/fleet/verify"
)

// envRollbackFlags are the flags of dsbuild env rollback.
type envRollbackFlags struct {
	nodes  nodeFlags
	change changeFlags

	lock string
	run  string
}

func newEnvRollbackCommand(a *app) *cobra.Command {
	var f envRollbackFlags
	cmd := &cobra.Command{
		Use:   "rollback INVENTORY",
		Short: "Restore the previously deployed environment",
		Long: `Restore the environment that each node had before the latest env deploy, after
checking every file in it.

Only nodes that this run changed are rolled back; the others stay as they are.
Each node keeps one previous environment, so no files are sent, and a second
rollback fails. Only the name of the environment is read from the lockfile.`,
		Example: `  # Show which run would be undone, and on which nodes
  $ dsbuild env rollback inventory.yaml --dry-run

  # Roll back two nodes
  $ dsbuild env rollback inventory.yaml --limit 'gpu[03-04]'`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.nodes.command, f.nodes.inventory = cmd.CommandPath(), args[0]
			return runEnvRollback(cmd.Context(), a, f)
		},
	}
	f.nodes.add(cmd)
	f.change.add(cmd)
	cmd.Flags().Lookup("timeout").Usage = verifyTimeoutUsage
	cmd.Flags().Lookup("policy").Usage = rollbackPolicyUsage
	addRunFlag(cmd, &f.run)
	addLockFlag(cmd, &f.lock)
	return cmd
}

func runEnvRollback(ctx context.Context, a *app, f envRollbackFlags) error {
	lock, err := environment.ReadLock(f.lock)
	if err != nil {
		return err
	}
	opt, rules, err := f.change.options(ctx, a, f.nodes, sendFlags{})
	if err != nil {
		return err
	}
	d := envdeploy.New(envdeploy.Options{Options: opt, Rules: rules, Verify: verify.LevelFiles, Lock: lock})
	defer d.Close()
	plan, err := d.SurveyRollback(ctx, f.run)
	if done, err := f.change.endSurvey(ctx, a, f.nodes, plan, func() any { return newEnvPlan(plan, a.hints) }, err); done {
		return err
	}
	return reportOutcome(ctx, a, f.nodes, d.Apply(ctx))
}
