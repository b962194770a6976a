package main

import (
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/dsbuild/dsbuild/internal/hint"
)

// newManCommand makes a hidden command for packagers of dsbuild.
func newManCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR",
		Short:  "Write the manual pages of all commands into a folder",
		Args:   cobra.ExactArgs(1),
		Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			return runMan(cmd.Root(), a.version, args[0])
		},
	}
}

// runMan writes the pages, with the date of SOURCE_DATE_EPOCH if that is set.
func runMan(root *cobra.Command, version, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return hint.With(err, "name a folder that dsbuild can create")
	}
	return doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "dsbuild " + version, Manual: "dsbuild"}, dir)
}
