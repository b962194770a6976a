// Package submit submits batch scripts to Slurm and watches the jobs until they end. It
// uses only sbatch and scontrol, and needs no accounting.
package submit

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/slurm"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// Slurm is the Slurm cluster of this login node.
type Slurm struct {
	// Report gets the progress of a job.
	Report ui.Reporter
	// Log gets the output of a job, safe for a terminal.
	Log io.Writer
	// Poll is the interval between queries to Slurm. The default is 2 s.
	Poll time.Duration
	// More is added to the environment of sbatch, which a job inherits. The rest is
	// dsbuild's environment, without the variables of a surrounding job.
	More []string
	// Dir is the working directory of a job and of its output. The default is the
	// current directory.
	Dir string
}

// Test checks whether Slurm accepts a script. It returns Slurm's estimate of the
// start.
func (s Slurm) Test(ctx context.Context, script []byte) (string, error) {
	said, err := s.runProgram(ctx, script, "sbatch", "--test-only")
	switch {
	case fault.Hint(err) != "": // sbatch did not run
		return "", err
	case err != nil:
		err = fmt.Errorf("job rejected by Slurm: %w", err)
		return "", fault.WithHint(err,
			"list partitions and nodes with 'sinfo', and their limits with 'scontrol show partition'")
	}
	return strings.TrimPrefix(said, "sbatch: "), nil
}

// Submit submits a script and returns the job's id.
func (s Slurm) Submit(ctx context.Context, script []byte) (string, error) {
	said, err := s.runProgram(ctx, script, "sbatch", "--parsable")
	if err != nil {
		return "", err
	}
	// Warnings come before it; the name of a cluster, in a federation, after it.
	lines := strings.Split(said, "\n")
	id, _, _ := strings.Cut(lines[len(lines)-1], ";")
	if id == "" || strings.Trim(id, "0123456789") != "" {
		return "", fmt.Errorf("sbatch printed %q, which is not a job ID", said)
	}
	return id, nil
}

// runProgram runs one of Slurm's programs. It returns standard error and then standard
// output.
func (s Slurm) runProgram(ctx context.Context, stdin []byte, name string, args ...string) (string, error) {
	out, said, err := slurm.Program{Name: name, Args: args, Dir: s.Dir, More: s.More, Stdin: stdin}.Output(ctx)
	return strings.TrimSpace(said + "\n" + out), err
}
