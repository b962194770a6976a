package main

import "github.com/spf13/cobra"

func newEnvCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "env",
		Short: "Take nodes from a bare Python to one whole environment",
		Long: `Take nodes from a bare Python to one whole environment: torch, DeepSpeed,
companions and requirements.

environment.yaml says what is wanted, dsbuild env lock writes down every file of
it, and dsbuild env deploy gives each node the very same environment in a folder
of its own, without a package index on the nodes. A node switches to the new
environment by one rename of a link. The previous environment stays, for dsbuild
env rollback.` + whichDeploy,
	}
	cmd.AddCommand(newEnvLockCommand(a), newEnvDeployCommand(a), newEnvVerifyCommand(a), newEnvRollbackCommand(a))
	return cmd
}
