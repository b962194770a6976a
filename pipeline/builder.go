package pipeline

import (
	"context"
	"io"
	"regexp"
	"strings"

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

// Cause picks the lines of a failed command's output that say why: the first
// error a compiler or Python named and the end of the output.
func Cause(stdout, stderr string) string {
	lines := strings.Split(strings.TrimSpace(stdout+"\n"+stderr), "\n")
	var cause []string
	for i, line := range lines {
		if i < len(lines)-tailLines && errorLine.MatchString(line) {
			cause = append(cause, "  "+line, "  ...")
			break
		}
	}
	for _, line := range lines[max(0, len(lines)-tailLines):] {
		cause = append(cause, "  "+line)
	}
	return strings.Join(cause, "\n")
}

const tailLines = 12

var errorLine = regexp.MustCompile(`(?i)(\b|^)(fatal )?error: |Error: |No space left on device`)
