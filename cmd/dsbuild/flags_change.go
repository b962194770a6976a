package main

import (
	"cmp"
	"context"
	"errors"
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
	maxFail func(failed, of int) bool
	serial  fleet.Serial
	gate    string // a shell command, check, or "": none
	inUse   change.InUse
	policy  string
	dryRun  bool
}

// add declares the flags, in addition to nodeFlags.
func (f *changeFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.policy, "policy", "",
		"`FILE` Install only wheels that satisfy this signing policy (default: policy in INVENTORY)")
	parsedVar(flags, &f.inUse, "in-use", "refuse", "string", change.ParseInUse, "`MODE` Environments in use: refuse, wait=30m or ignore")
	parsedVar(flags, &f.serial, "serial", "", "string", fleet.ParseSerial,
		"`N|P%[,...]` Batch size, or a list of batch sizes; stop after a batch with failures")
	parsedVar(flags, &f.maxFail, "max-fail", "", "string", parseMaxFail,
		"`N|P%` Stop starting nodes after more than this many failures (P% of all nodes, and of each batch)")
	flags.BoolVar(&f.dryRun, "dry-run", false, "Probe the nodes and print the plan without changes")
	flagsExclude(cmd, "report", "dry-run", "a dry run has no report")
	inGroup(cmd, groupWheel, "policy")
	inGroup(cmd, groupNodes, "in-use", "serial", "max-fail", "dry-run")
	siteFlags(cmd, "policy", "in-use")
}

// options checks the flags, and reads the inventory and the policy.
func (f changeFlags) options(
	ctx context.Context, a *app, nodes nodeFlags, send sendFlags,
) (opt fleet.Options, rules change.Rules, err error) {
	rules.DryRun, rules.InUse, rules.Serial, rules.Gate = f.dryRun, f.inUse, f.serial, f.gate != ""
	rules.Bandwidth, rules.Relay = send.options()
	opt, inv, err := nodes.options(ctx, a)
	if err != nil {
		return opt, rules, err
	}
	opt.MaxFailures = f.maxFail
	rules.Policy, err = a.readPolicy(cmp.Or(f.policy, inv.Policy))
	return opt, rules, err
}

// parseMaxFail parses --max-fail into a predicate for fleet.Options.
func parseMaxFail(flag string) (func(failed, of int) bool, error) {
	text, percent := strings.CutSuffix(flag, "%")
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || percent && n > 100 {
		return nil, errors.New("want a number of nodes, or a percentage such as 5%")
	}
	if percent {
		return func(failed, of int) bool { return failed*100 > n*of }, nil
	}
	return func(failed, _ int) bool { return failed > n }, nil
}

// sendFlags are the flags shared by commands that send files to nodes.
type sendFlags struct {
	bwlimit *rate.Limiter
	relay   *relay.Options // nil: the command sends no files
}

// add declares the flags.
func (f *sendFlags) add(cmd *cobra.Command) {
	f.relay = &relay.Options{}
	parsedVar(cmd.Flags(), &f.bwlimit, "bwlimit", "", "string", parseBandwidth,
		"`RATE` Bandwidth limit, in total and for each relaying node: 500KB, 100MB or 1GB per second")
	parsedVar(cmd.Flags(), f.relay, "relay", "auto", "string", relay.ParseMode,
		"`auto|off|N` Relay large files between nodes: when faster, never, or with fan-out N")
	inGroup(cmd, groupTransfer, "bwlimit", "relay")
	siteFlags(cmd, "bwlimit", "relay")
}

// options returns the bandwidth limit and the relay options. A command without the flags sends no files.
func (f sendFlags) options() (*rate.Limiter, relay.Options) {
	if f.relay == nil {
		return nil, relay.Options{Off: true}
	}
	way := *f.relay
	if f.bwlimit != nil {
		way.Limit = int64(f.bwlimit.Limit()) // it applies to each node
	}
	return f.bwlimit, way
}

// parseBandwidth turns --bwlimit into a limiter for all transfers together.
func parseBandwidth(flag string) (*rate.Limiter, error) {
	n, err := units.FromHumanSize(strings.TrimSuffix(flag, "/s"))
	if err != nil || n < remote.LimitBurst {
		return nil, errors.New("want bytes per second such as 500KB, 100MB or 1GB, at least 33KB")
	}
	// No transfer waits longer than a tenth of a second for its next packets.
	return rate.NewLimiter(rate.Limit(n), int(max(n/10, remote.LimitBurst))), nil
}
