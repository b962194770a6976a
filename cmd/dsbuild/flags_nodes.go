package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/verify"
	"github.com/dsbuild/dsbuild/inventory"
	"github.com/dsbuild/dsbuild/pipeline"
)

// nodeFlags are INVENTORY and the flags shared by commands that connect to nodes and report on them.
type nodeFlags struct {
	connect connectFlags

	command   string // for messages about wrong usage
	inventory string
	limit     string
	forks     int
	timeout   time.Duration
	reports   []string
	logs      string
	json      bool
}

// add declares the flags of a command on installations.
func (f *nodeFlags) add(cmd *cobra.Command) {
	f.addWithoutLogs(cmd)
	flags := cmd.Flags()
	parsedVar(flags, &f.timeout, "timeout", "", "duration", atLeastSecond,
		"`DURATION` Timeout per node for each step: transfer (default 30m), installation and verification (15m each)")
	flags.StringVar(&f.logs, "logs", "",
		"`DIR` Keep the log of every node (default: only failed nodes, in ~/.local/state/dsbuild/logs)")
	inGroup(cmd, groupNodes, "timeout")
	inGroup(cmd, groupOutput, "logs")
	siteFlags(cmd, "logs")
}

// addWithoutLogs declares them without --logs and --timeout, which checks do not have, or with another meaning.
func (f *nodeFlags) addWithoutLogs(cmd *cobra.Command) {
	addLimitFlag(cmd, &f.limit)
	f.connect.add(cmd)
	flags := cmd.Flags()
	parsedVar(flags, &f.forks, "forks", "32", "int", atLeast(1), "`N` Maximum number of parallel nodes")
	flags.BoolVar(&f.json, "json", false, "Print one JSON document")
	flags.StringArrayVar(&f.reports, "report", nil, "`FILE` Also write a report: .json or .html; repeatable")
	inGroup(cmd, groupNodes, "limit", "forks")
	inGroup(cmd, groupOutput, "json", "report")
	siteFlags(cmd, "forks")
}

// options checks the flags and reads the inventory.
func (f nodeFlags) options(ctx context.Context, a *app) (fleet.Options, *inventory.Inventory, error) {
	if err := f.check(); err != nil {
		return fleet.Options{}, nil, err
	}
	inv, err := a.loadInventory(ctx, f.inventory, f.limit, f.connect.defaults())
	if err != nil {
		return fleet.Options{}, nil, err
	}
	opt := fleet.Options{
		Command: strings.TrimPrefix(f.command, "dsbuild "), By: localUser(),
		Hosts: inv.Hosts, Outside: inv.Outside, KnownHosts: inv.KnownHosts,
		Reporter: a.reporter, Forks: f.forks, Timeout: f.timeout,
		Logs: fleet.Logs{Dir: pipeline.DefaultLogs(), Failed: true}, WriteHint: a.hints.expand,
	}
	if f.logs != "" { // of all nodes, not only of the failed ones
		opt.Logs = fleet.Logs{Dir: f.logs}
	}
	err = f.connect.addDialer(ctx, a, inv, &opt)
	return opt, inv, err
}

// check checks the values beyond their types.
func (f nodeFlags) check() error {
	if err := f.connect.check(); err != nil {
		return err
	}
	for _, r := range f.reports {
		if !slices.Contains(reportEndings(), filepath.Ext(r)) {
			return usagef("invalid value %q for --report: want a .json or .html file", r)
		}
		if err := checkWritable(r); err != nil {
			return usagef("--report %s: %w", r, err)
		}
		if err := checkOutput("--report", r, f.inventory); err != nil {
			return err
		}
	}
	if f.logs != "" {
		err := os.MkdirAll(f.logs, 0o700)
		if err == nil {
			err = checkWritable(filepath.Join(f.logs, "node.log"))
		}
		var failed *fs.PathError
		if errors.As(err, &failed) { // its text repeats the path
			err = fmt.Errorf("cannot create directory: %w", failed.Err)
		}
		if err != nil {
			return usagef("--logs %s: %w", f.logs, err)
		}
	}
	return nil
}

// checkWritable reports before any node is contacted whether a report cannot be
// written. It leaves an existing file unchanged.
func checkWritable(file string) error {
	if info, err := os.Stat(file); err == nil && info.IsDir() {
		return errors.New("is a directory")
	}
	probe, err := os.CreateTemp(filepath.Dir(file), ".report-*")
	var private *fs.PathError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("directory %s does not exist", filepath.Dir(file))
	case errors.As(err, &private): // it has the name of the temporary file
		return fmt.Errorf("cannot write to %s: %w", filepath.Dir(file), private.Err)
	case err != nil:
		return err
	}
	return errors.Join(probe.Close(), os.Remove(probe.Name()))
}

// addVerifyFlag declares --verify, with levels that only this command has.
func addVerifyFlag(cmd *cobra.Command, level *verify.Level, usage string, own ...verify.Level) {
	choiceVar(cmd.Flags(), level, "verify", verify.LevelLoad, append([]verify.Level{verify.LevelLoad, verify.LevelFiles}, own...), usage)
}

// localUser returns the user and the control node, for the journals on the nodes.
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
