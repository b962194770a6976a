package main

import (
	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/deploy"
	"github.com/dsbuild/dsbuild/verify"
)

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
			opt, err := opts.changeOptions(cmd.Context(), a)
			if err != nil {
				return err
			}
			opt.Verify = verify.LevelFiles
			d := deploy.New(deploy.Options{Options: opt})
			defer d.Close()
			plan, err := d.SurveyRollback(cmd.Context())
			return opts.finish(cmd.Context(), a, d, survey{plan, newPlanDocument(plan), err})
		},
	}
	addChangeFlags(cmd, &opts)
	return cmd
}
