// Package submit gives batch scripts to Slurm and watches the jobs to their end,
// with what every Slurm has: sbatch, scontrol and scancel. No accounting is
// needed, and nothing runs in between that a user could not have typed.
package submit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/internal/hint"
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
	// Env is the environment of sbatch, which a job inherits; that of this
	// program if nil. What it says of a job that this program is itself part of
	// is left out.
	Env []string
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

// run runs one of Slurm's programs and returns what it says.
func (s Slurm) run(ctx context.Context, stdin []byte, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(outside(s.environ()), "LC_ALL=C")
	cmd.Dir, cmd.Stdin, cmd.WaitDelay = s.Dir, bytes.NewReader(stdin), time.Second
	out, err := cmd.CombinedOutput()
	said := strings.TrimSpace(ui.Clean(string(out)))
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return "", hint.With(fmt.Errorf("there is no %s here", name), "run this on a login node of the cluster, or 'module load slurm' first")
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case err != nil && said == "":
		return "", fmt.Errorf("%s: %w", name, err)
	case err != nil:
		return "", errors.New(said)
	}
	return said, nil
}

func (s Slurm) environ() []string {
	if s.Env != nil {
		return slices.Clone(s.Env)
	}
	return os.Environ()
}

func (s Slurm) poll() time.Duration {
	if s.Poll != 0 {
		return s.Poll
	}
	return 2 * time.Second
}

// outside leaves out of an environment what makes sbatch believe that the new
// job is part of another: a job submitted from within one would inherit its nodes,
// tasks and GPUs. SLURM_CONF says which cluster is meant, and stays.
func outside(env []string) []string {
	var out []string
	for _, v := range env {
		if name, _, _ := strings.Cut(v, "="); name == "SLURM_CONF" || !strings.HasPrefix(name, "SLURM") {
			out = append(out, v)
		}
	}
	return out
}
