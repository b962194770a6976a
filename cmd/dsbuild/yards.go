package main

import (
	"context"
	"strings"

	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/pipeline/daggerbuilder"
	"github.com/dsbuild/dsbuild/pipeline/engine"
)

// yards are where the wheels of a matrix are built: the engines of --engine, the
// one that is found, or this machine.
func yards(a *app, at *place, o wheelOptions) []pipeline.Yard {
	if at.way == builderHost {
		return []pipeline.Yard{{
			Name: "this machine", Parallel: 1,
			Connect: func(ctx context.Context, _ ui.Reporter) (pipeline.Builder, func() error, error) {
				b, err := at.host(ctx)
				return b, nil, err
			},
		}}
	}
	addresses := o.engines
	if len(addresses) == 0 {
		addresses = []string{""}
	}
	var all []pipeline.Yard
	for _, address := range addresses {
		y := pipeline.Yard{Name: address, Parallel: o.parallel, Connect: connectTo(a, address, o.site)}
		if address == "" {
			y.Name = "found here"
		}
		if local := address == "" || strings.HasPrefix(address, "unix:"); o.parallel == 0 {
			// What another machine has is not known: one build at a time.
			y.Parallel = 1
			if local {
				y.Parallel = pipeline.BuildsAtOnce()
				y.Jobs = pipeline.JobsOf(y.Parallel)
			}
		}
		all = append(all, y)
	}
	return all
}

// connectTo opens sessions on the engine at an address, or on the one that is
// found where that is empty.
func connectTo(a *app, address string, site pipeline.Site) func(context.Context, ui.Reporter) (pipeline.Builder, func() error, error) {
	return func(ctx context.Context, rep ui.Reporter) (pipeline.Builder, func() error, error) {
		found, err := engine.NewFinder(address, rep.Note).Find(ctx)
		if err != nil {
			return nil, nil, err
		}
		how := found.How
		if address != "" {
			how = address
		}
		step := rep.Step("engine: " + how)
		builder, done, err := daggerbuilder.Connect(ctx, found, &lineWriter{line: step.Log})
		if err != nil {
			step.End(ui.Failed, "")
			return nil, nil, err
		}
		step.End(ui.Done, "")
		return builder.WithSite(site), done, nil
	}
}
