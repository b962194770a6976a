package main

import (
	"path/filepath"
	"strings"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/internal/each"
	"github.com/dsbuild/dsbuild/launch/check"
)

// checkOptions are the flags of dsbuild check.
type checkOptions struct {
	fleetFlags

	master   string
	port     int
	launcher string
	data     []string
	output   []string
	minFree  string
	skip     []string
}

func newCheckCommand(a *app) *cobra.Command {
	var opts checkOptions
	cmd := &cobra.Command{
		Use:   "check INVENTORY",
		Short: "Check whether the nodes are ready for a job on all of them",
		Long: `Check whether the nodes of an inventory are ready for a job that runs on all of
them. dsbuild asks all nodes at once. For everything that would make a job hang
or fail it names the node, the fault, and what to try.

It checks versions, variables, GPUs and their health, the address that the
master's name resolves to on each node, the master's port, connections from each
node to each other one, interfaces, disk space, and paths. Last, all
nodes sum numbers with torch.distributed: over gloo, and over NCCL where there
are GPUs; with --launcher jax they use jax.distributed.

The first node is the master. dsbuild changes nothing and leaves nothing on the
nodes.` + whichCheck,
		Example: `  dsbuild check inventory.yaml
  dsbuild check inventory.yaml --data /data/wikitext --output /shared/out
  dsbuild check slurm:gpu --via slurm --salloc=--gres=gpu:8 --report check.json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.command, opts.inventory = cmd.CommandPath(), args[0]
			given, err := opts.readFlags()
			if err != nil {
				return err
			}
			for _, file := range opts.reports {
				if filepath.Ext(file) != ".json" {
					return usagef("--report %s: check writes its report as .json", file)
				}
			}
			common, inv, err := opts.fleetOptions(cmd.Context(), a)
			if err != nil {
				return err
			}
			common.Logs, common.Timeout = fleet.Logs{}, 0 // a check has none, and its --timeout is that of a step
			given.Options = common
			seen := map[string]string{}
			for _, h := range inv.Hosts {
				if other, twice := seen[h.Node]; twice {
					return usagef("%s and %s are the same node: a job runs in one environment; choose with --limit", other, h.Name)
				}
				seen[h.Node] = h.Name
			}
			return reportOutcome(cmd.Context(), a, opts.fleetFlags, check.Run(cmd.Context(), given))
		},
	}
	addNodeFlags(cmd, &opts.fleetFlags)
	flags := cmd.Flags()
	flags.Lookup("report").Usage = "also write the report as JSON to `FILE`, whose name ends in .json; repeatable"
	flags.StringVar(&opts.master, "master", "", "the `ADDRESS` of the first node for the others (default: that of the inventory)")
	flags.IntVar(&opts.port, "port", 29500, "the `PORT` on which the master will listen")
	flags.StringVar(&opts.launcher, "launcher", "torchrun",
		"what will start the job: `torchrun|jax` (jax: the nodes sum with JAX)")
	flags.StringArrayVar(&opts.data, "data", nil, "a `PATH` that must have the same content on every node; repeatable")
	flags.StringArrayVar(&opts.output, "output", nil, "a `FOLDER` that every node must be able to write to; repeatable")
	flags.StringVar(&opts.minFree, "min-free", "1GB", "free space needed in the environment, TMPDIR, /dev/shm and each --output, as `SIZE`")
	flags.StringArrayVar(&opts.skip, "skip", nil, "leave a `CHECK` out: "+strings.Join(checkNames(), ", ")+"; repeatable")
	flags.DurationVar(&opts.timeout, "timeout", 0, "time limit of each step of a collective, as `DURATION` (default 2m)")
	return cmd
}

// checkNames returns the values of --skip.
func checkNames() []string {
	return each.Map(check.Skippable(), func(kind check.Kind) string { return string(kind) })
}

// readFlags checks the values of flags beyond their types.
func (o checkOptions) readFlags() (check.Options, error) {
	if err := oneOf("launcher", o.launcher, "torchrun", "jax"); err != nil {
		return check.Options{}, err
	}
	given := check.Options{
		Master: o.master, Port: o.port, JAX: o.launcher == "jax",
		Data: o.data, Output: o.output, StageTimeout: o.timeout,
	}
	free, err := units.FromHumanSize(o.minFree)
	switch {
	case err != nil || free < 0:
		return given, usagef("--min-free %s: must be a size such as 500MB or 10GB", o.minFree)
	case o.port < 1024 || o.port > 65535:
		return given, usagef("--port %d: must be from 1024 to 65535", o.port)
	case strings.ContainsAny(o.master, " \t\n/@") || strings.HasPrefix(o.master, "-"):
		return given, usagef("--master %q: must be a name or an address, without a port", o.master)
	}
	given.MinFree = free
	for _, flag := range []struct {
		name  string
		paths []string
	}{{"data", o.data}, {"output", o.output}} {
		for _, p := range flag.paths {
			if !strings.HasPrefix(p, "/") && !strings.HasPrefix(p, "~/") {
				return given, usagef("--%s %s: must be a path on the nodes that begins with / or ~/", flag.name, p)
			}
		}
	}
	for _, name := range o.skip {
		if err := oneOf("skip", name, checkNames()...); err != nil {
			return given, err
		}
		given.Skip = append(given.Skip, check.Kind(name))
	}
	return given, nil
}
