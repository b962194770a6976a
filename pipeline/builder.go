package pipeline

import (
	"context"
	"io"

	"github.com/dsbuild/dsbuild/internal/ui"
)

// Builder creates the images of plans and runs their steps in them.
type Builder interface {
	// Name returns the builder's name for the manifest.
	Name() string
	// Open creates the images of a plan.
	Open(ctx context.Context, p *Plan, w Work) (Workspace, error)
}

// Work configures a builder. It does not affect the wheel.
type Work struct {
	Jobs    int         // compile jobs (default: one per core)
	NoCache bool        // recompile and retest
	Log     io.Writer   // gets the output of each step
	Report  ui.Reporter // gets each step
}

// Workspace runs the steps of one plan, and keeps each output under the step's name. It is also an
// io.Closer if it must be closed.
type Workspace interface {
	// Run runs steps in parallel. The outputs of their input steps must exist. If one fails, the others are canceled.
	Run(ctx context.Context, steps ...Step) error
	// Export copies the output of a step to the local directory dir.
	Export(ctx context.Context, step, dir string) error
	// Import makes the local directory dir the output of a step.
	Import(step, dir string) error
}
