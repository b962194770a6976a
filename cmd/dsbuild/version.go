package main

import (
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/internal/ui"
)

func newVersionCommand(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of dsbuild",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if asJSON {
				return ui.JSON(a.stdout, versionInfo{a.version, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH})
			}
			_, err := io.WriteString(a.stdout, versionLine(a.version))
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return cmd
}

// versionInfo is the JSON document of dsbuild version --json.
type versionInfo struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// versionLine is the output of dsbuild version and dsbuild --version.
func versionLine(version string) string {
	return fmt.Sprintf("dsbuild %s (%s, %s/%s)\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
