package main

import (
	"cmp"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// newManCommand makes a hidden command for packagers of dsbuild.
func newManCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR",
		Short:  "Write the manual pages of all commands to a directory",
		Args:   cobra.ExactArgs(1),
		Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return fault.WithHint(err, "specify a writable directory")
			}
			setPlainUsages(cmd.Root(), func(placeholder, usage string) string {
				return strings.TrimPrefix(placeholder+": "+usage, ": ")
			})
			for _, page := range append(allCommands(cmd.Root()), cmd.Root()) {
				for _, more := range []string{page.Annotations[helpNotes], page.Annotations[helpSeeAlso]} {
					if more != "" {
						page.Long = cmp.Or(page.Long, page.Short+".") + "\n\n" + more
					}
				}
			}
			// SOURCE_DATE_EPOCH, if set, is the date of the pages.
			header := &doc.GenManHeader{Section: "1", Source: "dsbuild " + a.version, Manual: "dsbuild"}
			return doc.GenManTree(cmd.Root(), header, args[0])
		},
	}
}
