package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/fleet/verify"
	"github.com/dsbuild/dsbuild/wheel"
)

// verifyFlags are the flags of dsbuild verify.
type verifyFlags struct {
	nodes nodeFlags

	wheel  string
	verify string
}

// verifyTimeoutUsage is the help of --timeout of a command that sends and installs nothing.
const verifyTimeoutUsage = "give up a node if verifying takes longer than `DURATION` (default 15m)"

func newVerifyCommand(a *app) *cobra.Command {
	var f verifyFlags
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
			f.nodes.command, f.nodes.inventory = cmd.CommandPath(), args[0]
			return runVerify(cmd.Context(), a, f)
		},
	}
	f.nodes.add(cmd)
	cmd.Flags().Lookup("timeout").Usage = verifyTimeoutUsage
	cmd.Flags().StringVar(&f.wheel, "wheel", "",
		"the wheel `FILE` that every node must run, or a folder with a wheel for each node (default: what most nodes run)")
	cmd.Flags().StringVar(&f.verify, "verify", "load",
		"what to check on each node: `load|files` (every op loads, or files and metadata alone)")
	return cmd
}

func runVerify(ctx context.Context, a *app, f verifyFlags) error {
	opt, err := f.options(ctx, a)
	if err != nil {
		return err
	}
	r, err := verify.Run(ctx, opt)
	if err != nil {
		return err
	}
	return reportOutcome(ctx, a, f.nodes, r)
}

// options checks the flags, and reads the inventory and the wheels.
func (f verifyFlags) options(ctx context.Context, a *app) (opt verify.Options, err error) {
	if opt.Level, err = verifyLevel(f.verify); err != nil {
		return opt, err
	}
	if opt.Options, _, err = f.nodes.options(ctx, a); err == nil && f.wheel != "" {
		opt.Wheels, err = wheel.LoadAll(ctx, f.wheel)
	}
	return opt, err
}
