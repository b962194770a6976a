package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/dsbuild/dsbuild/compat"
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
	wanted  wanted
}

func newGroupPlanner(ctx context.Context, p *planner, o wheelOptions) (*groupPlanner, error) {
	w, err := p.want(ctx, o.wheelRequest)
	return &groupPlanner{p, o.wheelRequest, o.builder, o.site, w}, err
}

// group finds the fewest wheels for nodes (compat.Tables.Group), after a look in the
// indexes for those of their torches that the tables do not know. A torch that is not
// found there leaves its nodes out.
func (g *groupPlanner) group(ctx context.Context, nodes []compat.Member, spec wheel.Spec) compat.Grouping {
	asked := map[[2]string]bool{}
	for _, n := range nodes {
		version, _, _ := strings.Cut(n.Facts.Torch, "+")
		s := wheel.Spec{Torch: version, CUDA: n.Facts.TorchCUDA}
		x, y, _ := strings.Cut(version, ".")
		y, _, _ = strings.Cut(y, ".")
		if s.Torch == "" || s.CUDA == "" || asked[[2]string{s.Torch, s.CUDA}] || g.wanted.tables.OffersTorch(wheel.Spec{Torch: x + "." + y, CUDA: s.CUDA}) {
			continue
		}
		asked[[2]string{s.Torch, s.CUDA}] = true
		if err := g.learnTorch(ctx, &g.wanted, s); err != nil {
			break // interrupted
		}
	}
	return g.wanted.tables.Group(nodes, spec)
}

// of is what was asked for, as a wheel for a group is.
func (g *groupPlanner) of(spec wheel.Spec) wanted {
	return wanted{spec, g.wanted.source, g.wanted.tables}
}

// Ask implements flow.Planner: the plan of a dry run.
func (g *groupPlanner) Ask(ctx context.Context, spec wheel.Spec) (*pipeline.Plan, string, error) {
	dry := *g.planner
	dry.dryRun, dry.quiet = true, true
	plan, err := dry.resolve(ctx, g.request, g.of(spec))
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
	plan, err := own.resolve(ctx, g.request, g.of(spec))
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
		Want: groups.wanted.spec, Group: groups.group, Plans: groups, Build: build,
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
