package main

import (
	"bytes"
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

	"github.com/adrg/xdg"
	"github.com/docker/go-units"
	"github.com/spf13/cobra"
	"golang.org/x/time/rate"

	"github.com/dsbuild/dsbuild/deploy"
	"github.com/dsbuild/dsbuild/deploy/wheels"
	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/relay"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/fleet/report/page"
	"github.com/dsbuild/dsbuild/internal/atomicfile"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
	"github.com/dsbuild/dsbuild/verify"
)

// deployOptions are the flags of dsbuild deploy.
type deployOptions struct {
	connectOptions

	command     string // for messages about wrong usage
	inventory   string
	wheel       string
	limit       string
	forks       int
	maxFail     string
	retryFailed string
	serial      string
	inUse       string
	bwlimit     string
	relay       string
	timeout     time.Duration
	deps        string
	bundle      string
	verify      string
	reports     []string
	logs        string
	policy      string
	dryRun      bool
	force       bool
	json        bool
}

func newDeployCommand(a *app) *cobra.Command {
	var opts deployOptions
	cmd := &cobra.Command{
		Use:        "deploy INVENTORY",
		SuggestFor: []string{"install", "push", "apply", "copy"},
		Short:      "Install a wheel on every node and check that all run the same",
		Long: `Install a wheel on every node of an inventory and prove that all run the same.

dsbuild probes every node first, and refuses a node that the wheel does not fit
before it sends anything. Then it copies the wheel, installs it with the pip of the
node's own environment, changes no other package, and loads every op. If that fails
or is interrupted, dsbuild restores the node. It skips a node that already runs this
wheel. It refuses a node whose environment is used by running processes, and names
them; --in-use changes that.

A node that lacks a requirement of DeepSpeed is refused. With --deps bundle it gets
the missing packages and every companion from the wheelhouse that dsbuild wheel
--bundle made: in the same change, without a package index. With --deps index the
node's own pip fetches them first. dsbuild never changes torch and its packages.

Nodes that share one environment are changed once: the first of them installs and
verifies the wheel, then the others verify it. If one of those fails, the others keep
the wheel; dsbuild rollback removes it.`,
		Example: `  dsbuild deploy inventory.yaml
  dsbuild deploy inventory.yaml --wheel dist --limit 'gpu[01-04]' --dry-run
  dsbuild deploy inventory.yaml --serial 1,10%,100% --report fleet.json
  dsbuild deploy inventory.yaml --retry-failed fleet.json --report fleet.json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.command, opts.inventory = cmd.CommandPath(), args[0]
			return runDeploy(cmd.Context(), a, opts)
		},
	}
	addDeployFlags(cmd, &opts)
	return cmd
}

// addDeployFlags gives a command the flags of deploy.
func addDeployFlags(cmd *cobra.Command, opts *deployOptions) {
	addFleetFlags(cmd, opts)
	flags := cmd.Flags()
	flags.StringVar(&opts.wheel, "wheel", "dist", "the wheel `FILE`, or a folder from which each node gets the one that fits it")
	flags.StringVar(&opts.deps, "deps", "refuse", "what to do when requirements are missing on a node: `refuse|bundle|index` (name them, or install them from the wheelhouse or from the node's own index)")
	flags.StringVar(&opts.bundle, "bundle", "", "the wheelhouse `DIR` for --deps bundle (default: wheelhouse beside the wheel)")
	flags.StringVar(&opts.verify, "verify", "load", "what to check on each node: `load|files` (every op loads, or files and metadata alone)")
	flags.BoolVar(&opts.force, "force", false, "install also where the node already runs this wheel")
	addRetryFlag(cmd, opts)
	addBandwidthFlag(cmd, opts)
}

// addFleetFlags gives a command the flags of everything that changes nodes.
func addFleetFlags(cmd *cobra.Command, opts *deployOptions) {
	addReportFlags(cmd, opts)
	flags := cmd.Flags()
	flags.StringVar(&opts.maxFail, "max-fail", "", "start no further node once more than `N|P%` nodes have failed (P% also of a group of --serial)")
	flags.StringVar(&opts.inUse, "in-use", "refuse", "what to do with a node whose environment is used by running processes: `refuse|wait=30m|ignore`")
	flags.StringVar(&opts.policy, "policy", "", "only wheels that the policy in `FILE` accepts; each node judges before it changes anything (default: policy of the inventory)")
	flags.BoolVar(&opts.dryRun, "dry-run", false, "probe the nodes and print what would be done")
	flags.StringVar(&opts.serial, "serial", "", "change nodes in groups of `N|P%`: complete a group before the next, and stop after a group with failures; a list such as 1,10%,100% begins with a small group")
}

// addRetryFlag gives a command the flag that goes on from an earlier run of it.
func addRetryFlag(cmd *cobra.Command, opts *deployOptions) {
	cmd.Flags().StringVar(&opts.retryFailed, "retry-failed", "", "only the nodes that were not ok in `REPORT.json`, written by this command before; --report may write the same file anew")
}

// addBandwidthFlag gives a command that sends files the flags for the way that they take.
func addBandwidthFlag(cmd *cobra.Command, opts *deployOptions) {
	cmd.Flags().StringVar(&opts.bwlimit, "bwlimit", "", "send at most `SIZE` per second to all nodes together, and from each node to others: 500KB, 100MB, 1GB")
	cmd.Flags().StringVar(&opts.relay, "relay", "auto", "whether nodes pass large files on to each other: `auto|off|FANOUT` (in a chain where that is faster, never, or each to that many)")
}

// addReportFlags gives a command the flags of everything that reaches nodes and
// tells how they are.
func addReportFlags(cmd *cobra.Command, opts *deployOptions) {
	addLimitFlag(cmd, &opts.limit)
	addConnectFlags(cmd, &opts.connectOptions)
	flags := cmd.Flags()
	flags.DurationVar(&opts.timeout, "timeout", 0, "give up a node if sending, installing or verifying takes longer than `DURATION` (default 30m, 15m and 15m)")
	flags.IntVar(&opts.forks, "forks", 32, "`N` nodes at once")
	flags.StringArrayVar(&opts.reports, "report", nil, "also write the report to `FILE`: .json, .html (a page for people) or .xml (JUnit, for CI); repeatable")
	flags.StringVar(&opts.logs, "logs", "", "keep the log of every node in `DIR` (default: of failed nodes, in dsbuild/logs of the state directory)")
	flags.BoolVar(&opts.json, "json", false, "print one JSON document")
}

// runDeploy deploys as opts say. The report is printed and written also when
// nodes failed or the run was interrupted.
func runDeploy(ctx context.Context, a *app, opts deployOptions) error {
	opt, err := opts.changeOptions(ctx, a)
	if err != nil {
		return opts.handleNothingToDo(a, err)
	}
	if opt, err = opts.withWheels(ctx, opt); err != nil {
		return err
	}
	d := deploy.New(opt)
	defer tuneRuntime(len(opt.Hosts))()
	return runFleet(ctx, a, opts, d, d.Survey)
}

// withWheels adds the wheels, the wheelhouse and pip to a fleet's options.
func (o deployOptions) withWheels(ctx context.Context, opt deploy.Options) (deploy.Options, error) {
	var err error
	if opt.Wheels, err = wheels.Load(ctx, o.wheel, wheels.DefaultCache()); err != nil {
		return opt, err
	}
	if opt.Wheels, err = acceptedWheels(opt.Policy, opt.Wheels, opt.Reporter); err != nil {
		return opt, err
	}
	if deploy.Deps(o.deps) == deploy.DepsBundle {
		if opt.Bundle, err = deploy.LoadBundle(o.bundle, o.wheel); err != nil {
			return opt, err
		}
	}
	opt.Index = deploy.Deps(o.deps) == deploy.DepsIndex
	opt.Force = o.force
	opt.PipWheel = deploy.DefaultPip()
	return opt, nil
}

// changeOptions checks the flags and reads the inventory, for a command that changes nodes.
func (o deployOptions) changeOptions(ctx context.Context, a *app) (deploy.Options, error) {
	if err := oneOf(o.command, "deps", o.deps, string(deploy.DepsRefuse), string(deploy.DepsBundle), string(deploy.DepsIndex)); err != nil {
		return deploy.Options{}, err
	}
	if o.bundle != "" && o.deps != string(deploy.DepsBundle) {
		return deploy.Options{}, usageErrorf(o.command, "--bundle needs --deps bundle")
	}
	inUse, err := deploy.ParseInUse(o.inUse)
	if err != nil {
		return deploy.Options{}, usageErrorf(o.command, "--in-use %w", err)
	}
	var serial deploy.Serial
	if o.serial != "" {
		if serial, err = deploy.ParseSerial(o.serial); err != nil {
			return deploy.Options{}, usageErrorf(o.command, "--serial %w", err)
		}
	}
	bandwidth, err := parseBandwidth(o)
	if err != nil {
		return deploy.Options{}, err
	}
	passing, err := o.relayOptions(bandwidth)
	if err != nil {
		return deploy.Options{}, err
	}
	common, inv, err := o.fleetOptions(ctx, a)
	if err != nil {
		return deploy.Options{}, err
	}
	policy, err := a.readPolicy(cmp.Or(o.policy, inv.Policy))
	return deploy.Options{
		Options: common, DryRun: o.dryRun, InUse: inUse, Bandwidth: bandwidth, Relay: passing, Serial: serial, Policy: policy, Verifier: nodeVerifier(), Verify: verify.Level(o.verify),
	}, err
}

// fleetOptions checks the flags that every command on nodes has, and reads the inventory.
func (o deployOptions) fleetOptions(ctx context.Context, a *app) (fleet.Options, *inventory.Inventory, error) {
	if err := o.checkFlags(); err != nil {
		return fleet.Options{}, nil, err
	}
	tooMany, err := parseMaxFail(o)
	if err != nil {
		return fleet.Options{}, nil, err
	}
	inv, err := o.loadNodes(ctx, a)
	if err != nil {
		return fleet.Options{}, nil, err
	}
	opt := fleet.Options{
		Command: o.commandName(), By: localUser(), Logs: o.keptLogs(),
		Hosts: inv.Hosts, KnownHosts: inv.KnownHosts, Reporter: a.reporter,
		Forks: o.forks, TooMany: tooMany, Timeout: o.timeout,
	}
	err = o.addDialer(ctx, a, inv, &opt)
	return opt, inv, err
}

// commandName is the command without that of the program.
func (o deployOptions) commandName() string {
	_, name, _ := strings.Cut(o.command, " ")
	return name
}

// keptLogs says which logs are kept: of all nodes where the user says so, else of
// those that failed.
func (o deployOptions) keptLogs() fleet.Logs {
	if o.logs != "" {
		return fleet.Logs{Dir: o.logs}
	}
	return fleet.Logs{Dir: filepath.Join(xdg.StateHome, "dsbuild", "logs"), Failed: true}
}

// loadNodes reads the inventory, and keeps the nodes that --limit and --retry-failed select. An
// inventory without nodes is a *nothingError.
func (o deployOptions) loadNodes(ctx context.Context, a *app) (*inventory.Inventory, error) {
	if o.retryFailed == "" {
		return a.loadInventory(ctx, o.inventory, o.limit)
	}
	past, err := report.LoadPast(o.retryFailed, o.commandName())
	if err != nil {
		return nil, err
	}
	all, err := a.openInventory(ctx, o.inventory)
	if err != nil {
		return nil, err
	}
	inv, err := a.limitNodes(all, o.limit)
	if err != nil {
		return nil, err
	}
	again := *inv
	var remarks []string
	again.Hosts, remarks, err = past.Retry(inv.Hosts, all.Hosts)
	if err != nil {
		return nil, err
	}
	for _, r := range remarks {
		a.reporter.Note("%s", r)
	}
	if len(again.Hosts) == 0 {
		return nil, &nothingError{past.Nothing()}
	}
	return &again, nil
}

// nothingError is a run that is over before it began, for there is nothing to do.
type nothingError struct{ why string }

func (e *nothingError) Error() string { return e.why }

// handleNothingToDo is err, but where that says that there is nothing to do: then this is
// the result. Reports of before stay as they are.
func (o deployOptions) handleNothingToDo(a *app, err error) error {
	var nothing *nothingError
	switch {
	case !errors.As(err, &nothing):
		return err
	case !o.json:
		_, err = fmt.Fprintln(a.stdout, ui.Clean(nothing.why))
		return err
	case o.dryRun:
		return printFleetPlan(a, o, deploy.Plan{})
	}
	return ui.JSON(a.stdout, report.Empty(o.commandName()))
}

// runFleet surveys the nodes, applies the plan and reports the result.
func runFleet(ctx context.Context, a *app, opts deployOptions, d *deploy.Deployment, survey func(context.Context) (deploy.Plan, error)) error {
	defer d.Close()
	plan, err := survey(ctx)
	switch {
	case err != nil && ctx.Err() != nil && !opts.dryRun:
		return tell(ctx, a, opts, d.Report())
	case err != nil:
		return err
	case opts.dryRun:
		return errors.Join(plan.Err(), printFleetPlan(a, opts, plan))
	}
	return tell(ctx, a, opts, d.Apply(ctx))
}

// tell prints and writes the report. The nodes' error comes first, so that a full disk
// here does not hide it.
func tell(ctx context.Context, a *app, opts deployOptions, report *report.Report) error {
	report.EditHints(func(hint string) string { return nameInventory(hint, opts.inventory) })
	outcome := report.Err()
	if ctx.Err() != nil {
		outcome = context.Cause(ctx)
	}
	return errors.Join(outcome, printReport(a, opts, report))
}

// checkFlags checks the values of flags beyond their types.
func (o deployOptions) checkFlags() error {
	if err := o.connectOptions.checkFlags(o.command); err != nil {
		return err
	}
	if err := oneOf(o.command, "verify", o.verify, string(verify.LevelLoad), string(verify.LevelFiles)); err != nil {
		return err
	}
	switch {
	case o.via == viaSlurm && o.bwlimit != "":
		return usageErrorf(o.command, "--bwlimit does not work with --via slurm: Slurm sends the files, and has no such limit")
	case o.via == viaSlurm && o.relay != "" && o.relay != "auto" && o.relay != "off":
		return usageErrorf(o.command, "--relay %s does not work with --via slurm: Slurm passes the files on by itself", o.relay)
	case o.forks < 1:
		return usageErrorf(o.command, "--forks %d: must be 1 or more", o.forks)
	case o.timeout != 0 && o.timeout < time.Second:
		return usageErrorf(o.command, "--timeout %s: must be a duration such as 90s, 5m or 1h", o.timeout)
	}
	if o.dryRun && len(o.reports) > 0 {
		return usageErrorf(o.command, "--report does not work with --dry-run: a dry run has no report")
	}
	if err := checkReports(o.command, o.reports, func(file string) bool { return reportFormat(file) != nil }); err != nil {
		return err
	}
	if o.logs != "" {
		err := os.MkdirAll(o.logs, 0o700)
		if err == nil {
			err = checkWritable(filepath.Join(o.logs, "node.log"))
		}
		if err != nil {
			return usageErrorf(o.command, "--logs %s: %w", o.logs, err)
		}
	}
	return nil
}

// checkReports finds out before any node is touched whether reports can be written.
func checkReports(command string, reports []string, known func(file string) bool) error {
	for _, r := range reports {
		if !known(r) {
			return usageErrorf(command, "--report %s: the name must end in .json, .html or .xml", r)
		}
		if err := checkWritable(r); err != nil {
			return usageErrorf(command, "--report %s: %w", r, err)
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
func parseMaxFail(o deployOptions) (func(failed, of int) bool, error) {
	if o.maxFail == "" {
		return nil, nil
	}
	text, percent := strings.CutSuffix(o.maxFail, "%")
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || percent && n > 100 {
		return nil, usageErrorf(o.command, "--max-fail %s: must be a number of nodes, or a percentage such as 5%%", o.maxFail)
	}
	if percent {
		return func(failed, of int) bool { return failed*100 > n*of }, nil
	}
	return func(failed, _ int) bool { return failed > n }, nil
}

// relayOptions turns --relay into the settings of a relay, in which bandwidth holds for each node.
func (o deployOptions) relayOptions(bandwidth *rate.Limiter) (relay.Options, error) {
	if o.relay == "" { // the command sends no files
		return relay.Options{Off: true}, nil
	}
	opt, err := relay.ParseMode(o.relay)
	if err != nil {
		return opt, usageErrorf(o.command, "--relay %w", err)
	}
	if bandwidth != nil {
		opt.Limit = int64(bandwidth.Limit())
	}
	return opt, nil
}

// parseBandwidth turns --bwlimit into a limiter for all transfers together.
func parseBandwidth(o deployOptions) (*rate.Limiter, error) {
	if o.bwlimit == "" {
		return nil, nil
	}
	n, err := units.FromHumanSize(strings.TrimSuffix(o.bwlimit, "/s"))
	if err != nil || n < remote.LimitBurst {
		return nil, usageErrorf(o.command, "--bwlimit %s: must be bytes per second such as 500KB, 100MB or 1GB, at least 33KB", o.bwlimit)
	}
	// Nobody waits longer than a tenth of a second for the next packets.
	return rate.NewLimiter(rate.Limit(n), int(max(n/10, remote.LimitBurst))), nil
}

// planDocument is the JSON document of dsbuild deploy --dry-run --json.
type planDocument struct {
	Nodes []planEntry `json:"nodes"`
}

type planEntry struct {
	Name    string   `json:"name"`
	Action  string   `json:"action"`
	Wheel   string   `json:"wheel"`
	Along   []string `json:"along"`
	Fetch   []string `json:"fetch"`
	Reasons []string `json:"reasons"`
	Remarks []string `json:"remarks"`
	Hint    string   `json:"hint"`
	Serial  int      `json:"serial,omitempty"`
}

func printFleetPlan(a *app, opts deployOptions, plan deploy.Plan) error {
	if !opts.json {
		return errors.Join(plan.Print(a.stdout), plan.PrintHints(a.stdout))
	}
	return ui.JSON(a.stdout, newPlanDocument(plan))
}

func newPlanDocument(plan deploy.Plan) planDocument {
	doc := planDocument{Nodes: make([]planEntry, 0, len(plan.Nodes))}
	for _, n := range plan.Nodes {
		e := planEntry{n.Name, string(n.Action), "", []string{}, slices.Concat([]string{}, n.Fetch), slices.Concat([]string{}, n.Reasons), slices.Concat([]string{}, n.Remarks), n.Hint, n.Serial}
		for _, a := range n.Companions {
			e.Along = append(e.Along, a.String())
		}
		if n.Wheel != nil {
			e.Wheel = n.Wheel.Manifest.Name
		}
		doc.Nodes = append(doc.Nodes, e)
	}
	return doc
}

// printReport prints before it writes files, so that the user sees the report also where
// a file cannot be written.
func printReport(a *app, opts deployOptions, report *report.Report) error {
	var errs []error
	if opts.json {
		errs = append(errs, ui.JSON(a.stdout, report))
	} else {
		errs = append(errs, report.Print(a.stdout))
	}
	return errors.Join(append(errs, writeReports(opts, report))...)
}

// writeReports writes the report into the files that --report names.
func writeReports(opts deployOptions, r *report.Report) error {
	var errs []error
	about := report.About{Command: opts.command, Inventory: opts.inventory, By: localUser(), At: time.Now()}
	for _, file := range opts.reports {
		if err := writeReport(file, r, about); err != nil {
			errs = append(errs, fmt.Errorf("writing the report: %w", err))
		}
	}
	return errors.Join(errs...)
}

// reportFormat returns the function that writes a report in the format of the file name's ending;
// nil for any other ending.
func reportFormat(file string) func(io.Writer, *report.Report, report.About) error {
	switch filepath.Ext(file) {
	case ".json":
		return func(w io.Writer, r *report.Report, _ report.About) error { return ui.JSON(w, r) }
	case ".html":
		return page.Write
	case ".xml":
		return func(w io.Writer, r *report.Report, about report.About) error { return r.JUnit(w, about) }
	}
	return nil
}

// writeReport writes a report in the format of the file's name.
func writeReport(file string, report *report.Report, about report.About) error {
	var text bytes.Buffer
	if err := reportFormat(file)(&text, report, about); err != nil {
		return err
	}
	mode := os.FileMode(0o644)
	if filepath.Ext(file) == ".xml" && report.QuotesLogs() {
		mode = 0o600 // as the logs
	}
	return writeWhole(file, text.Bytes(), mode)
}

// writeWhole writes a file whole or not at all.
func writeWhole(file string, data []byte, mode os.FileMode) error {
	return atomicfile.Write(file, bytes.NewReader(data), mode)
}

// localUser is who deploys, for the journals on the nodes.
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
