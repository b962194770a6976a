package main

import (
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/internal/ui"
)

func versionLine(version string) string {
	return fmt.Sprintf("dsbuild %s (%s, %s/%s)\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

func newVersionCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{Use: "version", Short: "Print the version", Args: cobra.NoArgs}
	cmd.Flags().BoolVar(&asJSON, "json", false, "Print one JSON document")
	cmd.RunE = func(*cobra.Command, []string) error {
		if !asJSON {
			_, err := io.WriteString(a.stdout, versionLine(a.version))
			return err
		}
		return ui.JSON(a.stdout, newVersionInfo(a.version))
	}
	return cmd
}
