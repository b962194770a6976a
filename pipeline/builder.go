package pipeline

import (
	"context"
	"io"

	"github.com/dsbuild/dsbuild/internal/ui"
)

// Builder makes the images of plans and runs their steps in them.
type Builder interface {
	// Name is what the manifest calls the builder.
	Name() string
	// Open makes the images of a plan. Each step is reported, and its output
	// kept in log.
	Open(ctx context.Context, p *Plan, log io.Writer, rep ui.Reporter) (Workspace, error)
}

// Workspace is where the steps of one plan run. It keeps the output of each
// under the step's name. One that holds something of this machine is also an
// io.Closer.
type Workspace interface {
	// Run runs a step, whose inputs are there.
	Run(ctx context.Context, s Step) error
	// Export copies the output of a step to the directory dir of this machine.
	Export(ctx context.Context, step, dir string) error
	// Import takes the directory dir of this machine for the output of a step.
	Import(step, dir string) error
}
