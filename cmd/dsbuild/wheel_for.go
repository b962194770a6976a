package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/ship"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
)

// runJobs builds several wheels, or prints their plans.
func runJobs(ctx context.Context, a *app, o wheelOptions, tools *buildTools, jobs []pipeline.Job) error {
	if o.dryRun {
		return o.printPlans(ctx, a, jobs)
	}
	results := tools.runner.RunAll(ctx, jobs, nil)
	built := newWheelsResult(nil)
	for _, r := range results {
		built.add(nil, r.Name, r.Artifact, r.Err)
	}
	if err := built.print(a, o.json); err != nil {
		return err
	}
	// The error if something failed. Its exit code is 4 if all failed wheels were
	// built but do not match the request, and 1 if one could not be built.
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var failed []string
	code := exitWheel
	for _, r := range results {
		if r.Err == nil {
			continue
		}
		failed = append(failed, r.Name)
		if fault.ExitCode(r.Err) != exitWheel {
			code = exitFailed
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return fault.WithCode(fmt.Errorf("%d of %d wheels failed: %s", len(failed), len(results), strings.Join(failed, ", ")), code)
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

// printPlans prints the plans of several wheels.
func (o wheelOptions) printPlans(ctx context.Context, a *app, jobs []pipeline.Job) error {
	if o.json {
		return ui.JSON(a.stdout, newWheelsPlan(jobs))
	}
	for i, j := range jobs {
		gap := ""
		if i > 0 {
			gap = "\n"
		}
		if _, err := fmt.Fprintf(a.stdout, "%s== %s\n", gap, j.Name); err != nil {
			return err
		}
		if err := o.printPlan(ctx, a, j.Plan); err != nil {
			return err
		}
	}
	return nil
}

// runWheelFor builds the wheels that the nodes of an inventory need; the nodes
// are asked, and stay as they are.
func runWheelFor(ctx context.Context, a *app, o wheelOptions) error {
	inv, err := a.loadInventory(ctx, o.inventory, o.limit)
	if err != nil {
		return err
	}
	tools, err := o.openBuild(ctx, a)
	if err != nil {
		return err
	}
	defer tools.Close()
	opt, err := o.shipOptions(ctx, a, tools)
	if err != nil {
		return err
	}
	opt.BuildOnly = true
	nodes := fleet.Options{Hosts: inv.Hosts, KnownHosts: inv.KnownHosts, Reporter: a.reporter}
	if err := o.addDialer(ctx, a, inv, &nodes); err != nil {
		return err
	}
	d := deploy.New(deploy.Options{Options: nodes})
	defer d.Close()
	s := ship.New(d, opt)
	plan, err := s.Survey(ctx)
	if err != nil {
		return err
	}
	if o.dryRun {
		return errors.Join(plan.Err(), printWheelsForPlan(a, o, plan))
	}
	for _, line := range plan.Lines() {
		a.reporter.Note("%s", line)
	}
	s.Build(ctx)
	failure := plan.Err()
	if ctx.Err() != nil {
		failure = context.Cause(ctx)
	}
	built := newWheelsResult(append([]ship.LeftOut{}, plan.Left...))
	for _, w := range plan.Wheels {
		built.add(w.Nodes, w.Name, w.Artifact, w.Err)
	}
	return errors.Join(failure, built.print(a, o.json))
}

// printWheelsForPlan prints the wheels to build and their nodes.
func printWheelsForPlan(a *app, o wheelOptions, plan *ship.Selection) error {
	if !o.json {
		return plan.Print(a.stdout, o.verbose)
	}
	return ui.JSON(a.stdout, newWheelForPlan(plan))
}
