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
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/release/nightly"
	"github.com/dsbuild/dsbuild/wheel"
)

func newNightlyCommand(a *app) *cobra.Command {
	var file string
	var build wheelOptions
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "nightly -f nightly.yaml",
		Short: "Build, test, publish and deploy changed wheels, unattended",
		Long: `Run one nightly build: fetch the newest sources, build the wheels whose plan has
changed since the last run, publish an index of the kept builds, deploy to a
canary and then to the other nodes, and write a report of the changes (JSON
and text). Start it from cron, a systemd timer or CI: ci/nightly has
examples of each.

If a wheel fails, the others go on, and its last good build stays published and
deployed. If the canary fails, dsbuild does not change the other nodes. Only one
run works in a folder at a time. The next run finishes a run that was killed.

Exit codes: 0 nothing failed; 1 a wheel or the index failed; 4 every failed
wheel was built, and is not what was asked; else the exit code of the deploy.`,
		Example: `  dsbuild nightly -f nightly.yaml`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := build.readBuildFlags(cmd.Flags()); err != nil {
				return err
			}
			ctx := cmd.Context()
			config, err := nightly.Read(file)
			if errors.Is(err, fs.ErrNotExist) {
				err = fault.WithHint(err, "copy ci/nightly/nightly.yaml (docs/nightly.md)")
			}
			if err != nil {
				return build.site.Error(err)
			}
			report, err := runNight(ctx, a, build, config)
			err = build.site.Error(err)
			if err != nil && config.Notify != nil {
				if failed := nightly.Notify(ctx, config.Notify, report, localUser(), err); failed != nil {
					a.reporter.Warn("dsbuild could not send the notice of the failure: notify: %s", ui.Clean(failed.Error()))
				} else {
					a.reporter.Note("notify: sent the notice of the failure")
				}
			}
			if report == nil || report.Ended.IsZero() {
				return err
			}
			if asJSON {
				return errors.Join(err, ui.JSON(a.stdout, report))
			}
			return errors.Join(err, report.Print(a.stdout))
		},
	}
	f := cmd.Flags()
	f.StringVarP(&file, "file", "f", "nightly.yaml", "configuration of the night: `FILE` (docs/nightly.md)")
	build.builderFlags(f)
	f.BoolVar(&asJSON, "json", false, "print one JSON document")
	return cmd
}

// runNight runs one night. Its report is nil if the night could not begin.
func runNight(ctx context.Context, a *app, build wheelOptions, config nightly.Config) (*nightly.Report, error) {
	var err error
	opt := nightly.Options{Config: config, Store: pipeline.DefaultStore(), Report: a.reporter, Now: time.Now, By: localUser()}
	if config.Deploy != nil {
		if opt.Deploy, err = nightlyDeploy(ctx, a, *config.Deploy, build.siteOptions); err != nil {
			return nil, err
		}
	}
	tools, err := build.openBuild(ctx, a)
	if err != nil {
		return nil, err
	}
	defer tools.Close()
	opt.Sign = tools.runner.Sign
	opt.Plans = nightly.NewSourcePlanner(tools.plans)
	opt.Build = func(ctx context.Context, dir string, jobs []pipeline.Job, done func(pipeline.Result)) {
		runner := tools.runner
		runner.Dir = dir
		runner.RunAll(ctx, jobs, done)
	}
	return nightly.Run(ctx, opt)
}

// nightlyDeploy deploys with the flags of dsbuild deploy that the file has. It finds
// mistakes in them before the night begins.
func nightlyDeploy(
	ctx context.Context, a *app, d nightly.Deploy, site pipeline.SiteOptions,
) (func(ctx context.Context, dir, limit, report string) (nightly.Nodes, error), error) {
	opts := deployOptions{}
	opts.command = "dsbuild deploy"
	cmd := &cobra.Command{}
	addDeployFlags(cmd, &opts) // the defaults
	for name, text := range d.Flags {
		if err := cmd.Flags().Set(name, text); err != nil {
			var invalid *pflag.InvalidValueError
			if errors.As(err, &invalid) {
				err = invalidValue(invalid)
			}
			return nil, usagef("deploy: %s", strings.TrimPrefix(err.Error(), "--"))
		}
	}
	opts.inventory = d.Inventory
	for _, limit := range []string{d.Canary, d.Limit} {
		opts.limit = limit
		if _, err := opts.installOptions(ctx, a); err != nil {
			return nil, err
		}
	}
	var spec *environment.Spec
	if d.Env != "" {
		var err error
		if spec, err = environment.Read(d.Env, nil); err != nil {
			return nil, err
		}
		if len(spec.Platforms) == 0 { // nobody is there to ask the nodes, and the canary and the others get one lock
			return nil, fault.WithHint(usagef("deploy: env: %s has no nodes", d.Env), "add the kinds of nodes: nodes: [{glibc: 2.28}]")
		}
	}
	return func(ctx context.Context, dir, limit, report string) (nightly.Nodes, error) {
		opts := opts
		opts.limit, opts.wheel = limit, dir
		for _, ending := range reportEndings() {
			opts.reports = append(opts.reports, report+ending)
		}
		if err := os.MkdirAll(filepath.Dir(report), 0o755); err != nil {
			return nightly.Nodes{}, err
		}
		if spec != nil {
			env := envOptions{changeFlags: opts.changeFlags, site: site, verify: opts.verify, force: opts.force}
			return deployEnvOnce(ctx, a, env, *spec, dir)
		}
		return deployOnce(ctx, a, opts)
	}, nil
}

// deployOnce deploys to some nodes, and writes the reports; nothing is printed.
func deployOnce(ctx context.Context, a *app, opts deployOptions) (nightly.Nodes, error) {
	opt, err := opts.installOptions(ctx, a)
	if err == nil {
		opt, err = opts.withWheels(ctx, opt)
	}
	if err != nil {
		return nightly.Nodes{}, err
	}
	d := deploy.New(opt)
	_, err = d.Survey(ctx)
	return applyAtNight(ctx, opts.fleetFlags, d, err)
}

// applyAtNight deploys after a survey, writes the reports, and sums it up.
func applyAtNight(ctx context.Context, opts fleetFlags, d deployment, err error) (nightly.Nodes, error) {
	defer d.Close()
	if err != nil {
		return nightly.Nodes{}, err
	}
	report := d.Apply(ctx)
	report.EditHints(opts.nameInventory)
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

// deployEnvOnce locks an environment with the night's wheels for its Python, one for each machine type, and deploys it to
// some nodes. The lock lies beside the folder of the wheels, so that the next night keeps the other packages.
func deployEnvOnce(ctx context.Context, a *app, opts envOptions, spec environment.Spec, dir string) (nightly.Nodes, error) {
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
		if slices.ContainsFunc(name.Tags, func(tag string) bool {
			return strings.HasPrefix(tag, "py3-") || strings.HasPrefix(tag, "cp"+strings.ReplaceAll(spec.Python, ".", "")+"-")
		}) {
			built = append(built, environment.Text{Text: file})
		}
	}
	if len(built) == 0 {
		err := fmt.Errorf("the night has no wheel for Python %s", spec.Python)
		return nightly.Nodes{}, fault.WithHint(err, "name an entry for it in wheels:")
	}
	spec.Wheels = append(slices.Clone(spec.Wheels), built...)
	opts.lock = filepath.Join(filepath.Dir(dir), spec.Name+".lock")
	lock := envLockOptions{envOptions: opts, out: opts.lock}
	if _, _, err := lock.lockSpec(ctx, a, &spec, spec.Platforms); err != nil {
		return nightly.Nodes{}, err
	}
	opt, err := opts.withFiles(ctx, a)
	if err != nil {
		return nightly.Nodes{}, err
	}
	d := envdeploy.New(opt)
	_, err = d.Survey(ctx)
	return applyAtNight(ctx, opts.fleetFlags, d, err)
}
