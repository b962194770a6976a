package main

import "github.com/spf13/cobra"

// newLaunchCommand groups what is about launching jobs.
func newLaunchCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "launch",
		Short: "Launch scripts: find the mistakes in them",
	}
	cmd.AddCommand(newLintCommand(a))
	return cmd
}
