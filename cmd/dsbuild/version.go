package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/internal/ui"
)

func versionLine(version string) string {
	return fmt.Sprintf("dsbuild %s (%s, %s/%s)\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

func newVersionCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{Use: "version", Short: "Print the version of dsbuild", Args: cobra.NoArgs}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	cmd.RunE = func(*cobra.Command, []string) error {
		if !asJSON {
			_, err := io.WriteString(a.stdout, versionLine(a.version))
			return err
		}
		doc := map[string]string{"version": a.version, "commit": "", "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH}
		if info, ok := debug.ReadBuildInfo(); ok {
			for _, s := range info.Settings {
				if s.Key == "vcs.revision" {
					doc["commit"] = s.Value
				}
			}
		}
		return ui.JSON(a.stdout, doc)
	}
	return cmd
}
