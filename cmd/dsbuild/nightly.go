package main

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/deploy"
	"github.com/dsbuild/dsbuild/internal/flow/nightly"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/pipeline/matrix"
)

// nightlyOptions are the flags of dsbuild nightly.
type nightlyOptions struct {
	file  string
	build wheelOptions
	json  bool
}

func newNightlyCommand(a *app) *cobra.Command {
	var o nightlyOptions
	cmd := &cobra.Command{
		Use:        "nightly -f nightly.yaml",
		SuggestFor: []string{"cron", "daily"},
		Short:      "Build, test, publish and deploy what has changed, unattended",
		Long: `Run one night: bring the newest sources, build the wheels whose plan has changed since
the last night, audit and smoke-test them, publish an index of the builds that are
kept, deploy to a canary and then to the other nodes, and write a report (JSON, JUnit,
HTML with history) that says what changed.

A wheel that fails stops no other: the last good one stays published and deployed.
Nodes get nothing new where the canary failed. Two nights in one folder do not run at
once; one that was killed is finished by the next run. Run it from cron, a systemd
timer or CI: ci/nightly has examples of each.

The exit code is 0 only where nothing failed: 1 a wheel or the index failed (4: all
wheels that failed were built and are not what was asked), else that of the deploy.`,
		Example: `  dsbuild nightly -f nightly.yaml`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.build.checkBuild(cmd.Flags(), cmd.CommandPath()); err != nil {
				return err
			}
			site, err := newSite(o.build.siteOptions)
			if err != nil {
				return err
			}
			o.build.site = site
			return runNightly(cmd.Context(), a, o, cmd.CommandPath())
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.file, "file", "f", "nightly.yaml", "what a night does: `FILE` (docs/nightly.md)")
	o.build.placeFlags(f)
	f.BoolVar(&o.json, "json", false, "print one JSON document")
	return cmd
}

// runNightly runs a night as the file says, and tells of it where it failed. The
// report is printed also then.
func runNightly(ctx context.Context, a *app, o nightlyOptions, command string) error {
	config, err := nightly.Read(o.file)
	if err != nil {
		return o.build.site.Error(err)
	}
	report, err := night(ctx, a, o, config, command)
	err = o.build.site.Error(err)
	if err != nil && config.Notify != nil {
		config.Notify.Transport = o.build.site.Transport()
		if failed := config.Notify.Send(ctx, nightly.NewNotice(report, localUser(), err)); failed != nil {
			a.reporter.Warn("nobody was told that the night failed: notify: %s", ui.Clean(failed.Error()))
		} else {
			a.reporter.Note("notify: told that the night failed")
		}
	}
	if report == nil || report.Ended.IsZero() {
		return err
	}
	if o.json {
		return errors.Join(err, ui.JSON(a.stdout, report))
	}
	return errors.Join(err, report.Print(a.stdout))
}

// night runs one. Its report is nil where it could not begin.
func night(ctx context.Context, a *app, o nightlyOptions, config nightly.Config, command string) (*nightly.Report, error) {
	if config.Index != nil {
		if err := checkIndexURL(config.Index.URL, command); err != nil {
			return nil, err
		}
	}
	var err error
	opt := nightly.Options{Config: config, Store: pipeline.DefaultStore(), Report: a.reporter, Now: time.Now, By: localUser()}
	if config.Deploy != nil {
		if opt.Deploy, err = nightlyDeploy(ctx, a, *config.Deploy); err != nil {
			return nil, err
		}
	}
	at := &place{app: a, way: o.build.builder, engine: o.build.firstEngine(), site: o.build.site}
	defer at.close()
	planner, err := o.build.planner(ctx, a, command, at)
	if err != nil {
		return nil, err
	}
	defer planner.close()
	opt.GPUs = gpusOf(planner.tables)
	opt.Plans = &nightPlanner{planner, o.build.builder, o.build.site, map[string]*openedSource{}}
	opt.Build = func(ctx context.Context, dir string, jobs []pipeline.Job, done func(pipeline.Result)) []pipeline.Result {
		farm := pipeline.Farm{
			Runner: pipeline.Runner{
				Store: opt.Store, Dir: dir, Logs: pipeline.DefaultLogs(), Version: a.version, Report: a.reporter, Site: o.build.site,
			},
			Yards: yards(a, at, o.build), Done: done,
		}
		return farm.Run(ctx, jobs)
	}
	return nightly.Run(ctx, opt)
}

// nightPlanner plans what a night asks for. Sources are brought once for all wheels.
// It is a nightly.Planner.
type nightPlanner struct {
	*planner
	builder string // --builder
	site    pipeline.Site
	sources map[string]*openedSource
}

// openedSource is a source as it was found this night, or why it was not.
type openedSource struct {
	wanted wanted
	err    error
}

// open brings a source.
func (n *nightPlanner) open(ctx context.Context, s nightly.Source) (wanted, error) {
	if got, ok := n.sources[s.Name]; ok {
		return got.wanted, got.err
	}
	got := &openedSource{}
	got.wanted, got.err = n.want(ctx, wheelRequest{deepspeed: cmp.Or(s.DeepSpeed, compat.Latest), cpu: defaultCPU})
	n.sources[s.Name] = got
	return got.wanted, got.err
}

// plan plans an entry with p, which says how.
func (n *nightPlanner) plan(ctx context.Context, p *planner, e matrix.Entry, s nightly.Source) (*pipeline.Plan, error) {
	source, err := n.open(ctx, s)
	if err != nil {
		return nil, n.site.Error(err)
	}
	request := entryRequest(e)
	w := source
	if w.spec, err = request.spec(p.command); err == nil {
		w.spec.DeepSpeed, w.spec.Foreign = source.spec.DeepSpeed, source.spec.Foreign
		err = p.learnTorch(ctx, &w, w.spec)
	}
	if err != nil {
		return nil, n.site.Error(err)
	}
	plan, err := p.resolve(ctx, request, w)
	return plan, n.site.Error(err)
}

// Ask implements nightly.Planner.
func (n *nightPlanner) Ask(ctx context.Context, e matrix.Entry, s nightly.Source) (*pipeline.Plan, string, error) {
	dry := *n.planner
	dry.dryRun, dry.quiet = true, true
	plan, err := n.plan(ctx, &dry, e, s)
	if err != nil {
		return nil, "", err
	}
	request, err := pipeline.Request(plan, n.builder)
	return plan, request, err
}

// Plan implements nightly.Planner.
func (n *nightPlanner) Plan(ctx context.Context, name string, e matrix.Entry, s nightly.Source) (*pipeline.Plan, error) {
	named, own := *n.app, *n.planner
	named.reporter = ui.Prefixed(n.app.reporter, name)
	own.app = &named
	return n.plan(ctx, &own, e, s)
}

// nightlyDeploy deploys as the file says, in the words of dsbuild deploy. What is wrong
// with them is found before the night begins.
func nightlyDeploy(ctx context.Context, a *app, d nightly.Deploy) (func(ctx context.Context, dir, limit, report string) (nightly.Nodes, error), error) {
	opts := deployOptions{command: "dsbuild deploy"}
	cmd := &cobra.Command{}
	addDeployFlags(cmd, &opts) // the defaults
	for name, text := range d.Flags {
		if err := cmd.Flags().Set(name, text); err != nil {
			return nil, usageErrorf("dsbuild nightly", "deploy: %s: %w", name, err)
		}
	}
	opts.inventory = d.Inventory
	for _, limit := range []string{d.Canary, d.Limit} {
		opts.limit = limit
		if _, err := opts.fleet(ctx, a); err != nil {
			return nil, err
		}
	}
	return func(ctx context.Context, dir, limit, report string) (nightly.Nodes, error) {
		opts := opts
		opts.limit, opts.wheel = limit, dir
		for _, ending := range []string{".json", ".html", ".xml"} {
			opts.reports = append(opts.reports, report+ending)
		}
		return deployOnce(ctx, a, opts)
	}, nil
}

// deployOnce deploys to some nodes, and writes the reports; nothing is printed.
func deployOnce(ctx context.Context, a *app, opts deployOptions) (nightly.Nodes, error) {
	if err := os.MkdirAll(filepath.Dir(opts.reports[0]), 0o755); err != nil {
		return nightly.Nodes{}, err
	}
	fleet, err := opts.fleet(ctx, a)
	if err == nil {
		fleet, err = opts.given(ctx, fleet)
	}
	if err != nil {
		return nightly.Nodes{}, err
	}
	d := deploy.New(fleet)
	defer d.Close()
	defer lightly(len(fleet.Hosts))()
	if _, err := d.Survey(ctx); err != nil {
		return nightly.Nodes{}, err
	}
	report := d.Apply(ctx)
	n := nightly.Nodes{OK: report.Summary.OK, All: len(report.Nodes), Verdict: ui.Clean(report.Verdict())}
	for _, node := range report.Nodes {
		if node.Changed {
			n.Changed++
		}
	}
	if ctx.Err() != nil {
		return n, context.Cause(ctx)
	}
	return n, errors.Join(report.Err(), writeReports(opts, report))
}
