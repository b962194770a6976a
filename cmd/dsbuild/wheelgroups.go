package main

import (
	"context"
	"os"
	"path/filepath"

	"github.com/dsbuild/dsbuild/internal/flow"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/wheel"
)

// groupPlanner plans the wheels for groups of nodes: what they have in common is
// a request, and the sources are brought once. What it says ends up in reports, so
// secrets of the site are taken out of it here. It is a flow.Planner.
type groupPlanner struct {
	*planner
	request wheelRequest
	builder string // --builder
	site    pipeline.Site
	spec    wheel.Spec
	source  pipeline.Source
}

func newGroupPlanner(ctx context.Context, p *planner, o wheelOptions) (*groupPlanner, error) {
	spec, src, err := p.want(ctx, o.wheelRequest)
	return &groupPlanner{p, o.wheelRequest, o.builder, o.site, spec, src}, err
}

// Ask implements flow.Planner: the plan of a dry run.
func (g *groupPlanner) Ask(ctx context.Context, spec wheel.Spec) (*pipeline.Plan, string, error) {
	dry := *g.planner
	dry.dryRun, dry.quiet = true, true
	plan, err := dry.resolve(ctx, g.request, spec, g.source)
	if err != nil {
		return nil, "", g.site.Error(err)
	}
	request, err := pipeline.Request(plan, g.builder)
	return plan, request, err
}

// Plan implements flow.Planner.
func (g *groupPlanner) Plan(ctx context.Context, name string, spec wheel.Spec) (*pipeline.Plan, error) {
	named, own := *g.app, *g.planner
	named.reporter = ui.Prefixed(g.app.reporter, name)
	own.app = &named
	plan, err := own.resolve(ctx, g.request, spec, g.source)
	return plan, g.site.Error(err)
}

// flow prepares what o asks for of the nodes of a fleet. The sources are the
// planner's until that is closed.
func (o wheelOptions) flow(ctx context.Context, a *app, at *place, p *planner) (flow.Options, error) {
	groups, err := newGroupPlanner(ctx, p, o)
	if err != nil {
		return flow.Options{}, err
	}
	build := func(ctx context.Context, jobs []pipeline.Job) []pipeline.Result {
		farm := pipeline.Farm{
			Runner: pipeline.Runner{
				Store: pipeline.DefaultStore(), Dir: o.out, Logs: pipeline.DefaultLogs(), Version: a.version, Report: a.reporter, Site: o.site,
			},
			Yards: yards(a, at, o),
		}
		return farm.Run(ctx, jobs)
	}
	return flow.Options{
		Want: groups.spec, Group: p.tables.Group, Plans: groups, Build: build,
		Store: pipeline.DefaultStore(), Dir: o.out, Fresh: o.noCache, Report: a.reporter,
	}, nil
}

// wheelhouses gathers what wheels require, for each in a folder of its name.
func (o wheelOptions) wheelhouses(a *app, at *place) func(context.Context, string, *pipeline.Plan, wheel.Artifact) (*wheel.Bundle, error) {
	return func(ctx context.Context, name string, p *pipeline.Plan, made wheel.Artifact) (*wheel.Bundle, error) {
		plan, err := pipeline.NewBundlePlan(p, nil, true)
		if err != nil {
			return nil, err
		}
		dir := filepath.Join(o.out, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		runner := pipeline.Runner{
			Store: pipeline.DefaultStore(), Dir: dir, Logs: pipeline.DefaultLogs(), Version: a.version,
			Builder: at.open, Report: ui.Prefixed(a.reporter, name), Site: o.site,
		}
		if _, err := runner.Bundle(ctx, plan, made); err != nil {
			return nil, err
		}
		b, err := wheel.ReadBundle(filepath.Join(dir, wheel.WheelhouseDir))
		return &b, err
	}
}
