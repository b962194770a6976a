package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
	"github.com/dsbuild/dsbuild/launch/check"
	"github.com/dsbuild/dsbuild/launch/jobrunner"
)

// defaultPort is the master port of jobs.
const defaultPort = 29500

// checkFlags are the flags of dsbuild check.
type checkFlags struct {
	nodes nodeFlags

	master   string
	port     int
	launcher string
	data     []string
	output   []string
	minFree  string
	skip     []string
	here     bool
}

func newCheckCommand(a *app) *cobra.Command {
	var f checkFlags
	cmd := &cobra.Command{
		Use:        "check INVENTORY",
		SuggestFor: []string{"doctor", "preflight"},
		Short:      "Check that a cluster is ready for a multi-node job",
		Long: `Check that the nodes of an inventory are ready for a multi-node job.

All nodes are probed in parallel: versions, environment variables, GPUs and
their health, the address that the master's name resolves to, the master's port,
connections between all pairs of nodes, network interfaces, disk space and
paths. Finally, all nodes run an all-reduce with torch.distributed, over Gloo
and, with GPUs, over NCCL (--launcher jax: with jax.distributed). Everything
that would make a job hang or fail is reported with the node, the cause and a
hint.

The first node is the master. Nothing is changed or left on the nodes.

With --here only the machine itself is checked, within 20 seconds and without
the checks that need other nodes: for Slurm's prolog or a Kubernetes init
container. If the machine is ready, one line is printed.`,
		Annotations: map[string]string{
			helpSeeAlso: `"dsbuild verify" compares the DeepSpeed installations of the nodes; "dsbuild launch lint" checks launch scripts.`,
		},
		Example: `  # Check the nodes, and the dataset and output directory of a job
  $ dsbuild check inventory.yaml
  $ dsbuild check inventory.yaml --data /data/wikitext --output /shared/out

  # Check the nodes of a Slurm partition, with GPUs
  $ dsbuild check slurm:gpu --via slurm --salloc=--gres=gpu:8

  # Check the machine itself, with the environment of its jobs
  $ dsbuild check --here --python /opt/env/bin/python`,
		Args: func(cmd *cobra.Command, args []string) error {
			if f.here {
				return cobra.NoArgs(cmd, args)
			}
			return cobra.ExactArgs(1)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.here {
				return runCheckHere(cmd.Context(), a, f)
			}
			f.nodes.command, f.nodes.inventory = cmd.CommandPath(), args[0]
			return runCheck(cmd.Context(), a, f)
		},
	}
	f.nodes.addWithoutLogs(cmd)
	flags := cmd.Flags()
	flags.Lookup("report").Usage = "`FILE` Also write a report (.json); repeatable"
	flags.StringVar(&f.master, "master", "",
		"`ADDRESS` Master address, as the other nodes reach it (default: from the inventory)")
	flags.IntVar(&f.port, "port", defaultPort, "`PORT` Master port of the job")
	choiceVar(flags, &f.launcher, "launcher", "torchrun", []string{"torchrun", "jax"},
		"Launcher of the job: check collectives with torch.distributed or jax.distributed")
	flags.StringArrayVar(&f.data, "data", nil, "`PATH` Path whose content must be the same on every node; repeatable")
	flags.StringArrayVar(&f.output, "output", nil, "`DIR` Directory that every node must be able to write to; repeatable")
	flags.StringVar(&f.minFree, "min-free", "1GB",
		"`SIZE` Free space required in the environment, TMPDIR, /dev/shm and each --output")
	flags.StringArrayVar(&f.skip, "skip", nil, "`CHECK` Skip a check: "+strings.Join(checkNames(), ", ")+"; repeatable")
	parsedVar(flags, &f.nodes.timeout, "timeout", "", "duration", atLeastSecond,
		"`DURATION` Timeout of each step of a collective (default 2m)")
	flags.BoolVar(&f.here, "here", false, "Check only the machine itself, without an inventory")
	for _, other := range []string{"limit", "forks", "via", "ssh", "user", "report", "master", "port", "launcher", "timeout"} {
		flagsExclude(cmd, other, "here", "it is about the nodes of an inventory")
	}
	inGroup(cmd, groupChecks, "here", "master", "port", "launcher", "data", "output", "min-free", "skip", "timeout")
	return cmd
}

// checkNames returns the values of --skip.
func checkNames() []string {
	return lists.Map(check.Skippable(), func(kind check.Check) string { return string(kind) })
}

func runCheck(ctx context.Context, a *app, f checkFlags) error {
	opt, err := f.options(ctx, a)
	if err != nil {
		return err
	}
	return reportOutcome(ctx, a, f.nodes, check.Run(ctx, opt))
}

// runCheckHere checks the machine itself.
func runCheckHere(ctx context.Context, a *app, f checkFlags) error {
	opt, err := f.checked()
	if err != nil {
		return err
	}
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	opt.Here, opt.Skip = true, append(opt.Skip, check.SkippedHere()...)
	opt.Options = fleet.Options{
		Command: "check", By: localUser(), Reporter: ui.New(io.Discard, ui.Options{}), Dialer: check.HereDialer{Runner: jobrunner.Local{}},
		Hosts: []inventory.Host{{Name: name, Node: name, Address: name, Python: f.nodes.connect.unset.python}},
	}
	limited, cancel := context.WithTimeout(ctx, check.HereTimeout)
	defer cancel()
	r := check.Run(limited, opt)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	r.EditHints(a.hints.expand)
	line, err := r.Line()
	if f.nodes.json {
		return errors.Join(err, printReport(a, f.nodes, r))
	}
	for _, c := range r.Causes {
		if c.Level == check.Warning {
			fmt.Fprintln(a.stderr, ui.Clean(c.String()))
		}
	}
	if err == nil {
		_, err = fmt.Fprintln(a.stdout, line)
	}
	return err
}

// options checks the flags and reads the inventory.
func (f checkFlags) options(ctx context.Context, a *app) (check.Options, error) {
	opt, err := f.checked()
	if err != nil {
		return opt, err
	}
	var inv *inventory.Inventory
	if opt.Options, inv, err = f.nodes.options(ctx, a); err != nil {
		return opt, err
	}
	opt.Logs, opt.Timeout = fleet.Logs{}, 0 // a check keeps no logs, and its --timeout limits a step
	seen := map[string]string{}
	for _, h := range inv.Hosts {
		if other, twice := seen[h.Node]; twice {
			return opt, fault.WithHint(usagef("%s and %s are the same node", other, h.Name), "select one with --limit")
		}
		seen[h.Node] = h.Name
	}
	return opt, nil
}

// checked checks the values of the flags that only this command has.
func (f checkFlags) checked() (check.Options, error) {
	opt := check.Options{
		Master: f.master, Port: f.port, JAX: f.launcher == "jax", Data: f.data, Output: f.output,
		StageTimeout: f.nodes.timeout,
	}
	var err error
	if opt.Tables, err = compat.NewTables(); err != nil {
		return opt, err
	}
	opt.MinFree, err = units.FromHumanSize(f.minFree)
	switch {
	case err != nil || opt.MinFree < 0:
		return opt, usagef("invalid value %q for --min-free: want a size such as 500MB or 10GB", f.minFree)
	case f.port < 1024 || f.port > 65535:
		return opt, usagef("invalid value \"%d\" for --port: want a number from 1024 to 65535", f.port)
	case strings.ContainsAny(f.master, " \t\n/@") || strings.HasPrefix(f.master, "-"):
		return opt, usagef("invalid value %q for --master: want a host name or an IP address without a port", f.master)
	}
	for _, flag := range []struct {
		name  string
		paths []string
	}{{"data", f.data}, {"output", f.output}} {
		for _, p := range flag.paths {
			if !strings.HasPrefix(p, "/") && !strings.HasPrefix(p, "~/") {
				return opt, usagef("invalid value %q for --%s: want a path on the nodes that begins with / or ~/", p, flag.name)
			}
		}
	}
	for _, name := range f.skip {
		if err := oneOf("skip", name, checkNames()...); err != nil {
			return opt, err
		}
		opt.Skip = append(opt.Skip, check.Check(name))
	}
	for _, file := range f.nodes.reports {
		if filepath.Ext(file) != ".json" {
			return opt, usagef("invalid value %q for --report: want a name that ends in .json", file)
		}
	}
	return opt, nil
}
