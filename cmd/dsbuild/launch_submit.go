package main

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/adrg/xdg"
	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/internal/connect"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
	"github.com/dsbuild/dsbuild/launch"
	"github.com/dsbuild/dsbuild/launch/jobrunner"
	"github.com/dsbuild/dsbuild/launch/submit"
)

// addSubmitFlags gives a kind of job that dsbuild can start the flags for that.
func addSubmitFlags(cmd *cobra.Command, opts *launchOptions) {
	flags := cmd.Flags()
	var what string
	switch opts.kind {
	case launch.Slurm:
		what = "submit the job to Slurm, print its output, and wait for its end: exit code 0 if it passed, else 1"
	case launch.JAX:
		what = "start the job and wait for its end: through Slurm, or with -i on those nodes, over SSH; exit code 0 if it passed, else 1"
	case launch.Torchrun:
		what = "start the job and wait for its end: on the nodes of -i, over SSH, else on this machine; exit code 0 if it passed, else 1"
	default:
		return
	}
	flags.BoolVar(&opts.submit, "submit", false, what)
	flags.BoolVar(&opts.json, "json", false, "with --submit: print the result as JSON, and messages on standard error")
	if opts.kind != launch.Slurm {
		flags.StringVar(&opts.logs, "logs", "",
			"with --submit, without Slurm: the folder `DIR` of the run's logs, a file for each rank (default: in ~/.local/state/dsbuild/jobs)")
		flags.DurationVar(&opts.grace, "grace", usualGrace,
			"with --submit, without Slurm: how long processes may take to end after SIGTERM, as `DURATION`; then dsbuild kills them")
		flagsNeed(cmd, "submit", "logs", "grace")
	}
	flagsNeed(cmd, "submit", "json")
}

// usualGrace is how long processes may take to end if nothing is said.
const usualGrace = 10 * time.Second

// submitJob starts a rendered job, by Slurm if it is for Slurm, and waits for its end.
func submitJob(ctx context.Context, a *app, opts launchOptions, inv *inventory.Inventory, job *launch.Job, files []launch.File) error {
	script, beside, ok := job.Batch(files)
	if !ok {
		return startJob(ctx, a, opts, inv, job, files)
	}
	if opts.logs != "" || opts.grace != 0 && opts.grace != usualGrace {
		return usagef("--logs and --grace do not work for a job that Slurm starts")
	}
	s := submit.Slurm{Report: a.reporter, Log: a.stdout}
	if opts.json {
		s.Log = a.stderr
	}
	if err := writeBeside(a, opts, beside, files, &s); err != nil {
		return err
	}
	said, err := s.Test(ctx, []byte(script.Text))
	if err != nil {
		return err
	}
	a.reporter.Note("%s: %s", script.Name, said)
	id, err := s.Submit(ctx, []byte(script.Text))
	if err != nil {
		return err
	}
	e, err := s.Watch(ctx, id)
	if err != nil {
		return err
	}
	if opts.json {
		if err := ui.JSON(a.stdout, newSlurmJobs(e)); err != nil {
			return err
		}
	}
	if !e.Passed() {
		return errors.New(e.String())
	}
	a.reporter.Note("%s", e)
	return nil
}

// writeBeside writes the rendered files, and the files that the script needs on all
// nodes.
func writeBeside(a *app, opts launchOptions, beside, files []launch.File, s *submit.Slurm) error {
	if opts.out == "" && len(beside) > 0 {
		return usagef("all nodes read %s: name a shared folder with --output", beside[0].Name)
	}
	if opts.out == "" {
		return nil
	}
	if err := writeFiles(a, opts.out, files); err != nil {
		return err
	}
	for _, f := range beside {
		variable, ok := map[string]string{launch.BootstrapName: "BOOTSTRAP", launch.ConfigName: "DS_CONFIG"}[f.Name]
		if !ok {
			continue
		}
		file, err := filepath.Abs(filepath.Join(opts.out, f.Name))
		if err != nil {
			return err
		}
		s.More = append(s.More, variable+"="+file)
	}
	return nil
}

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
		if err := ui.JSON(a.stdout, nodeJobs{[]*jobrunner.Report{report}}); err != nil {
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
		if err := (connectFlags{via: viaSSH}).addDialer(ctx, a, inv, &way); err != nil {
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
		target, err := connect.Target(*p.Host, inv.KnownHosts)
		if err != nil {
			return nil, done, err
		}
		all = append(all, jobrunner.Machine{Part: p, Open: func(ctx context.Context) (jobrunner.Link, error) { return way.Dialer.Dial(ctx, target) }})
	}
	return all, done, nil
}
