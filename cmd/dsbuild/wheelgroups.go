package main

import (
	"context"
	"os"
	"path/filepath"

	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/pipeline/planner"
	"github.com/dsbuild/dsbuild/ship"
	"github.com/dsbuild/dsbuild/wheel"
)

// shipOptions prepares the part of a shipment that builds wheels. It needs plans until
// the shipment has ended. sign signs the wheels; nil: nobody does.
func (o wheelOptions) shipOptions(ctx context.Context, a *app, tools *buildTools) (ship.Options, error) {
	groups, err := ship.NewGroupPlanner(ctx, tools.plans, o.request)
	if err != nil {
		return ship.Options{}, err
	}
	build := func(ctx context.Context, jobs []pipeline.Job) []pipeline.Result {
		runner := o.newRunner(a, o.out)
		runner.Sign = tools.sign
		farm := pipeline.Farm{Runner: runner, Workers: tools.backend.Workers()}
		return farm.Run(ctx, jobs)
	}
	return ship.Options{
		Want: groups.Spec(), Group: groups.Group, Plans: groups, Build: build,
		Store: pipeline.DefaultStore(), Dir: o.out, Fresh: o.noCache, Sign: tools.sign, Report: a.reporter,
	}, nil
}

// newBundler gathers the packages that a wheel requires in a folder of the wheel's name.
func (o wheelOptions) newBundler(a *app, backend *planner.Backend) func(context.Context, string, *pipeline.Plan, wheel.Artifact) (*wheel.Bundle, error) {
	return func(ctx context.Context, name string, p *pipeline.Plan, made wheel.Artifact) (*wheel.Bundle, error) {
		plan, err := pipeline.NewBundlePlan(p, nil, true)
		if err != nil {
			return nil, err
		}
		dir := filepath.Join(o.out, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		runner := o.newRunner(a, dir)
		runner.Builder, runner.Report = backend.OpenBuilder, ui.Prefixed(a.reporter, name)
		if _, err := runner.Bundle(ctx, plan, made); err != nil {
			return nil, err
		}
		b, err := wheel.ReadBundle(filepath.Join(dir, wheel.WheelhouseDir))
		return &b, err
	}
}
