package main

import (
	"context"
	"errors"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/ship"
	"github.com/dsbuild/dsbuild/wheel"
)

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
	opt.Deploy.Options.Options = fleet.Options{Hosts: inv.Hosts, KnownHosts: inv.KnownHosts, Reporter: a.reporter}
	if err := o.addDialer(ctx, a, inv, &opt.Deploy.Options.Options); err != nil {
		return err
	}
	s := ship.New(opt)
	defer s.Close()
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
	return errors.Join(failure, printWheelsFor(a, o, plan))
}

// printWheelsForPlan prints the wheels to build: in JSON the plans as --matrix has them,
// with the nodes of each.
func printWheelsForPlan(a *app, o wheelOptions, plan *ship.Plan) error {
	if !o.json {
		return plan.Print(a.stdout, o.verbose)
	}
	return ui.JSON(a.stdout, struct {
		Groups []report.Group `json:"groups"`
		Left   []ship.LeftOut `json:"left"`
	}{plan.Groups(), plan.Left})
}

// wheelsForDocument is the JSON of dsbuild wheel --for: that of --matrix, with
// the nodes that each wheel is for, and those that get none.
type wheelsForDocument struct {
	Wheels []wheelFor     `json:"wheels"`
	Failed []failedFor    `json:"failed"`
	Left   []ship.LeftOut `json:"left"`
}

type wheelFor struct {
	Nodes []string `json:"nodes"`
	namedWheel
}

type failedFor struct {
	Nodes []string `json:"nodes"`
	failedWheel
}

func printWheelsFor(a *app, o wheelOptions, plan *ship.Plan) error {
	doc := wheelsForDocument{Wheels: []wheelFor{}, Failed: []failedFor{}, Left: plan.Left}
	var errs []error
	for _, w := range plan.Wheels {
		if w.Err != nil {
			doc.Failed = append(doc.Failed, failedFor{w.Nodes, failedWheel{w.Name, ui.Clean(w.Err.Error()), ui.Clean(fault.Hint(w.Err))}})
			continue
		}
		doc.Wheels = append(doc.Wheels, wheelFor{w.Nodes, namedWheel{w.Name, w.Engine, w.Artifact}})
		if !o.json {
			errs = append(errs, printWheels(a, []wheel.Artifact{w.Artifact}))
		}
	}
	if o.json {
		return ui.JSON(a.stdout, doc)
	}
	return errors.Join(errs...)
}
