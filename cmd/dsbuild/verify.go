package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/deploy"
)

func newVerifyCommand(a *app) *cobra.Command {
	var opts deployOptions
	cmd := &cobra.Command{
		Use:        "verify INVENTORY",
		SuggestFor: []string{"status", "diff", "compare"},
		Short:      "Say which nodes run the same, which differ, and in what",
		Long: `Say which nodes run the same, which differ, and in what. Nothing is changed or
written on any node.

What most nodes run is the norm; the odd ones are named with what they have
instead: DeepSpeed, torch, CUDA, NCCL, Python, transformers. Every file of
DeepSpeed is compared with its RECORD, with what dsbuild noted when it installed
it, and with the other nodes, also where another tool installed it. Then every op
is loaded. Driver, glibc, CPU and GPUs may differ within a job: where they do, it is
said.

With --wheel every node must run that wheel, or that of a folder which fits it.
Nodes for several wheels (two Pythons, say) need it: without, they differ.`,
		Example: `  dsbuild verify inventory.yaml
  dsbuild verify inventory.yaml --wheel dist --verify files --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.command, opts.inventory = cmd.CommandPath(), args[0]
			return runVerify(cmd.Context(), a, opts)
		},
	}
	addReportFlags(cmd, &opts)
	addRetryFlag(cmd, &opts)
	flags := cmd.Flags()
	flags.StringVar(&opts.wheel, "wheel", "", "the wheel `FILE` that every node is to run, or a folder with the one for each (default: what most nodes run)")
	flags.StringVar(&opts.verify, "verify", "load", "what to prove on each node: `load|files` (every op loads, or files and metadata alone)")
	return cmd
}

// runVerify compares nodes as opts say.
func runVerify(ctx context.Context, a *app, opts deployOptions) error {
	opts.deps, opts.inUse = string(deploy.DepsRefuse), "refuse"
	if opts.retryFailed != "" && opts.wheel == "" {
		return usageErrorf(opts.command, "--retry-failed without --wheel: what most of the odd ones run would pass for what all should")
	}
	fleet, err := opts.fleet(ctx, a)
	if err != nil {
		return opts.unless(a, err)
	}
	if opts.wheel != "" {
		if fleet.Wheels, err = deploy.LoadWheels(ctx, opts.wheel, deploy.DefaultVerified()); err != nil {
			return err
		}
	}
	defer lightly(len(fleet.Hosts))()
	report, err := deploy.Verify(ctx, fleet)
	if err != nil {
		return err
	}
	return tell(ctx, a, opts, report)
}
