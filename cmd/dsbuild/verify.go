package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/fleet/verify"
	"github.com/dsbuild/dsbuild/wheel"
)

// verifyFlags are the flags of dsbuild verify.
type verifyFlags struct {
	nodes nodeFlags

	wheel  string
	policy string
	verify verify.Level
}

// verifyTimeoutUsage is the help of --timeout of a command that sends and installs nothing.
const verifyTimeoutUsage = "`DURATION` Timeout per node (default 15m)"

func newVerifyCommand(a *app) *cobra.Command {
	var f verifyFlags
	cmd := &cobra.Command{
		Use:        "verify INVENTORY",
		SuggestFor: []string{"status", "diff"},
		Short:      "Report nodes that have drifted",
		Long: `Report nodes that have drifted from the others, and how they differ.

All nodes should run what most nodes run: the same build of DeepSpeed, named by
the sha256 of its wheel, and the same versions of torch, CUDA, NCCL, Python and
transformers. Every file of DeepSpeed, whichever tool installed it, is compared
with its RECORD, dsbuild's installation record and the other nodes; then every
op is loaded. Different drivers, glibc versions, CPUs and GPUs are listed but
allowed. Nothing is changed on the nodes.

With --wheel, each node must run the given wheel or, from a directory, its best
match, the newest of several builds. Use --wheel if the nodes need different
wheels, for example for two Python versions. With --policy, these wheels must
also satisfy the signing policy.`,
		Annotations: map[string]string{
			helpSeeAlso: `"dsbuild check" tests whether the nodes are ready for a job; "dsbuild verify-wheel" checks wheel files.`,
		},
		Example: `  # Compare the nodes with each other
  $ dsbuild verify inventory.yaml

  # Compare them with the wheels in dist/, without loading ops
  $ dsbuild verify inventory.yaml --wheel dist --verify files --json

  # Run every op on the nodes' GPUs and CPUs, and compare it with torch
  $ dsbuild verify inventory.yaml --verify compute`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.nodes.command, f.nodes.inventory = cmd.CommandPath(), args[0]
			return runVerify(cmd.Context(), a, f)
		},
	}
	f.nodes.add(cmd)
	cmd.Flags().Lookup("timeout").Usage = verifyTimeoutUsage
	cmd.Flags().StringVar(&f.wheel, "wheel", "",
		"`PATH` Expected wheel, or directory with a wheel for each node (default: what most nodes run)")
	cmd.Flags().StringVar(&f.policy, "policy", "", "`FILE` Signing policy that the wheels of --wheel must satisfy")
	addVerifyFlag(cmd, &f.verify, "Load every op, only compare files and metadata, or also compare what every op computes with torch",
		verify.LevelCompute)
	inGroup(cmd, groupWheel, "wheel", "policy", "verify")
	flagsNeed(cmd, "wheel", "policy")
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
	opt.Level = f.verify
	if opt.Options, _, err = f.nodes.options(ctx, a); err != nil || f.wheel == "" {
		return opt, err
	}
	policy, err := a.readPolicy(f.policy)
	if err == nil {
		opt.Wheels, err = wheel.LoadAll(ctx, f.wheel)
	}
	if policy == nil || err != nil {
		return opt, err
	}
	for _, w := range opt.Wheels {
		if _, err := policy.Accept(w.Path, w.Manifest.SHA256, time.Now()); err != nil {
			return opt, fmt.Errorf("%s: %w", w.Path, err)
		}
	}
	return opt, nil
}
