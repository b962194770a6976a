package main

import (
	"context"
	"crypto/rand"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/adrg/xdg"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/internal/hosts"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
	"github.com/dsbuild/dsbuild/launch"
	"github.com/dsbuild/dsbuild/launch/jobrunner"
)

// keptJobs is the number of runs whose logs stay if the user names no folder.
const keptJobs = 10

// startJob starts a rendered job on the nodes of an inventory, or on this machine,
// and stays with it.
func startJob(ctx context.Context, a *app, opts launchOptions, inv *inventory.Inventory, job *launch.Job, files []launch.File) error {
	parts, err := job.Parts(files)
	if err != nil {
		return usagef("--submit: %w", err)
	}
	if opts.grace < 0 || opts.grace > time.Hour {
		return usagef("--grace %s: must be an hour or less", opts.grace)
	}
	env := map[string]string{}
	for _, v := range job.Taken() {
		value, set := os.LookupEnv(v.Name)
		if !set {
			return usagef("--env %s: it is not set here, where you start the job", v.Name)
		}
		env[v.Name] = value
	}
	if info, err := os.Stat(opts.logs); err == nil && !info.IsDir() {
		return usagef("--logs %s: it is a file; name a folder", opts.logs)
	}
	machines, done, err := reachParts(ctx, a, inv, parts)
	if err != nil {
		return err
	}
	defer done()
	if opts.out != "" {
		if err := writeFiles(a, opts.out, files); err != nil {
			return err
		}
	}
	logs := opts.logs
	if logs == "" {
		base := filepath.Join(xdg.StateHome, "dsbuild", "jobs")
		fleet.PruneRuns(base, keptJobs-1)
		logs = filepath.Join(base, time.Now().Format("20060102T150405")+"-"+strings.ToLower(rand.Text()[:6])+"-"+job.Name)
	}
	report, err := jobrunner.Run(ctx, jobrunner.Options{
		Job: job, Machines: machines, Env: env, Logs: logs, Grace: opts.grace, Report: a.reporter,
	})
	if report == nil {
		return err
	}
	report.Tell(a.reporter)
	if opts.json {
		if err := ui.JSON(a.stdout, map[string][]*jobrunner.Report{"jobs": {report}}); err != nil {
			return err
		}
	}
	if failed := report.Err(); failed != nil {
		return failed
	}
	return err
}

// reachParts gives each part of a job its way to the machine that runs it.
func reachParts(ctx context.Context, a *app, inv *inventory.Inventory, parts []launch.Part) ([]jobrunner.Machine, func(), error) {
	done := func() {}
	var way fleet.Options
	if len(inv.Hosts) > 0 {
		if err := (connectOptions{via: viaSSH}).addDialer(ctx, a, inv, &way); err != nil {
			return nil, done, err
		}
		if keeps, ok := way.Dialer.(io.Closer); ok { // sessions beyond its connections
			done = func() { keeps.Close() } //nolint:errcheck // nothing is under way
		}
	}
	var all []jobrunner.Machine
	for _, p := range parts {
		if p.Host == nil {
			all = append(all, jobrunner.Machine{Part: p, Open: jobrunner.OpenLocal})
			continue
		}
		target, err := hosts.Target(*p.Host, inv.KnownHosts)
		if err != nil {
			return nil, done, err
		}
		all = append(all, jobrunner.Machine{Part: p, Open: func(ctx context.Context) (jobrunner.Link, error) { return way.Dialer.Dial(ctx, target) }})
	}
	return all, done, nil
}
