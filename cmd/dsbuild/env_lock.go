package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/environment"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/internal/scratch"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline/packages"
)

// envLockFlags are the flags of dsbuild env lock.
type envLockFlags struct {
	nodes forFlags
	files filesFlags

	file    string
	out     string
	upgrade bool
	json    bool
}

func newEnvLockCommand(a *app) *cobra.Command {
	var f envLockFlags
	cmd := &cobra.Command{
		Use:   "lock [FILE]",
		Short: "Resolve an environment to a lockfile, for each node type",
		Long: `Resolve an environment to a lockfile, for each node type.

FILE is the environment file (default environment.yaml; - for standard input,
with -o). uv resolves its requirements, and the lockfile next to it lists every
wheel with its size and SHA-256. A node type is a CPU architecture and the
oldest glibc among its nodes: list the types under nodes: in FILE, or let --for
probe an inventory. Packages without a wheel for a node type are reported.

The lockfile is left unchanged if FILE, the node types and the local wheels are
the same as before; otherwise only changed packages get new versions.`,
		Example: `  # Lock for the node types of an inventory
  $ dsbuild env lock environment.yaml --for inventory.yaml

  # Update all packages
  $ dsbuild env lock environment.yaml --upgrade`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.file = "environment.yaml"
			if len(args) > 0 {
				f.file = args[0]
			}
			return runEnvLock(cmd.Context(), a, f)
		},
	}
	f.nodes.add(cmd, "`INVENTORY` Probe the nodes of this inventory for their types")
	f.files.add(cmd)
	flags := cmd.Flags()
	flags.StringVarP(&f.out, "output", "o", "",
		"`FILE` Lockfile to write (default: the environment file's name with .lock)")
	flags.BoolVar(&f.upgrade, "upgrade", false, "Ignore the existing lockfile and pick the newest compatible versions")
	flags.BoolVar(&f.json, "json", false, "Print one JSON document")
	inGroup(cmd, groupEnv, "output", "upgrade")
	inGroup(cmd, groupOutput, "json")
	return cmd
}

func runEnvLock(ctx context.Context, a *app, f envLockFlags) error {
	if f.out == "" && f.file == "-" {
		return usagef("FILE - (standard input) requires --output")
	}
	f.out = cmp.Or(f.out, lockName(f.file))
	if err := checkOutput("--output", f.out, f.file); err != nil {
		return err
	}
	spec, err := environment.Read(f.file, a.stdin)
	if errors.Is(err, fs.ErrNotExist) {
		err = fault.WithHint(err, "create the file as in docs/environments.md#the-file")
	}
	if err != nil {
		return err
	}
	if spec.Build != nil {
		return fault.WithHint(usagef("%s: deepspeed: describes a build, not a wheel", spec.Build.At),
			"to build the wheel, lock and deploy, run: %s", fault.Command{Do: "ship", Flags: []string{"--env", f.file}})
	}
	kinds, err := f.kinds(ctx, a, spec)
	if err != nil {
		return err
	}
	l, changed, err := f.lock(ctx, a, spec, kinds)
	if err != nil {
		return err
	}
	if f.json {
		return ui.JSON(a.stdout, newEnvLock(f.out, l, changed))
	}
	var rows [][]string
	for _, s := range l.Sets {
		files, size := strconv.Itoa(len(s.Files)), ui.Size(s.Size())
		rows = append(rows, []string{s.Machine, s.Glibc, files, size, report.ShortSum(s.Digest)})
	}
	if err := ui.Table(a.stdout, []string{"MACHINE", "GLIBC", "FILES", "SIZE", "ENVIRONMENT"}, rows); err != nil {
		return err
	}
	state := "unchanged"
	if changed {
		state = "written"
	}
	_, err = fmt.Fprintf(a.stdout, "%s: %s\n", ui.Clean(f.out), state)
	return err
}

// lock resolves an environment with uv and writes its lockfile, unless it is up to date.
func (f envLockFlags) lock(
	ctx context.Context, a *app, spec *environment.Spec, kinds []environment.Platform,
) (l *environment.Lock, changed bool, err error) {
	var old *environment.Lock // none with --upgrade
	if _, err := os.Stat(f.out); !errors.Is(err, os.ErrNotExist) {
		old, err = environment.ReadLock(f.out)
		switch {
		case errors.Is(err, environment.ErrNotLock): // perhaps the user's only copy
			return nil, false, fault.WithHint(err, "choose another name with --output")
		case f.upgrade:
			old = nil
		case err != nil:
			return nil, false, fault.WithHint(err, "delete the file, or use --upgrade to ignore it")
		}
	}
	c, network, err := f.files.collector(a)
	defer func() { err = network.Error(err) }()
	if err != nil {
		return nil, false, err
	}
	tmp, err := scratch.New("")
	if err != nil {
		return nil, false, err
	}
	defer tmp.Close()
	r, err := packages.NewResolver(ctx, network, c, tmp.Path, os.Environ())
	if err != nil {
		return nil, false, err
	}
	if l, err = r.Resolve(ctx, spec, kinds, old, filepath.Dir(f.out)); err != nil {
		return nil, false, err
	}
	changed, err = l.Write(f.out)
	return l, changed, err
}

// kinds returns the node types to lock for.
func (f envLockFlags) kinds(ctx context.Context, a *app, spec *environment.Spec) ([]environment.Platform, error) {
	switch {
	case f.nodes.inventory == "" && len(spec.Platforms) == 0:
		return nil, fault.WithHint(usagef("no node types: %s has no key nodes, and --for is not set", f.file),
			"pass --for INVENTORY, or add to the file: nodes: [{glibc: 2.28}]")
	case f.nodes.inventory == "":
		return spec.Platforms, nil
	}
	opt, err := f.nodes.options(ctx, a)
	if err != nil {
		return nil, err
	}
	for i := range opt.Hosts {
		opt.Hosts[i].Python = spec.Program()
	}
	d := deploy.New(deploy.Options{Options: opt})
	defer d.Close()
	probed, err := d.Probe(ctx)
	if err != nil {
		return nil, err
	}
	var facts []node.Facts
	names := map[string][]string{} // by platform
	for _, n := range probed {
		if n.Err != nil {
			a.reporter.Warn("%s: %v; the lockfile may not cover this node", n.Name, n.Err)
			continue
		}
		facts = append(facts, n.Facts)
		names[n.Facts.Platform] = append(names[n.Facts.Platform], n.Name)
	}
	kinds := environment.PlatformsOf(facts)
	if len(kinds) == 0 {
		return nil, report.NodesError("no node could be probed for its CPU architecture and glibc")
	}
	words := lists.Map(kinds, func(k environment.Platform) string {
		return fmt.Sprintf("%s (%s)", k, ui.FoldShort(names["linux_"+k.Machine]))
	})
	a.reporter.Note("node types: %s", strings.Join(words, ", "))
	return kinds, nil
}
