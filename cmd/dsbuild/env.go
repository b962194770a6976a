package main

import "github.com/spf13/cobra"

func newEnvCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "env",
		Short: "Manage complete, locked Python environments",
		Long: `Manage complete Python environments on nodes that have only a Python: torch,
DeepSpeed, extra packages and your requirements.

"env lock" resolves environment.yaml to a lockfile that lists every file, and
"env deploy" installs exactly these files on each node; nodes need no package
index. Each environment gets its own directory, nodes switch to it by renaming a
symbolic link, and the previous one is kept for "env rollback".`,
		Annotations: map[string]string{
			helpSeeAlso: `"dsbuild deploy" installs a wheel in existing environments; "dsbuild ship --env" also builds its DeepSpeed.`,
		},
	}
	cmd.AddCommand(newEnvLockCommand(a), newEnvDeployCommand(a), newEnvVerifyCommand(a), newEnvRollbackCommand(a))
	return cmd
}
