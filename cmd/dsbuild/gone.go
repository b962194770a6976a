package main

import (
	"github.com/spf13/cobra"
)

// goneCommands are the commands that this release no longer has, with what replaces each.
func goneCommands() map[string]string {
	return map[string]string{
		"policy": "the machine that runs dsbuild judges: check a policy with dsbuild verify-wheel --policy FILE WHEEL",
	}
}

// goneFlags are the flags that this release no longer has, with what replaces each.
func goneFlags() map[string]string {
	return map[string]string{
		"sarif":        "--json has the same findings, with line and column",
		"variants":     "the formats are drafts; use the index of your torch, CUDA and GPU: docs/index.md",
		"retry-failed": "run the same command again, it skips finished nodes; or name the nodes of the report with --limit",
	}
}

// goneKinds are those of dsbuild launch.
func goneKinds() map[string]string {
	return map[string]string{
		"deepspeed": "torchrun starts DeepSpeed programs: dsbuild launch torchrun --zero 2, with the same flags",
	}
}

// newGoneCommands returns hidden commands that refuse to run, and say what replaces them.
func newGoneCommands(gone map[string]string) []*cobra.Command {
	var all []*cobra.Command
	for name, replaced := range gone {
		all = append(all, &cobra.Command{
			Use: name, Short: "Say what replaces it", Hidden: true, DisableFlagParsing: true, Args: cobra.ArbitraryArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				return usageErrorf(cmd.CommandPath(), "%s: %s", name, replaced)
			},
		})
	}
	return all
}
