// Package submit gives batch scripts to Slurm and watches the jobs to their end,
// with what every Slurm has: sbatch, scontrol and scancel. No accounting is
// needed, and nothing runs in between that a user could not have typed.
package submit

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/internal/slurm"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// Slurm is the Slurm that this machine is a login node of.
type Slurm struct {
	// Report hears what becomes of a job.
	Report ui.Reporter
	// Log gets what a job prints, made safe for a terminal.
	Log io.Writer
	// Poll is the time between two questions; 2 s if 0.
	Poll time.Duration
	// More is added to the environment of sbatch, which a job inherits. The rest
	// is this program's, without what it says of a job that it is itself part of.
	More []string
	// Dir is where a job works and where it writes its output; the current
	// folder if "".
	Dir string
}

// Test asks whether Slurm would take a script, and returns what Slurm says of
// when and where it could start.
func (s Slurm) Test(ctx context.Context, script []byte) (string, error) {
	said, err := s.run(ctx, script, "sbatch", "--test-only")
	if err != nil {
		return "", fmt.Errorf("Slurm would not take this job: %w", err) //nolint:staticcheck // a name
	}
	return strings.TrimPrefix(said, "sbatch: "), nil
}

// Submit gives a script to Slurm and returns the job's id.
func (s Slurm) Submit(ctx context.Context, script []byte) (string, error) {
	said, err := s.run(ctx, script, "sbatch", "--parsable")
	if err != nil {
		return "", err
	}
	// Warnings come before it; the name of a cluster, in a federation, after it.
	lines := strings.Split(said, "\n")
	id, _, _ := strings.Cut(lines[len(lines)-1], ";")
	if id == "" || strings.Trim(id, "0123456789") != "" {
		return "", fmt.Errorf("sbatch says %q, which is no job id", said)
	}
	return id, nil
}

// Cancel ends jobs.
func (s Slurm) Cancel(ctx context.Context, ids ...string) error {
	_, err := s.run(ctx, nil, "scancel", ids...)
	return err
}

// run runs one of Slurm's programs and returns what it says: its answer last.
func (s Slurm) run(ctx context.Context, stdin []byte, name string, args ...string) (string, error) {
	out, said, err := slurm.Program{Name: name, Args: args, Dir: s.Dir, More: s.More, Stdin: stdin}.Output(ctx)
	return strings.TrimSpace(said + "\n" + out), err
}

func (s Slurm) poll() time.Duration {
	if s.Poll != 0 {
		return s.Poll
	}
	return 2 * time.Second
}
