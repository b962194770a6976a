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
		Short: "Write down every file of an environment, for each kind of node",
		Long: `Write down every file of an environment, for each kind of node.

FILE is the environment file (default environment.yaml; - for standard input
with -o). uv resolves its requirements. The lock beside it lists every wheel
with its size and sha256. A kind of node is a machine type (such as x86_64) with
the oldest glibc of such nodes. The key nodes of the file lists the kinds, or
--for asks the nodes of an inventory. If a package has no wheel for the Python
or the glibc of a kind, this command names the package.

If the file, the kinds and the local wheels are the same as before, the lock
stays as it is. Else only the changed packages get new versions. --upgrade takes
the newest versions that fit.`,
		Example: `  dsbuild env lock environment.yaml --for inventory.yaml
  dsbuild env lock environment.yaml --upgrade`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.file = "environment.yaml"
			if len(args) > 0 {
				f.file = args[0]
			}
			return runEnvLock(cmd.Context(), a, f)
		},
	}
	f.nodes.add(cmd, "ask the nodes of `INVENTORY` for their kinds")
	f.files.add(cmd)
	flags := cmd.Flags()
	flags.StringVarP(&f.out, "output", "o", "",
		"write the lock to `FILE` (default: the environment file's name with .lock)")
	flags.BoolVar(&f.upgrade, "upgrade", false, "take the newest versions that fit, whatever the lock has")
	flags.BoolVar(&f.json, "json", false, "print one JSON document")
	return cmd
}

func runEnvLock(ctx context.Context, a *app, f envLockFlags) error {
	if f.out == "" && f.file == "-" {
		return usagef("- needs -o: the lock of standard input has no name")
	}
	f.out = cmp.Or(f.out, lockName(f.file))
	spec, err := environment.Read(f.file, a.stdin)
	if errors.Is(err, fs.ErrNotExist) {
		err = fault.WithHint(err, "write environment.yaml (docs/environments.md#the-file)")
	}
	if err != nil {
		return err
	}
	if spec.Build != nil {
		return fault.WithHint(usagef("%s: deepspeed describes a wheel that is not built yet", spec.Build.At),
			"dsbuild ship INVENTORY --env %s builds it, locks and deploys", ui.Clean(f.file))
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

// lock resolves an environment with uv and writes its lock, unless it is the one that is there.
func (f envLockFlags) lock(
	ctx context.Context, a *app, spec *environment.Spec, kinds []environment.Platform,
) (l *environment.Lock, changed bool, err error) {
	var old *environment.Lock // none with --upgrade
	if _, err := os.Stat(f.out); !f.upgrade && !errors.Is(err, os.ErrNotExist) {
		if old, err = environment.ReadLock(f.out); err != nil {
			return nil, false, fault.WithHint(err, "remove the file, or lock with --upgrade, which does not read it")
		}
	}
	c, network, err := f.files.collector(a)
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

// kinds are the kinds of nodes to lock for.
func (f envLockFlags) kinds(ctx context.Context, a *app, spec *environment.Spec) ([]environment.Platform, error) {
	switch {
	case f.nodes.inventory == "" && len(spec.Platforms) == 0:
		return nil, fault.WithHint(usagef("no kind of node: %s has no nodes, and --for names no inventory", f.file),
			"give --for INVENTORY, or in the file: nodes: [{glibc: 2.28}]")
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
			a.reporter.Warn("%s: %v; the lock may have no files for it", n.Name, n.Err)
			continue
		}
		facts = append(facts, n.Facts)
		names[n.Facts.Platform] = append(names[n.Facts.Platform], n.Name)
	}
	kinds := environment.PlatformsOf(facts)
	if len(kinds) == 0 {
		return nil, report.NotOK("no node has told its machine and glibc")
	}
	words := lists.Map(kinds, func(k environment.Platform) string {
		return fmt.Sprintf("%s (%s)", k, ui.FoldShort(names["linux_"+k.Machine]))
	})
	a.reporter.Note("kinds of nodes: %s", strings.Join(words, ", "))
	return kinds, nil
}
