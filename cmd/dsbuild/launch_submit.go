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

// addSubmit declares the flags of --submit, for a kind of job that dsbuild can start.
func (f *launchFlags) addSubmit(cmd *cobra.Command) {
	flags := cmd.Flags()
	var what string
	switch f.kind {
	case launch.Slurm:
		what = "submit the job to Slurm, print its output, and wait for its end: exit code 0 if it passed, else 1"
	case launch.JAX:
		what = "start the job and wait for its end: through Slurm, or with -i on those nodes, over SSH; " +
			"exit code 0 if it passed, else 1"
	case launch.Torchrun:
		what = "start the job and wait for its end: on the nodes of -i, over SSH, else on this machine; " +
			"exit code 0 if it passed, else 1"
	default:
		return
	}
	flags.BoolVar(&f.submit, "submit", false, what)
	flags.BoolVar(&f.json, "json", false, "with --submit: print the result as JSON, and messages on standard error")
	if f.kind != launch.Slurm {
		flags.StringVar(&f.logs, "logs", "",
			"with --submit, without Slurm: the folder `DIR` of the run's logs, a file for each rank "+
				"(default: in ~/.local/state/dsbuild/jobs)")
		flags.DurationVar(&f.grace, "grace", usualGrace,
			"with --submit, without Slurm: how long processes may take to end after SIGTERM, as `DURATION`; "+
				"then dsbuild kills them")
		flagsNeed(cmd, "submit", "logs", "grace")
	}
	flagsNeed(cmd, "submit", "json")
}

// usualGrace is how long processes may take to end if nothing is said.
const usualGrace = 10 * time.Second

// submitJob starts a rendered job, by Slurm if it is for Slurm, and waits for its end.
func submitJob(
	ctx context.Context, a *app, f launchFlags, inv *inventory.Inventory, job *launch.Job, files []launch.File,
) error {
	script, beside, ok := job.Batch(files)
	if !ok {
		return startJob(ctx, a, f, inv, job, files)
	}
	if f.logs != "" || f.grace != 0 && f.grace != usualGrace {
		return usagef("--logs and --grace do not work for a job that Slurm starts")
	}
	s := submit.Slurm{Report: a.reporter, Log: a.stdout}
	if f.json {
		s.Log = a.stderr
	}
	if err := writeBeside(a, f, beside, files, &s); err != nil {
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
	if f.json {
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
func writeBeside(a *app, f launchFlags, beside, files []launch.File, s *submit.Slurm) error {
	if f.out == "" && len(beside) > 0 {
		return usagef("all nodes read %s: name a shared folder with --output", beside[0].Name)
	}
	if f.out == "" {
		return nil
	}
	if err := writeFiles(a, f.out, files); err != nil {
		return err
	}
	for _, b := range beside {
		variable, ok := map[string]string{launch.BootstrapName: "BOOTSTRAP", launch.ConfigName: "DS_CONFIG"}[b.Name]
		if !ok {
			continue
		}
		file, err := filepath.Abs(filepath.Join(f.out, b.Name))
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
func startJob(
	ctx context.Context, a *app, f launchFlags, inv *inventory.Inventory, job *launch.Job, files []launch.File,
) error {
	parts, err := job.Parts(files)
	if err != nil {
		return usagef("--submit: %w", err)
	}
	if f.grace < 0 || f.grace > time.Hour {
		return usagef("--grace %s: must be an hour or less", f.grace)
	}
	env := map[string]string{}
	for _, v := range job.Taken() {
		value, set := os.LookupEnv(v.Name)
		if !set {
			return usagef("--env %s: it is not set here, where you start the job", v.Name)
		}
		env[v.Name] = value
	}
	if info, err := os.Stat(f.logs); err == nil && !info.IsDir() {
		return usagef("--logs %s: it is a file; name a folder", f.logs)
	}
	machines, done, err := reachParts(ctx, a, inv, parts)
	if err != nil {
		return err
	}
	defer done()
	if f.out != "" {
		if err := writeFiles(a, f.out, files); err != nil {
			return err
		}
	}
	logs := f.logs
	if logs == "" {
		base := filepath.Join(xdg.StateHome, "dsbuild", "jobs")
		fleet.PruneRuns(base, keptJobs-1)
		run := time.Now().Format("20060102T150405") + "-" + strings.ToLower(rand.Text()[:6])
		logs = filepath.Join(base, run+"-"+job.Name)
	}
	report, err := jobrunner.Run(ctx, jobrunner.Options{
		Job: job, Machines: machines, Env: env, Logs: logs, Grace: f.grace, Report: a.reporter,
	})
	if report == nil {
		return err
	}
	report.Tell(a.reporter)
	if f.json {
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
func reachParts(
	ctx context.Context, a *app, inv *inventory.Inventory, parts []launch.Part,
) (all []jobrunner.Machine, done func(), err error) {
	done = func() {}
	var way fleet.Options
	if len(inv.Hosts) > 0 {
		if err := (connectFlags{via: viaSSH}).addDialer(ctx, a, inv, &way); err != nil {
			return nil, done, err
		}
		if keeps, ok := way.Dialer.(io.Closer); ok { // sessions beyond its connections
			done = func() { keeps.Close() } //nolint:errcheck // nothing is under way
		}
	}
	for _, p := range parts {
		if p.Host == nil {
			all = append(all, jobrunner.Machine{Part: p, Open: jobrunner.OpenLocal})
			continue
		}
		target, err := connect.Target(*p.Host, inv.KnownHosts)
		if err != nil {
			return nil, done, err
		}
		open := func(ctx context.Context) (jobrunner.Link, error) { return way.Dialer.Dial(ctx, target) }
		all = append(all, jobrunner.Machine{Part: p, Open: open})
	}
	return all, done, nil
}
