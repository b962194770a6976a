package planner

import (
	"bytes"
	"cmp"
	"context"
	"strings"

	"github.com/dsbuild/dsbuild/internal/each"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/pipeline/engine"
)

// Workers lists where several wheels are built side by side: the engines that were
// named, the one that is found, or this machine.
func (b *Backend) Workers() []pipeline.Worker {
	if b.kind == Host {
		return []pipeline.Worker{{
			Name: "this machine", Parallel: 1,
			Connect: func(ctx context.Context, _ ui.Reporter) (pipeline.Builder, func() error, error) {
				builder, err := b.hostBuilder(ctx)
				return builder, nil, err
			},
		}}
	}
	addresses := b.options.Engines
	if len(addresses) == 0 {
		addresses = []string{""}
	}
	return each.Map(addresses, b.engineWorker)
}

// engineWorker opens sessions on the engine at an address. If the address is empty, it searches for an
// engine.
func (b *Backend) engineWorker(address string) pipeline.Worker {
	w := pipeline.Worker{Name: address, Parallel: b.options.Parallel}
	if address == "" {
		w.Name = "found here"
	}
	if local := address == "" || strings.HasPrefix(address, "unix:"); w.Parallel == 0 {
		// dsbuild does not know the memory of another machine: one build at a time.
		w.Parallel = 1
		if local {
			w.Parallel = pipeline.BuildsAtOnce()
			w.Jobs = pipeline.JobsOf(w.Parallel)
		}
	}
	w.Connect = func(ctx context.Context, report ui.Reporter) (pipeline.Builder, func() error, error) {
		found, err := engine.NewFinder(address, report.Note).Find(ctx)
		if err != nil {
			return nil, nil, err
		}
		name := cmp.Or(address, found.How)
		builder, end, err := b.openSession(ctx, found, name, report)
		if err != nil {
			return nil, nil, err
		}
		return builder, end, nil
	}
	return w
}

// lineWriter calls line for each line that is written to it.
type lineWriter struct {
	line func(string)
	rest []byte
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	for {
		i := bytes.IndexByte(w.rest, '\n')
		if i < 0 {
			return len(p), nil
		}
		if line := bytes.TrimSpace(w.rest[:i]); len(line) > 0 {
			w.line(string(line))
		}
		w.rest = w.rest[i+1:]
	}
}
