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

// changeFlags are the flags of everything that changes nodes.
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
	flags.StringVar(&f.maxFail, "max-fail", "",
		"start no further node after more than `N|P%` nodes have failed "+
			"(P% applies to all nodes, and to each group of --serial)")
	flags.StringVar(&f.inUse, "in-use", "refuse",
		"what to do with a node whose environment is used by running processes: `refuse|wait=30m|ignore`")
	flags.StringVar(&f.policy, "policy", "",
		"only wheels that the policy in `FILE` accepts; dsbuild judges them before it asks a node "+
			"(default: policy of the inventory)")
	flags.BoolVar(&f.dryRun, "dry-run", false, "probe the nodes and print what would be done")
	flagsExclude(cmd, "report", "dry-run", "a dry run has no report")
	flags.StringVar(&f.serial, "serial", "",
		"change nodes in groups of `N|P%`: complete a group before the next, and stop after a group with failures; "+
			"a list such as 1,10%,100% begins with a small group")
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
	opt.TooMany = tooMany
	rules.Policy, err = a.readPolicy(cmp.Or(f.policy, inv.Policy))
	return opt, rules, err
}

// parseMaxFail turns --max-fail into the question that is asked after each failure.
func parseMaxFail(flag string) (func(failed, of int) bool, error) {
	if flag == "" {
		return nil, nil
	}
	text, percent := strings.CutSuffix(flag, "%")
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || percent && n > 100 {
		return nil, usagef("--max-fail %s: must be a number of nodes, or a percentage such as 5%%", flag)
	}
	if percent {
		return func(failed, of int) bool { return failed*100 > n*of }, nil
	}
	return func(failed, _ int) bool { return failed > n }, nil
}

// sendFlags are the flags of everything that sends files to nodes.
type sendFlags struct {
	bwlimit string
	relay   string
}

// add declares the flags.
func (f *sendFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.bwlimit, "bwlimit", "",
		"send at most `SIZE` per second to all nodes together, and from each node to others: 500KB, 100MB, 1GB")
	cmd.Flags().StringVar(&f.relay, "relay", "auto",
		"whether nodes pass large files on to each other: `auto|off|FANOUT` "+
			"(in a chain where that is faster, never, or each to that many)")
}

// options are the way that files take. Without the flags dsbuild sends none.
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
		return nil, usagef("--bwlimit %s: must be bytes per second such as 500KB, 100MB or 1GB, at least 33KB", flag)
	}
	// Nobody waits longer than a tenth of a second for the next packets.
	return rate.NewLimiter(rate.Limit(n), int(max(n/10, remote.LimitBurst))), nil
}
