package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/envdeploy"
	"github.com/dsbuild/dsbuild/fleet/environment"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/pipeline/planner"
	"github.com/dsbuild/dsbuild/release/nightly"
	"github.com/dsbuild/dsbuild/wheel"
)

// nightlyFlags are the flags of dsbuild nightly.
type nightlyFlags struct {
	build   buildFlags
	network networkFlags

	file string
	json bool
}

func newNightlyCommand(a *app) *cobra.Command {
	var f nightlyFlags
	cmd := &cobra.Command{
		Use:   "nightly",
		Short: "Build and deploy unattended",
		Long: `Run one unattended build: fetch, build, publish, deploy and report.

A run fetches the latest sources, builds the wheels whose plans have changed
since the last run, publishes an index, deploys to canary nodes and then to the
rest, and reports the changes as JSON and text. Run it from cron, a systemd
timer or CI; see ci/nightly for examples.

If a wheel fails, the other wheels are still built, and the last good build of
the failed wheel stays published and deployed. If the canary nodes fail, the
other nodes are not changed. Only one run at a time can use a directory, and an
interrupted run is completed by the next one.

Exit codes: 0 if nothing failed; 1 if a wheel or the index failed; 4 if all
failed wheels failed their audits; otherwise the exit code of the deploy.`,
		Example: `  # Run the builds and the deploy of nightly.yaml
  $ dsbuild nightly -f nightly.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runNightly(cmd.Context(), a, f) },
	}
	f.build.addBuilder(cmd)
	f.network.addForBuild(cmd)
	cmd.Flags().StringVarP(&f.file, "file", "f", "nightly.yaml", "`FILE` Configuration (docs/nightly.md)")
	cmd.Flags().BoolVar(&f.json, "json", false, "Print one JSON document")
	return cmd
}

func runNightly(ctx context.Context, a *app, f nightlyFlags) error {
	network, err := f.network.read()
	if err != nil {
		return err
	}
	config, err := nightly.Read(f.file)
	if errors.Is(err, fs.ErrNotExist) {
		err = fault.WithHint(err, "start from a copy of ci/nightly/nightly.yaml (docs/nightly.md)")
	}
	if err != nil {
		return network.Error(err)
	}
	report, err := f.runNight(ctx, a, network, config)
	err = network.Error(err)
	if err != nil && config.Notify != nil {
		if failed := nightly.Notify(ctx, config.Notify, report, localUser(), err); failed != nil {
			a.reporter.Warn("notify: cannot send the failure notification: %s", ui.Clean(failed.Error()))
		} else {
			a.reporter.Note("notify: sent the failure notification")
		}
	}
	if report == nil || report.Ended.IsZero() {
		return err
	}
	if f.json {
		return errors.Join(err, ui.JSON(a.stdout, report))
	}
	return errors.Join(err, report.Print(a.stdout))
}

// runNight runs one nightly build. Its report is nil if the build could not begin.
func (f nightlyFlags) runNight(
	ctx context.Context, a *app, network pipeline.Network, config nightly.Config,
) (*nightly.Report, error) {
	var err error
	opt := nightly.Options{
		Config: config, Store: pipeline.DefaultStore(), Report: a.reporter, Now: time.Now, By: localUser(),
	}
	if config.Deploy != nil {
		if opt.Deploy, err = nightlyDeploy(ctx, a, *config.Deploy, f.network); err != nil {
			return nil, err
		}
	}
	tools, err := f.build.open(ctx, a, network, planner.Options{})
	if err != nil {
		return nil, err
	}
	defer tools.Close()
	opt.Sign = tools.runner.Sign
	opt.Open = func(ctx context.Context, source string) (nightly.Planner, error) { return tools.planner(ctx, source) }
	opt.Build = func(ctx context.Context, dir string, plans []*pipeline.Plan, done func(pipeline.Result)) {
		runner := tools.runner
		runner.Dir = dir
		runner.RunAll(ctx, plans, done)
	}
	return nightly.Run(ctx, opt)
}

// nightlyDeploy returns the function that deploys with the configured flags of dsbuild deploy. It checks the flags
// before the nightly build begins.
func nightlyDeploy(
	ctx context.Context, a *app, d nightly.Deploy, network networkFlags,
) (func(ctx context.Context, dir, limit, report, gate string) (nightly.Nodes, error), error) {
	var f deployFlags
	f.nodes.command = "dsbuild deploy"
	cmd := &cobra.Command{}
	f.add(cmd) // the defaults
	for name, text := range d.Flags {
		if err := cmd.Flags().Set(name, text); err != nil {
			var invalid *pflag.InvalidValueError
			if errors.As(err, &invalid) {
				why, _ := wantedValue(invalid.GetFlag(), invalid.Unwrap())
				err = fmt.Errorf("invalid value %q for %s: %s", invalid.GetValue(), name, why)
			}
			return nil, usagef("deploy: %w", err)
		}
	}
	if err := setFromEnvironment(cmd.Flags()); err != nil {
		return nil, err
	}
	f.nodes.inventory = d.Inventory
	a.hints.flags, a.hints.inventory = cmd.Flags(), d.Inventory
	for _, limit := range []string{d.Canary, d.Limit} {
		f.nodes.limit = limit
		if _, err := f.options(ctx, a); err != nil {
			return nil, err
		}
	}
	var spec *environment.Spec
	if d.Env != "" {
		var err error
		if spec, err = environment.Read(d.Env, nil); err != nil {
			return nil, err
		}
		if len(spec.Platforms) == 0 { // the canary and the other nodes share one lockfile
			err := usagef("deploy: env: %s lists no node types", d.Env)
			return nil, fault.WithHint(err, "add to the file: nodes: [{glibc: 2.28}]")
		}
	}
	return func(ctx context.Context, dir, limit, report, gate string) (nightly.Nodes, error) {
		if err := cmd.Flags().Set("wheel", dir); err != nil {
			return nightly.Nodes{}, err
		}
		f := f
		f.nodes.limit, f.change.gate = limit, gate
		for _, ending := range reportEndings() {
			f.nodes.reports = append(f.nodes.reports, report+ending)
		}
		if err := os.MkdirAll(filepath.Dir(report), 0o755); err != nil {
			return nightly.Nodes{}, err
		}
		if spec == nil {
			return deployOnce(ctx, a, f)
		}
		return deployEnvOnce(ctx, a, envDeployFlags{
			nodes: f.nodes, change: f.change, send: f.send, files: filesFlags{network: network},
			verify: f.verify, force: f.force,
		}, *spec, dir)
	}, nil
}

// deployOnce deploys to some nodes and writes the reports. It prints nothing.
func deployOnce(ctx context.Context, a *app, f deployFlags) (nightly.Nodes, error) {
	opt, err := f.optionsWithWheels(ctx, a)
	if err != nil {
		return nightly.Nodes{}, err
	}
	opt.Gate = false // it runs after all batches
	d := deploy.New(opt)
	defer d.Close()
	if _, err := d.Survey(ctx); err != nil {
		return nightly.Nodes{}, err
	}
	return reportAtNight(ctx, a, f.nodes, f.gate(a, opt.Options), d.Fleet.Run, d.Apply(ctx))
}

// reportAtNight writes the reports of a deploy after its gate, and sums it up.
func reportAtNight(
	ctx context.Context, a *app, nodes nodeFlags, g gate, run string, r *report.Report,
) (nightly.Nodes, error) {
	if g.command != "" && r.Err() == nil && ctx.Err() == nil {
		r.Gate = g.outcome(ctx, run, lists.Map(r.Nodes, func(n report.Node) string { return n.Name }), r)
	}
	r.EditHints(a.hints.expand)
	n := nightly.Nodes{OK: r.Summary.OK, All: len(r.Nodes), Verdict: ui.Clean(r.Verdict())}
	for _, node := range r.Nodes {
		if node.Changed {
			n.Changed++
		}
	}
	if ctx.Err() != nil {
		return n, context.Cause(ctx)
	}
	return n, errors.Join(r.Err(), writeReports(nodes, r))
}

// deployEnvOnce locks an environment with the new wheels for its Python, one per CPU architecture, and deploys it to
// some nodes. The lockfile is kept next to the wheels' directory, so that the next run keeps the other packages.
func deployEnvOnce(
	ctx context.Context, a *app, f envDeployFlags, spec environment.Spec, dir string,
) (nightly.Nodes, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.whl"))
	if err != nil {
		return nightly.Nodes{}, err
	}
	var built []environment.Text
	for _, file := range files {
		name, err := wheel.ParseFileName(filepath.Base(file))
		if err != nil {
			return nightly.Nodes{}, err
		}
		own := "cp" + strings.ReplaceAll(spec.Python, ".", "") + "-"
		if slices.ContainsFunc(name.Tags, func(tag string) bool {
			return strings.HasPrefix(tag, "py3-") || strings.HasPrefix(tag, own)
		}) {
			built = append(built, environment.Text{Text: file})
		}
	}
	if len(built) == 0 {
		err := fmt.Errorf("no wheel was built for Python %s", spec.Python)
		return nightly.Nodes{}, fault.WithHint(err, "add an entry for Python %s under wheels:", spec.Python)
	}
	spec.Wheels = append(slices.Clone(spec.Wheels), built...)
	f.lock = filepath.Join(filepath.Dir(dir), spec.Name+".lock")
	a.hints.lock = f.lock
	if _, _, err := (envLockFlags{files: f.files, out: f.lock}).lock(ctx, a, &spec, spec.Platforms); err != nil {
		return nightly.Nodes{}, err
	}
	opt, err := f.options(ctx, a)
	if err != nil {
		return nightly.Nodes{}, err
	}
	opt.Gate = false // it runs after all batches
	d := envdeploy.New(opt)
	defer d.Close()
	if _, err := d.Survey(ctx); err != nil {
		return nightly.Nodes{}, err
	}
	return reportAtNight(ctx, a, f.nodes, f.gate(a, opt.Options), d.Fleet.Run, d.Apply(ctx))
}
