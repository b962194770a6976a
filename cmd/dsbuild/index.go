package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/release/index"
)

// indexFlags are the flags of dsbuild index.
type indexFlags struct {
	wheels []string
	url    string
	json   bool
}

func newIndexCommand(a *app) *cobra.Command {
	var f indexFlags
	cmd := &cobra.Command{
		Use:   "index DIR",
		Short: "Generate a static package index for pip and uv",
		Long: `Generate a static package index (PEP 503, PEP 658) of wheels.

Serve DIR with any web server, or use it as file://DIR. DIR itself is the index
of complete builds, which have the release's plain version. Other builds have
indexes in subdirectories of DIR: all-ops, custom (other GPUs, CUDAs, CPUs, ops
or sources) and abi-torch (for one torch). DIR/index.json lists all wheels.

The wheels are verified first, and their sidecar files (manifest, checksums) are
copied too. Files are written atomically, and only if they changed. A published
wheel is never replaced. Files of a previous index that are no longer needed are
removed; other files in DIR stay.`,
		Example: `  # Index the wheels in dist/
  $ dsbuild index /srv/www/wheels

  # Index wheels for a web server, and install from there
  $ dsbuild index public --wheel dist --url https://wheels.example.org/
  $ pip install --no-deps --index-url https://wheels.example.org/ deepspeed`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return runIndex(cmd.Context(), a, args[0], f) },
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&f.wheels, "wheel", []string{"dist"}, "`PATH` Wheel, or directory of wheels; repeatable")
	flags.StringVar(&f.url, "url", "", "`URL` URL at which DIR will be published, for the links in index.json")
	flags.BoolVar(&f.json, "json", false, "Print one JSON document")
	return cmd
}

func runIndex(ctx context.Context, a *app, dir string, f indexFlags) error {
	if err := index.CheckDir(dir); err != nil {
		return err
	}
	if err := checkIndexURL("--url", f.url); err != nil {
		return err
	}
	for _, path := range f.wheels {
		info, err := os.Stat(path)
		if err != nil || !info.IsDir() {
			continue
		}
		if to, err := os.Stat(dir); err == nil && os.SameFile(to, info) {
			err := usagef("%s: cannot write the index to the directory of the wheels", dir)
			return fault.WithHint(err, "use another directory: dsbuild index public --wheel %s", path)
		}
	}
	files, err := wheelsOf(f.wheels)
	if err != nil {
		return err
	}
	sum, err := index.Write(ctx, index.Options{Dir: dir, URL: f.url, Wheels: files})
	if err != nil {
		return noWheel(err)
	}
	if f.json {
		return ui.JSON(a.stdout, sum)
	}
	return printIndex(a, sum)
}

// checkIndexURL rejects a URL that installers cannot use.
func checkIndexURL(flag, text string) error {
	err := index.CheckURL(text)
	if text == "" || err == nil {
		return nil
	}
	if at, bad := url.Parse(text); bad == nil {
		flag += " " + at.Redacted()
	}
	return usagef("%s: %w", flag, err)
}

func printIndex(a *app, sum index.Summary) error {
	rows := make([][]string, 0, len(sum.Indexes))
	dir := ui.Clean(relativePath(sum.Dir))
	for _, page := range sum.Indexes {
		rows = append(rows, []string{path.Join(dir, page.Path), strconv.Itoa(len(page.Wheels)), page.Wheels[0].Version})
	}
	err := ui.Table(a.stdout, []string{"INDEX", "WHEELS", "NEWEST"}, rows)
	_, last := fmt.Fprintf(a.stdout, "%s: %d files written, %d removed\n", dir, sum.Written, sum.Removed)
	return errors.Join(err, last)
}
