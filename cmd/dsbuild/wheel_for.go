package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/ship"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/pipeline/planner"
	"github.com/dsbuild/dsbuild/wheel"
)

// runWheelFor builds the wheels that the nodes of an inventory need; the nodes
// are asked, and stay as they are.
func runWheelFor(ctx context.Context, a *app, f wheelFlags, network pipeline.Network, request wheel.Request) error {
	if len(f.with) > 0 || f.bundle {
		return usagef("--with and --bundle cannot be used with --for: a wheelhouse is for one Python and one torch")
	}
	nodes, err := f.nodes.options(ctx, a)
	if err != nil {
		return err
	}
	tools, opt, err := f.build.openShip(ctx, a, network, planner.Options{DryRun: f.dryRun}, f.request.source, request)
	if err != nil {
		return err
	}
	defer tools.Close()
	opt.BuildOnly = true
	d := deploy.New(deploy.Options{Options: nodes})
	defer d.Close()
	s := ship.New(d, opt)
	plan, err := s.Survey(ctx)
	if err != nil {
		return err
	}
	plan.EditHints(a.hints.expand)
	if f.dryRun {
		return errors.Join(plan.Err(), printWheelForPlan(a, plan, f.json, a.show.Verbose))
	}
	for _, line := range plan.Lines() {
		a.reporter.Note("%s", line)
	}
	s.Build(ctx)
	failure := plan.Err()
	if ctx.Err() != nil {
		failure = context.Cause(ctx)
	}
	built := newWheelsResult(append([]ship.ExcludedNode{}, plan.Excluded...))
	for _, w := range plan.Wheels {
		built.add(w.Nodes, w.Name, w.Artifact, w.Err)
	}
	return errors.Join(failure, built.print(a, f.json))
}

// printWheelForPlan prints the wheels to build and their nodes.
func printWheelForPlan(a *app, plan *ship.Selection, asJSON, verbose bool) error {
	if !asJSON {
		return plan.Print(a.stdout, verbose)
	}
	return ui.JSON(a.stdout, newWheelForPlan(plan))
}

// print prints the wheels for people or as one JSON document.
func (d *wheelsResult) print(a *app, asJSON bool) error {
	if asJSON {
		return ui.JSON(a.stdout, d)
	}
	var rows [][]string
	for _, w := range d.Wheels {
		took := ui.Duration(time.Duration(w.Seconds * float64(time.Second)))
		if w.Cached {
			took = "cached"
		}
		rows = append(rows, []string{w.Name, ui.Size(w.Size), took, w.SHA256, relativePath(w.Path)})
	}
	for _, f := range d.Failed {
		reason, _, _ := strings.Cut(f.Error, "\n")
		rows = append(rows, []string{f.Name, "", "", "", "failed: " + reason})
	}
	return ui.Table(a.stdout, []string{"NAME", "SIZE", "TIME", "SHA256", "WHEEL"}, rows)
}
