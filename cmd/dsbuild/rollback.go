package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/verify"
)

// rollbackFlags are the flags of dsbuild rollback.
type rollbackFlags struct {
	nodes  nodeFlags
	change changeFlags
	run    string
}

// The help of flags that mean less without transfers.
const (
	rollbackTimeoutUsage = "`DURATION` Timeout per node for each step: rollback and verification (default 15m each)"
	rollbackPolicyUsage  = "`FILE` Restore only versions that satisfy this signing policy (default: policy in INVENTORY)"
)

func newRollbackCommand(a *app) *cobra.Command {
	var f rollbackFlags
	cmd := &cobra.Command{
		Use:        "rollback INVENTORY",
		SuggestFor: []string{"undo", "revert"},
		Short:      "Restore the previously deployed version",
		Long: `Restore the DeepSpeed that each node had before the latest deploy.

Only nodes that this run changed are rolled back; the others stay as they are.
A node whose DeepSpeed was changed since is rejected. Where there was none,
DeepSpeed is removed. Each node keeps one previous version, so no files are
sent, and a second rollback fails.`,
		Example: `  # Show which run would be undone, and on which nodes
  $ dsbuild rollback inventory.yaml --dry-run

  # Roll back two nodes
  $ dsbuild rollback inventory.yaml --limit 'gpu[03-04]'`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.nodes.command, f.nodes.inventory = cmd.CommandPath(), args[0]
			return runRollback(cmd.Context(), a, f)
		},
	}
	f.nodes.add(cmd)
	f.change.add(cmd)
	addRunFlag(cmd, &f.run)
	cmd.Flags().Lookup("timeout").Usage = rollbackTimeoutUsage
	cmd.Flags().Lookup("policy").Usage = rollbackPolicyUsage
	return cmd
}

// addRunFlag declares --run.
func addRunFlag(cmd *cobra.Command, run *string) {
	cmd.Flags().StringVar(run, "run", "", "`RUN` Undo this run (default: the latest of the nodes' last changes)")
	inGroup(cmd, groupNodes, "run")
}

func runRollback(ctx context.Context, a *app, f rollbackFlags) error {
	opt, rules, err := f.change.options(ctx, a, f.nodes, sendFlags{})
	if err != nil {
		return err
	}
	d := deploy.New(deploy.Options{Options: opt, Rules: rules, Verify: verify.LevelFiles})
	defer d.Close()
	plan, err := d.SurveyRollback(ctx, f.run)
	if done, err := f.change.endSurvey(ctx, a, f.nodes, plan, func() any { return newDeployPlan(plan, a.hints) }, err); done {
		return err
	}
	return reportOutcome(ctx, a, f.nodes, d.Apply(ctx))
}
