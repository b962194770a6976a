package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"
	"golang.org/x/time/rate"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/relay"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/fleet/verify"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
	"github.com/dsbuild/dsbuild/pipeline"
)

// fleetFlags are the flags of all commands that connect to nodes and report on them.
type fleetFlags struct {
	connectOptions

	command   string // for messages about wrong usage
	inventory string
	limit     string
	forks     int
	timeout   time.Duration
	reports   []string
	logs      string
	dryRun    bool
	json      bool
}

// changeFlags are the flags of everything that changes nodes.
type changeFlags struct {
	fleetFlags

	maxFail string
	serial  string
	inUse   string
	bwlimit string
	relay   string
	policy  string
}

// addChangeFlags gives a command the flags of everything that changes nodes.
func addChangeFlags(cmd *cobra.Command, opts *changeFlags) {
	addFleetFlags(cmd, &opts.fleetFlags)
	flags := cmd.Flags()
	flags.StringVar(&opts.maxFail, "max-fail", "",
		"start no further node after more than `N|P%` nodes have failed (P% applies to all nodes, and to each group of --serial)")
	flags.StringVar(&opts.inUse, "in-use", "refuse",
		"what to do with a node whose environment is used by running processes: `refuse|wait=30m|ignore`")
	flags.StringVar(&opts.policy, "policy", "",
		"only wheels that the policy in `FILE` accepts; dsbuild judges them before it asks a node (default: policy of the inventory)")
	flags.BoolVar(&opts.dryRun, "dry-run", false, "probe the nodes and print what would be done")
	flagsExclude(cmd, "report", "dry-run", "a dry run has no report")
	flags.StringVar(&opts.serial, "serial", "",
		"change nodes in groups of `N|P%`: complete a group before the next, and stop after a group with failures; a list such as "+
			"1,10%,100% begins with a small group")
}

// addBandwidthFlag gives a command that sends files the flags for the way that they take.
func addBandwidthFlag(cmd *cobra.Command, opts *changeFlags) {
	cmd.Flags().StringVar(&opts.bwlimit, "bwlimit", "",
		"send at most `SIZE` per second to all nodes together, and from each node to others: 500KB, 100MB, 1GB")
	cmd.Flags().StringVar(&opts.relay, "relay", "auto",
		"whether nodes pass large files on to each other: `auto|off|FANOUT` (in a chain where that is faster, never, or each to that many)")
}

// addNodeFlags gives a command the flags of all commands that connect to nodes and report on them.
func addNodeFlags(cmd *cobra.Command, opts *fleetFlags) {
	addLimitFlag(cmd, &opts.limit)
	addConnectFlags(cmd, &opts.connectOptions)
	flags := cmd.Flags()
	flags.IntVar(&opts.forks, "forks", 32, "work on `N` nodes at once")
	flags.StringArrayVar(&opts.reports, "report", nil,
		"also write the report to `FILE`: .json or .html (a page for people); repeatable")
	flags.BoolVar(&opts.json, "json", false, "print one JSON document")
}

// addFleetFlags gives a command the flags of all commands on installations.
func addFleetFlags(cmd *cobra.Command, opts *fleetFlags) {
	addNodeFlags(cmd, opts)
	flags := cmd.Flags()
	flags.DurationVar(&opts.timeout, "timeout", 0,
		"give up a node if sending, installing or verifying takes longer than `DURATION` (default 30m, 15m and 15m)")
	flags.StringVar(&opts.logs, "logs", "",
		"keep the log of every node in `DIR` (default: only of failed nodes, in ~/.local/state/dsbuild/logs)")
}

// verifyLevel is the value of --verify.
func verifyLevel(text string) (verify.Level, error) {
	return verify.Level(text), oneOf("verify", text, string(verify.LevelLoad), string(verify.LevelFiles))
}

// changeOptions checks the flags and reads the inventory, for a command that changes nodes.
func (o changeFlags) changeOptions(ctx context.Context, a *app) (fleet.Options, change.Rules, error) {
	rules, err := o.rules()
	if err != nil {
		return fleet.Options{}, rules, err
	}
	tooMany, err := parseMaxFail(o)
	if err != nil {
		return fleet.Options{}, rules, err
	}
	opt, inv, err := o.fleetOptions(ctx, a)
	if err != nil {
		return opt, rules, err
	}
	opt.TooMany = tooMany
	rules.Policy, err = a.readPolicy(cmp.Or(o.policy, inv.Policy))
	return opt, rules, err
}

// rules are the rules of the change, without the policy.
func (o changeFlags) rules() (change.Rules, error) {
	rules := change.Rules{DryRun: o.dryRun}
	var err error
	if rules.InUse, err = change.ParseInUse(o.inUse); err != nil {
		return rules, usagef("--in-use %w", err)
	}
	if o.serial != "" {
		if rules.Serial, err = fleet.ParseSerial(o.serial); err != nil {
			return rules, usagef("--serial %w", err)
		}
	}
	if rules.Bandwidth, err = parseBandwidth(o); err != nil {
		return rules, err
	}
	if o.relay == "" { // the command sends no files
		rules.Relay.Off = true
	} else if rules.Relay, err = relay.ParseMode(o.relay); err != nil {
		return rules, usagef("--relay %w", err)
	} else if rules.Bandwidth != nil {
		rules.Relay.Limit = int64(rules.Bandwidth.Limit()) // it holds for each node
	}
	return rules, nil
}

// fleetOptions checks the flags that every command on nodes has, and reads the inventory.
func (o fleetFlags) fleetOptions(ctx context.Context, a *app) (fleet.Options, *inventory.Inventory, error) {
	if err := o.checkFlags(); err != nil {
		return fleet.Options{}, nil, err
	}
	inv, err := a.loadInventory(ctx, o.inventory, o.limit)
	if err != nil {
		return fleet.Options{}, nil, err
	}
	opt := fleet.Options{
		Command: strings.TrimPrefix(o.command, "dsbuild "), By: localUser(), Logs: fleet.Logs{Dir: pipeline.DefaultLogs(), Failed: true},
		Hosts: inv.Hosts, KnownHosts: inv.KnownHosts, Reporter: a.reporter,
		Forks: o.forks, Timeout: o.timeout,
	}
	if o.logs != "" { // of all nodes, not only of the failed ones
		opt.Logs = fleet.Logs{Dir: o.logs}
	}
	err = o.addDialer(ctx, a, inv, &opt)
	return opt, inv, err
}

// deployment is a run that changes nodes.
type deployment interface {
	Apply(context.Context) *report.Report
	Report() *report.Report
	Close()
}

// survey is what a deployment has found out about the nodes.
type survey struct {
	plan interface {
		Print(io.Writer) error
		Left() []report.LeftNode
		Err() error
	}
	document any   // the JSON of the plan
	err      error // of the survey
}

// finish applies the plan of a survey and reports the result, or prints the plan for a dry run.
func (o changeFlags) finish(ctx context.Context, a *app, d deployment, s survey) error {
	switch {
	case s.err != nil && ctx.Err() != nil && !o.dryRun:
		return reportOutcome(ctx, a, o.fleetFlags, d.Report())
	case s.err != nil:
		return s.err
	case o.dryRun && o.json:
		return errors.Join(s.plan.Err(), ui.JSON(a.stdout, s.document))
	case o.dryRun:
		return errors.Join(s.plan.Err(), s.plan.Print(a.stdout), report.PrintHints(a.stdout, s.plan.Left(), o.nameInventory))
	}
	return reportOutcome(ctx, a, o.fleetFlags, d.Apply(ctx))
}

// checkFlags checks the values of flags beyond their types.
func (o fleetFlags) checkFlags() error {
	if err := o.connectOptions.checkFlags(); err != nil {
		return err
	}
	switch {
	case o.forks < 1:
		return usagef("--forks %d: must be 1 or more", o.forks)
	case o.timeout != 0 && o.timeout < time.Second:
		return usagef("--timeout %s: must be a duration such as 90s, 5m or 1h", o.timeout)
	}
	for _, r := range o.reports {
		if !slices.Contains(reportEndings(), filepath.Ext(r)) {
			return &usageError{err: fmt.Errorf("--report %s: the name must end in .json or .html", r)}
		}
		if err := checkWritable(r); err != nil {
			return usagef("--report %s: %w", r, err)
		}
	}
	if o.logs != "" {
		err := os.MkdirAll(o.logs, 0o700)
		if err == nil {
			err = checkWritable(filepath.Join(o.logs, "node.log"))
		}
		if err != nil {
			return usagef("--logs %s: %w", o.logs, err)
		}
	}
	return nil
}

// checkWritable finds out before any node is touched whether a report can be
// written; a file that is there stays as it is.
func checkWritable(file string) error {
	if info, err := os.Stat(file); err == nil && info.IsDir() {
		return errors.New("it is a folder")
	}
	probe, err := os.CreateTemp(filepath.Dir(file), ".report-*")
	var private *fs.PathError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("the folder %s does not exist", filepath.Dir(file))
	case errors.As(err, &private): // it has the name of the temporary file
		return fmt.Errorf("dsbuild cannot write into %s: %w", filepath.Dir(file), private.Err)
	case err != nil:
		return err
	}
	return errors.Join(probe.Close(), os.Remove(probe.Name()))
}

// parseMaxFail turns --max-fail into the question that is asked after each failure.
func parseMaxFail(o changeFlags) (func(failed, of int) bool, error) {
	if o.maxFail == "" {
		return nil, nil
	}
	text, percent := strings.CutSuffix(o.maxFail, "%")
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || percent && n > 100 {
		return nil, usagef("--max-fail %s: must be a number of nodes, or a percentage such as 5%%", o.maxFail)
	}
	if percent {
		return func(failed, of int) bool { return failed*100 > n*of }, nil
	}
	return func(failed, _ int) bool { return failed > n }, nil
}

// parseBandwidth turns --bwlimit into a limiter for all transfers together.
func parseBandwidth(o changeFlags) (*rate.Limiter, error) {
	if o.bwlimit == "" {
		return nil, nil
	}
	n, err := units.FromHumanSize(strings.TrimSuffix(o.bwlimit, "/s"))
	if err != nil || n < remote.LimitBurst {
		return nil, usagef("--bwlimit %s: must be bytes per second such as 500KB, 100MB or 1GB, at least 33KB", o.bwlimit)
	}
	// Nobody waits longer than a tenth of a second for the next packets.
	return rate.NewLimiter(rate.Limit(n), int(max(n/10, remote.LimitBurst))), nil
}

// localUser returns the user and this machine, for the journals on the nodes.
func localUser() string {
	name, host := "unknown", "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	return name + "@" + host
}
