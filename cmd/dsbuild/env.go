package main

import "github.com/spf13/cobra"

func newEnvCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "env",
		Short: "Manage complete, locked Python environments",
		Long: `Manage complete, locked Python environments.

An environment contains torch, DeepSpeed, extra packages and your requirements;
nodes need only a Python, and no package index. "env lock" resolves
environment.yaml to a lockfile that lists every file, and "env deploy" installs
exactly these files on each node. Each environment gets its own directory, nodes
switch to it by renaming a symbolic link, and the previous one is kept for "env
rollback".`,
		Annotations: map[string]string{
			helpSeeAlso: `"dsbuild deploy" installs a wheel in existing environments; "dsbuild ship --env" also builds its DeepSpeed.`,
		},
	}
	cmd.AddCommand(newEnvLockCommand(a), newEnvDeployCommand(a), newEnvVerifyCommand(a), newEnvRollbackCommand(a))
	return cmd
}
