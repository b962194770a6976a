package main

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
	"github.com/dsbuild/dsbuild/launch"
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

// endedJob is a job of dsbuild launch --submit --json.
type endedJob struct {
	Job     string  `json:"job"`
	State   string  `json:"state"`     // Slurm's word
	Code    int     `json:"exit_code"` // of the batch script
	Signal  int     `json:"signal"`
	Nodes   string  `json:"nodes"`
	Failed  string  `json:"failed_nodes,omitempty"` // where it went wrong first
	Why     string  `json:"why,omitempty"`
	Output  string  `json:"output"` // file
	Seconds float64 `json:"seconds"`
}

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
		all := []endedJob{{
			Job: e.ID, State: e.Name, Code: e.Code, Signal: e.Signal, Nodes: e.Nodes,
			Failed: e.Blame.Nodes, Why: e.Blame.Why, Output: e.Output, Seconds: e.Wall.Seconds(),
		}}
		if err := ui.JSON(a.stdout, map[string][]endedJob{"jobs": all}); err != nil {
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
