package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/adrg/xdg"
	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/internal/connect"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
	"github.com/dsbuild/dsbuild/launch"
	"github.com/dsbuild/dsbuild/launch/jobrunner"
	"github.com/dsbuild/dsbuild/launch/submit"
)

// addSubmit declares the flags of --submit, for launchers that dsbuild can run.
func (f *launchFlags) addSubmit(cmd *cobra.Command) {
	flags := cmd.Flags()
	var what string
	switch f.kind {
	case launch.Slurm:
		what = "Submit the job to Slurm, print its output, and wait until it ends (exit code 0 if it succeeds, otherwise 1)"
	case launch.JAX:
		what = "Run the job through Slurm, or over SSH on the nodes of --inventory, and wait until it ends " +
			"(exit code 0 if it succeeds, otherwise 1)"
	case launch.Torchrun:
		what = "Run the job over SSH on the nodes of --inventory, or on this machine, and wait until it ends " +
			"(exit code 0 if it succeeds, otherwise 1)"
	default:
		return
	}
	flags.BoolVar(&f.submit, "submit", false, what)
	flags.BoolVar(&f.json, "json", false, "Print the result as one JSON document, and messages on standard error")
	if f.kind != launch.Slurm {
		flags.StringVar(&f.logs, "logs", "",
			"`DIR` Directory for the logs of all ranks; not for Slurm jobs (default: in ~/.local/state/dsbuild/jobs)")
		flags.DurationVar(&f.grace, "grace", usualGrace,
			"`DURATION` Time between SIGTERM and SIGKILL when the job is stopped; not for Slurm jobs")
		inGroup(cmd, groupSubmit, "logs", "grace")
		flagsNeed(cmd, "submit", "logs", "grace")
	}
	inGroup(cmd, groupSubmit, "submit", "json")
	flagsNeed(cmd, "submit", "json")
}

// usualGrace is the default of --grace.
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
		return usagef("--logs and --grace cannot be used with Slurm jobs")
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
		return fault.AddHint(errors.New(e.String()), e.Hint)
	}
	a.reporter.Note("%s", e)
	return nil
}

// writeBeside writes the rendered files, and the files that the script needs on all
// nodes.
func writeBeside(a *app, f launchFlags, beside, files []launch.File, s *submit.Slurm) error {
	if f.out == "" && len(beside) > 0 {
		return usagef("%s must be readable on all nodes: specify a shared directory with --output", beside[0].Name)
	}
	if f.out == "" {
		return nil
	}
	if err := writeFiles(a, f, files); err != nil {
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

// keptJobs is the number of runs whose logs are kept without --logs.
const keptJobs = 10

// startJob runs a rendered job on the nodes of an inventory, or on this machine.
func startJob(
	ctx context.Context, a *app, f launchFlags, inv *inventory.Inventory, job *launch.Job, files []launch.File,
) error {
	parts, err := job.Parts(files)
	if err != nil {
		return usagef("--submit: %w", err)
	}
	if f.grace < 0 || f.grace > time.Hour {
		return usagef("invalid value %q for --grace: want 0s to 1h", f.grace)
	}
	env := map[string]string{}
	for _, v := range job.FromEnv() {
		value, set := os.LookupEnv(v.Name)
		if !set {
			return fault.WithHint(usagef("--env: variable %s is not set", v.Name), "export %s before you run dsbuild", v.Name)
		}
		env[v.Name] = value
	}
	if info, err := os.Stat(f.logs); err == nil && !info.IsDir() {
		return usagef("--logs: %s is not a directory", f.logs)
	}
	machines, done, err := reachParts(ctx, a, inv, parts)
	if err != nil {
		return err
	}
	defer done()
	if f.out != "" {
		if err := writeFiles(a, f, files); err != nil {
			return err
		}
	}
	logs := f.logs
	if logs == "" {
		logs = filepath.Join(xdg.StateHome, "dsbuild", "jobs", fleet.NewRunName()+"-"+job.Name)
		release, err := fleet.HoldRun(logs, keptJobs)
		if err != nil {
			return err
		}
		defer release()
	}
	report, err := jobrunner.Run(ctx, jobrunner.Options{
		Job: job, Machines: machines, Env: env, Logs: logs, Grace: f.grace, Report: a.reporter,
		WriteHint: a.hints.expand,
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

// reachParts returns the machine of each part of a job, and how to connect to it.
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
		open := func(ctx context.Context) (jobrunner.Conn, error) { return way.Dialer.Dial(ctx, target) }
		all = append(all, jobrunner.Machine{Part: p, Open: open})
	}
	return all, done, nil
}
