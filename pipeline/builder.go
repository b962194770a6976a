package pipeline

import (
	"context"
	"io"
	"regexp"
	"strings"

	"github.com/dsbuild/dsbuild/internal/ui"
)

// Builder runs a plan, whose audit must pass before its smoke step, and
// returns the path of the wheel it left in dir. Each step is reported, and its
// output kept in log.
type Builder interface {
	// Name is what the manifest calls the builder.
	Name() string
	Build(ctx context.Context, p *Plan, dir string, log io.Writer, rep ui.Reporter) (wheel string, err error)
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
