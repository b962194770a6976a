package main

import (
	"cmp"
	"context"
	"strconv"
	"strings"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"
	"golang.org/x/time/rate"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/relay"
	"github.com/dsbuild/dsbuild/internal/remote"
)

// changeFlags are the flags shared by mutating commands.
type changeFlags struct {
	maxFail string
	serial  string
	inUse   string
	policy  string
	dryRun  bool
}

// add declares the flags; the command has those of nodeFlags.
func (f *changeFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.policy, "policy", "",
		"`FILE` Install only wheels that satisfy this signing policy (default: policy in INVENTORY)")
	flags.StringVar(&f.inUse, "in-use", "refuse", "`MODE` Environments in use: refuse, wait=30m or ignore")
	flags.StringVar(&f.serial, "serial", "",
		"`N|P%[,...]` Batch size, or a list of batch sizes; stop after a batch with failures")
	flags.StringVar(&f.maxFail, "max-fail", "",
		"`N|P%` Stop starting nodes after more than this many failures (P% of all nodes, and of each batch)")
	flags.BoolVar(&f.dryRun, "dry-run", false, "Probe the nodes and print the plan without changes")
	flagsExclude(cmd, "report", "dry-run", "a dry run has no report")
	inGroup(cmd, groupWheel, "policy")
	inGroup(cmd, groupNodes, "in-use", "serial", "max-fail", "dry-run")
}

// options checks the flags, and reads the inventory and the policy.
func (f changeFlags) options(
	ctx context.Context, a *app, nodes nodeFlags, send sendFlags,
) (opt fleet.Options, rules change.Rules, err error) {
	rules.DryRun = f.dryRun
	if rules.InUse, err = change.ParseInUse(f.inUse); err != nil {
		return opt, rules, usagef("--in-use %w", err)
	}
	if f.serial != "" {
		if rules.Serial, err = fleet.ParseSerial(f.serial); err != nil {
			return opt, rules, usagef("--serial %w", err)
		}
	}
	if rules.Bandwidth, rules.Relay, err = send.options(); err != nil {
		return opt, rules, err
	}
	tooMany, err := parseMaxFail(f.maxFail)
	if err != nil {
		return opt, rules, err
	}
	opt, inv, err := nodes.options(ctx, a)
	if err != nil {
		return opt, rules, err
	}
	opt.MaxFailures = tooMany
	rules.Policy, err = a.readPolicy(cmp.Or(f.policy, inv.Policy))
	return opt, rules, err
}

// parseMaxFail parses --max-fail into a predicate for fleet.Options.
func parseMaxFail(flag string) (func(failed, of int) bool, error) {
	if flag == "" {
		return nil, nil
	}
	text, percent := strings.CutSuffix(flag, "%")
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || percent && n > 100 {
		return nil, usagef("invalid value %q for --max-fail: want a number of nodes, or a percentage such as 5%%", flag)
	}
	if percent {
		return func(failed, of int) bool { return failed*100 > n*of }, nil
	}
	return func(failed, _ int) bool { return failed > n }, nil
}

// sendFlags are the flags shared by commands that send files to nodes.
type sendFlags struct {
	bwlimit string
	relay   string
}

// add declares the flags.
func (f *sendFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.bwlimit, "bwlimit", "",
		"`RATE` Bytes per second sent to all nodes together, and by each relaying node: 500KB, 100MB, 1GB")
	cmd.Flags().StringVar(&f.relay, "relay", "auto",
		"`auto|off|N` Relay large files between nodes: when faster, never, or with fan-out N")
	inGroup(cmd, groupTransfer, "bwlimit", "relay")
}

// options returns the bandwidth limit and the relay options. A command without the flags sends no files.
func (f sendFlags) options() (limit *rate.Limiter, way relay.Options, err error) {
	if limit, err = parseBandwidth(f.bwlimit); err != nil || f.relay == "" {
		return limit, relay.Options{Off: true}, err
	}
	if way, err = relay.ParseMode(f.relay); err != nil {
		return limit, way, usagef("--relay %w", err)
	}
	if limit != nil {
		way.Limit = int64(limit.Limit()) // it holds for each node
	}
	return limit, way, nil
}

// parseBandwidth turns --bwlimit into a limiter for all transfers together.
func parseBandwidth(flag string) (*rate.Limiter, error) {
	if flag == "" {
		return nil, nil
	}
	n, err := units.FromHumanSize(strings.TrimSuffix(flag, "/s"))
	if err != nil || n < remote.LimitBurst {
		return nil, usagef("invalid value %q for --bwlimit: want bytes per second such as 500KB, 100MB or 1GB, at least 33KB", flag)
	}
	// No transfer waits longer than a tenth of a second for its next packets.
	return rate.NewLimiter(rate.Limit(n), int(max(n/10, remote.LimitBurst))), nil
}
