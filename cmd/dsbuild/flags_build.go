package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/fleet/ship"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/pipeline/engine"
	"github.com/dsbuild/dsbuild/pipeline/planner"
)

// buildFlags are the flags that say where, and how, wheels are built.
type buildFlags struct {
	builder string
	engine  string // its address
	jobs    int
	noCache bool
	out     string
	sign    string // the key that signs the wheels
}

// add declares the flags.
func (f *buildFlags) add(cmd *cobra.Command) {
	f.addBuilder(cmd)
	cmd.Flags().BoolVar(&f.noCache, "no-cache", false, "compile again: ignore the store and cached objects")
	cmd.Flags().StringVarP(&f.out, "output", "o", "dist", "`FOLDER` for wheels")
}

// addBuilder declares those of commands that choose the folder and the cache themselves. Their values are checked
// before the command runs.
func (f *buildFlags) addBuilder(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.builder, "builder", planner.Auto,
		"where to build: `auto|dagger|host` (dagger: in containers of a Dagger engine; "+
			"host: on this machine, without root; auto: dagger if there is an engine, else host)")
	flags.StringVar(&f.engine, "engine", "",
		"`ADDRESS` of a Dagger engine: unix:///path/engine.sock, tcp://host:port, image+docker://REF, "+
			"kube-pod://POD?namespace=NAME")
	flags.StringVar(&f.sign, "sign", "",
		"sign the wheels with `KEY`: an SSH private key, or the .pub file of a key in the SSH agent (docs/signing.md)")
	flags.IntVar(&f.jobs, "jobs", 0, "`N` parallel compile jobs (default: the number of cores)")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error { return f.check(cmd.Flags().Changed("jobs")) }
}

// check checks the values beyond their types.
func (f buildFlags) check(jobsGiven bool) error {
	if err := oneOf("builder", f.builder, planner.Auto, planner.Dagger, planner.Host); err != nil {
		return err
	}
	if jobsGiven && f.jobs < 1 {
		return usagef("--jobs %d: must be 1 or more", f.jobs)
	}
	if f.engine != "" {
		if err := engine.CheckAddress(f.engine); err != nil {
			return fmt.Errorf("--engine: %w", err)
		}
	}
	return nil
}

// buildTools are what a command plans and builds wheels with.
type buildTools struct {
	backend *planner.Backend
	plans   *planner.Planner
	runner  pipeline.Runner // runs plans; its Dir is --output
	fresh   bool            // --no-cache
	endSign func()
}

// open opens a backend, a planner, and the key of --sign, which a dry run does not need. Of opt, the caller sets what
// its own flags say.
func (f buildFlags) open(ctx context.Context, a *app, site pipeline.Site, opt planner.Options) (*buildTools, error) {
	if opt.DryRun {
		f.sign = ""
	}
	sign, done, err := a.wheelSigner(ctx, f.sign)
	if err != nil {
		return nil, err
	}
	opt.Backend = planner.NewBackend(planner.BackendOptions{
		Kind: f.builder, Engine: f.engine, Site: site, Environ: os.Environ(), Report: a.reporter,
	})
	opt.Plan, opt.Report = pipeline.Options{Jobs: f.jobs, NoCache: f.noCache}, a.reporter
	plans, err := planner.New(ctx, opt)
	if err != nil {
		done()
		opt.Backend.Close()
		return nil, err
	}
	return &buildTools{opt.Backend, plans, pipeline.Runner{
		Builder: opt.Backend.OpenBuilder, Sign: sign, Site: site, Version: a.version, Report: a.reporter,
		Store: pipeline.DefaultStore(), Dir: f.out, Logs: pipeline.DefaultLogs(),
	}, f.noCache, done}, nil
}

// Close ends what the tools hold open.
func (t *buildTools) Close() {
	t.endSign()
	t.plans.Close()
	t.backend.Close()
}

// shipOptions prepares the part of ship that builds wheels. The tools stay open until the shipment has ended.
func (t *buildTools) shipOptions(ctx context.Context, a *app, r requestFlags) (ship.Options, error) {
	groups, err := ship.NewGroupPlanner(ctx, t.plans, planner.Request(r))
	if err != nil {
		return ship.Options{}, err
	}
	return ship.Options{
		Want: groups.Spec(), Plans: groups,
		Build: func(ctx context.Context, jobs []pipeline.Job) []pipeline.Result {
			return t.runner.RunAll(ctx, jobs, nil)
		},
		Store: pipeline.DefaultStore(), Dir: t.runner.Dir, Fresh: t.fresh, Sign: t.runner.Sign, Report: a.reporter,
	}, nil
}
