package main

import (
	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/fleet/verify"
	"github.com/dsbuild/dsbuild/wheel"
)

// verifyTimeoutUsage is the help of --timeout of a command that sends and installs nothing.
const verifyTimeoutUsage = "give up a node if verifying takes longer than `DURATION` (default 15m)"

func newVerifyCommand(a *app) *cobra.Command {
	var opts fleetFlags
	var must, checks string
	cmd := &cobra.Command{
		Use:   "verify INVENTORY",
		Short: "Show which nodes differ from the others, and how",
		Long: `Show which nodes differ from the others, and how. dsbuild changes and writes
nothing on the nodes.

The versions that most nodes run are expected of all: DeepSpeed, torch, CUDA,
NCCL, Python, transformers. dsbuild names each node that differs, with its
version. It compares every file of DeepSpeed with its RECORD, with dsbuild's
note on the installation, and with the other nodes, whichever tool installed it.
Then it loads every op. Driver, glibc, CPU and GPUs may differ within a job:
differences are reported.

With --wheel every node must run that wheel, or the wheel of a folder that fits
it. Nodes that need several wheels (two Pythons, say) differ without it.` + whichCheck,
		Example: `  dsbuild verify inventory.yaml
  dsbuild verify inventory.yaml --wheel dist --verify files --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.command, opts.inventory = cmd.CommandPath(), args[0]
			ctx := cmd.Context()
			level, err := verifyLevel(checks)
			if err != nil {
				return err
			}
			common, _, err := opts.fleetOptions(ctx, a)
			if err != nil {
				return err
			}
			opt := verify.Options{Options: common, Level: level}
			if must != "" {
				if opt.Wheels, err = wheel.LoadAll(ctx, must); err != nil {
					return err
				}
			}
			r, err := verify.Run(ctx, opt)
			if err != nil {
				return err
			}
			return reportOutcome(ctx, a, opts, r)
		},
	}
	addFleetFlags(cmd, &opts)
	cmd.Flags().Lookup("timeout").Usage = verifyTimeoutUsage
	flags := cmd.Flags()
	flags.StringVar(&must, "wheel", "",
		"the wheel `FILE` that every node must run, or a folder with a wheel for each node (default: what most nodes run)")
	flags.StringVar(&checks, "verify", "load", "what to check on each node: `load|files` (every op loads, or files and metadata alone)")
	return cmd
}
