package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/inventory"
	"github.com/dsbuild/dsbuild/launch/check"
)

// checkOptions are the flags of dsbuild check.
type checkOptions struct {
	connectOptions

	command   string // for messages about wrong usage
	inventory string
	limit     string
	forks     int
	master    string
	port      int
	launcher  string
	data      []string
	output    []string
	minFree   string
	skip      []string
	timeout   time.Duration
	reports   []string
	json      bool
}

func newCheckCommand(a *app) *cobra.Command {
	var opts checkOptions
	cmd := &cobra.Command{
		Use:   "check INVENTORY",
		Short: "Check whether the nodes are ready for a job on all of them",
		Long: `Check whether the nodes of an inventory are ready for a job that runs on all of
them. dsbuild asks all nodes at once. For everything that would make a job hang or
fail it names the node, the fault, and what to try.

It checks versions, variables, GPUs and their health, the address that the master's
name resolves to on each node, the master's port, connections from each node to each
other one, interfaces, clocks, disk space, and paths. Last, all nodes sum numbers
with torch.distributed: over gloo, and over NCCL where there are GPUs; with
--launcher jax they use jax.distributed.

The first node is the master. dsbuild changes nothing and leaves nothing on the nodes.`,
		Example: `  dsbuild check inventory.yaml
  dsbuild check inventory.yaml --data /data/wikitext --output /shared/out --launcher deepspeed
  dsbuild check slurm:gpu --via slurm --salloc=--gres=gpu:8 --report check.html`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.command, opts.inventory = cmd.CommandPath(), args[0]
			return runCheck(cmd.Context(), a, opts)
		},
	}
	addLimitFlag(cmd, &opts.limit)
	addConnectFlags(cmd, &opts.connectOptions)
	flags := cmd.Flags()
	flags.IntVar(&opts.forks, "forks", 32, "connect to `N` nodes at once")
	flags.StringVar(&opts.master, "master", "", "the `ADDRESS` of the first node for the others (default: that of the inventory)")
	flags.IntVar(&opts.port, "port", 29500, "the `PORT` on which the master will listen")
	flags.StringVar(&opts.launcher, "launcher", "torchrun", "what will start the job: `torchrun|deepspeed|jax` (deepspeed: the first node must be able to log in on the others without a password prompt; jax: the nodes sum with JAX)")
	flags.StringArrayVar(&opts.data, "data", nil, "a `PATH` that must have the same content on every node; repeatable")
	flags.StringArrayVar(&opts.output, "output", nil, "a `FOLDER` that every node must be able to write to; repeatable")
	flags.StringVar(&opts.minFree, "min-free", "1GB", "free space needed in the environment, TMPDIR, /dev/shm and each --output, as `SIZE`")
	flags.StringArrayVar(&opts.skip, "skip", nil, "leave a `CHECK` out: "+strings.Join(checkNames(), ", ")+"; repeatable")
	flags.DurationVar(&opts.timeout, "timeout", 0, "time limit of each step of a collective, as `DURATION` (default 2m)")
	flags.StringArrayVar(&opts.reports, "report", nil, "also write the report to `FILE`: .json, .html (a page for people) or .xml (JUnit, for CI); repeatable")
	flags.BoolVar(&opts.json, "json", false, "print one JSON document")
	return cmd
}

// checkNames returns the values of --skip.
func checkNames() []string {
	var names []string
	for _, kind := range check.Skippable() {
		names = append(names, string(kind))
	}
	return names
}

// runCheck checks the nodes and prints the report.
func runCheck(ctx context.Context, a *app, opts checkOptions) error {
	given, err := opts.readFlags()
	if err != nil {
		return err
	}
	inv, err := a.loadInventory(ctx, opts.inventory, opts.limit)
	if err != nil {
		return err
	}
	if err := opts.refuseSeveralEnvironments(inv.Hosts); err != nil {
		return err
	}
	if err := opts.addDialer(ctx, a, inv, &given.Options); err != nil {
		return err
	}
	given.Hosts, given.KnownHosts, given.Reporter = inv.Hosts, inv.KnownHosts, a.reporter
	result := check.Run(ctx, given)
	result.EditHints(func(hint string) string { return nameInventory(hint, opts.inventory) })
	outcome := result.Err()
	if ctx.Err() != nil {
		outcome = context.Cause(ctx)
	}
	about := report.About{Command: opts.command, Inventory: opts.inventory, By: localUser(), At: time.Now()}
	return errors.Join(outcome, checkForms(result).print(a, opts.json, opts.reports, about))
}

// readFlags checks the values of flags beyond their types.
func (o checkOptions) readFlags() (check.Options, error) {
	if err := o.connectOptions.checkFlags(o.command); err != nil {
		return check.Options{}, err
	}
	if err := oneOf(o.command, "launcher", o.launcher, "torchrun", "deepspeed", "jax"); err != nil {
		return check.Options{}, err
	}
	given := check.Options{
		Options: fleet.Options{Forks: o.forks},
		Master:  o.master, Port: o.port, SSH: o.launcher == "deepspeed", JAX: o.launcher == "jax", Data: o.data, Output: o.output, StageTimeout: o.timeout,
	}
	free, err := units.FromHumanSize(o.minFree)
	switch {
	case err != nil || free < 0:
		return given, usageErrorf(o.command, "--min-free %s: must be a size such as 500MB or 10GB", o.minFree)
	case o.forks < 1:
		return given, usageErrorf(o.command, "--forks %d: must be 1 or more", o.forks)
	case o.port < 1024 || o.port > 65535:
		return given, usageErrorf(o.command, "--port %d: must be from 1024 to 65535", o.port)
	case o.timeout != 0 && o.timeout < time.Second:
		return given, usageErrorf(o.command, "--timeout %s: must be a duration such as 90s, 5m or 1h", o.timeout)
	case strings.ContainsAny(o.master, " \t\n/@") || strings.HasPrefix(o.master, "-"):
		return given, usageErrorf(o.command, "--master %q: must be a name or an address, without a port", o.master)
	}
	given.MinFree = free
	for flag, paths := range map[string][]string{"data": o.data, "output": o.output} {
		for _, p := range paths {
			if !strings.HasPrefix(p, "/") && !strings.HasPrefix(p, "~/") {
				return given, usageErrorf(o.command, "--%s %s: must be a path on the nodes that begins with / or ~/", flag, p)
			}
		}
	}
	for _, name := range o.skip {
		if err := oneOf(o.command, "skip", name, checkNames()...); err != nil {
			return given, err
		}
		given.Skip = append(given.Skip, check.Kind(name))
	}
	return given, checkReports(o.command, o.reports)
}

// refuseSeveralEnvironments refuses nodes of which several environments are meant: a job runs in one.
func (o checkOptions) refuseSeveralEnvironments(hosts []inventory.Host) error {
	seen := map[string]string{}
	for _, h := range hosts {
		if other, twice := seen[h.Node]; twice {
			return usageErrorf(o.command, "%s and %s are the same node: a job runs in one environment; choose with --limit", other, h.Name)
		}
		seen[h.Node] = h.Name
	}
	return nil
}
