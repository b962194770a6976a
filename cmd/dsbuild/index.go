package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/index"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/publish"
)

// indexOptions are the flags of dsbuild index.
type indexOptions struct {
	dir    string
	wheels []string
	chosen bool // --wheel was given
	url    string
	// variants asks for indexes of variants, too.
	variants bool
	json     bool
}

func newIndexCommand(a *app) *cobra.Command {
	var o indexOptions
	cmd := &cobra.Command{
		Use:   "index DIR|s3://BUCKET[/PREFIX]",
		Short: "Write a package index that pip and uv install wheels from",
		Long: `Write a static package index (PEP 503, 691, 658): files that any web server, or
the file system, serves to pip and uv. Wheels for different torches, CUDAs, GPUs
or CPUs would hide each other in one index, so each gets its own, in a folder of
DIR. DIR/index.html helps to choose, and shows the command that installs from
each.

dsbuild verifies the wheels of --wheel first, and the index holds no others. It
writes each file completely or not at all, and removes files of an earlier
index; other files in DIR stay. The files beside a wheel (manifest, checksums)
are copied too. A second run with the same wheels writes nothing.

In a bucket, the index has all wheels that lie below the prefix, and its pages
link them where they are: 'dsbuild publish' adds wheels.`,
		Example: `  dsbuild index /srv/www/wheels
  dsbuild index s3://wheels/deepspeed --url https://wheels.example.org/deepspeed/
  dsbuild index public --wheel dist --wheel old --url https://wheels.example.org/
  pip install --no-deps --index-url https://wheels.example.org/torch2.15-cu132-sm80-v3/ deepspeed`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.dir, o.chosen = args[0], cmd.Flags().Changed("wheel")
			return runIndex(cmd.Context(), a, o, cmd.CommandPath())
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&o.wheels, "wheel", []string{"dist"}, "a wheel `FILE|DIR`, or a folder of wheels; repeatable")
	f.StringVar(&o.url, "url", "", "`URL` at which DIR is published (default: the page detects it)")
	f.BoolVar(&o.variants, "variants", false,
		"experimental: also an index of variants for each torch and CUDA, among which uv chooses by GPU, driver and CPU")
	f.BoolVar(&o.json, "json", false, "print one JSON document")
	return cmd
}

// runIndex writes the index of the wheels that the flags name.
func runIndex(ctx context.Context, a *app, o indexOptions, command string) error {
	opt := index.Options{Dir: o.dir, URL: o.url, Variants: o.variants}
	if err := checkIndexURL("--url", o.url, command); err != nil {
		return err
	}
	tables, err := compat.NewTables()
	if err != nil {
		return err
	}
	opt.GPUs = gpusOf(tables)
	to, err := publish.ParseIndexTarget(o.dir)
	if err != nil {
		return err
	}
	for _, path := range o.wheels {
		wheels, err := os.Stat(path)
		if err != nil || !wheels.IsDir() {
			continue
		}
		if dir, err := os.Stat(o.dir); err == nil && os.SameFile(dir, wheels) {
			err := usageErrorf(command, "%s: the index would be written among the wheels", o.dir)
			return fault.WithHint(err, "name another folder: dsbuild index public --wheel %s", path)
		}
	}
	var sum index.Summary
	if _, _, bucket := to.Bucket(); bucket {
		sum, err = writeBucketIndex(ctx, a, o, opt, to, command)
	} else if opt.Wheels, err = wheelsOf(command, o.wheels); err == nil {
		sum, err = index.Write(ctx, opt)
	}
	if err != nil {
		return noWheel(command, err)
	}
	if o.json {
		return ui.JSON(a.stdout, sum)
	}
	return printIndex(a, sum)
}

// writeBucketIndex writes the index beside the wheels of a bucket.
func writeBucketIndex(ctx context.Context, a *app, o indexOptions, opt index.Options, to publish.Target, command string) (index.Summary, error) {
	if o.variants {
		return index.Summary{}, usageErrorf(command, "--variants does not go with %s: variants are made of wheels in a folder", o.dir)
	}
	if o.chosen {
		return index.Summary{}, usageErrorf(command, "--wheel does not go with %s: its index has the wheels that lie there; dsbuild publish adds wheels", o.dir)
	}
	store, err := publish.Objects(publish.Options{To: to})
	if err != nil {
		return index.Summary{}, err
	}
	opt.Warn = a.reporter.Warn
	sum, err := index.WriteObjects(ctx, store, opt)
	sum.Dir = o.dir
	return sum, err
}

// wheelsOf lists the wheels of files and folders.
func wheelsOf(command string, paths []string) ([]string, error) {
	var all []string
	for _, path := range paths {
		files, folder, err := wheelsAt(command, path)
		if err != nil {
			return nil, err
		}
		if info, err := os.Stat(path); err == nil && info.IsDir() && !folder {
			return nil, usageErrorf(command, "no wheel in %s", path)
		}
		all = append(all, files...)
	}
	return all, nil
}

// checkIndexURL refuses an address that installers cannot use.
func checkIndexURL(flag, text, command string) error {
	err := index.CheckURL(text)
	if text == "" || err == nil {
		return nil
	}
	if at, bad := url.Parse(text); bad == nil {
		flag += " " + at.Redacted()
	}
	return usageErrorf(command, "%s: %w", flag, err)
}

// gpusOf names the GPUs of a compute capability.
func gpusOf(tables *compat.Tables) func(string) []string {
	return func(capability string) []string {
		var names []string
		for _, g := range tables.GPUs {
			if g.Arch == capability && !slices.Contains(names, g.Name) {
				names = append(names, g.Name)
			}
		}
		return names
	}
}

func printIndex(a *app, sum index.Summary) error {
	rows := make([][]string, 0, len(sum.Indexes))
	for _, tc := range sum.Indexes {
		rows = append(rows, []string{tc.Name, strconv.Itoa(len(tc.Wheels)), tc.Wheels[0].Version})
	}
	for _, x := range sum.Variants {
		rows = append(rows, []string{x.Name, strconv.Itoa(len(x.Variants)), x.Variants[0].Version()})
	}
	err := ui.Table(a.stdout, []string{"INDEX", "WHEELS", "NEWEST"}, rows)
	dir, page := relativePath(sum.Dir), relativePath(sum.Dir)+string(os.PathSeparator)+"index.html"
	if strings.HasPrefix(sum.Dir, "s3://") {
		dir, page = sum.Dir, strings.TrimRight(sum.Dir, "/")+"/index.html"
	}
	_, last := fmt.Fprintf(a.stdout, "%s: %d files written, %d removed; %s says which index fits which node\n",
		ui.Clean(dir), sum.Written, sum.Removed, ui.Clean(page))
	return errors.Join(err, last)
}
