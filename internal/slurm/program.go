// Package slurm reaches nodes through Slurm's own programs, without SSH. salloc allocates the nodes and
// srun runs commands there, all as the submitting user. These are commands that a user could type, so
// no accounting, REST daemon or plugin is needed.
package slurm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// Limits on the kept output of a program, in bytes.
const (
	answerMost    = 64 << 20
	complaintMost = 16 << 10
)

// Program is a run of one of Slurm's programs.
type Program struct {
	Name  string
	Args  []string
	Dir   string   // "": the current folder
	More  []string // added to the environment that Environ returns
	Stdin []byte
}

// Output runs the program and returns its stdout and stderr, made safe for a terminal. If the
// program fails, the error holds its output.
func (p Program) Output(ctx context.Context) (out, said string, err error) {
	if clusters := os.Getenv("SLURM_CLUSTERS"); clusters != "" {
		return "", "", fault.New(fault.Usage, "unset it, and set SLURM_CONF to the slurm.conf of that cluster",
			"SLURM_CLUSTERS=%s: only the cluster of slurm.conf is supported", ui.Clean(clusters))
	}
	cmd := exec.CommandContext(ctx, p.Name, p.Args...)
	cmd.Env = append(Environ(os.Environ()), p.More...)
	answer, complaint := &remote.Tail{Most: answerMost}, &remote.Tail{Most: complaintMost}
	cmd.Dir, cmd.WaitDelay = p.Dir, time.Second
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(p.Stdin), answer, complaint
	detach(cmd)
	err = cmd.Run()
	out, said = clean(answer), clean(complaint)
	switch {
	case ctx.Err() != nil:
		return "", "", context.Cause(ctx)
	case err != nil:
		return "", "", failed(p.Name, said+"\n"+out, err)
	}
	return out, said, nil
}

// failed returns the error of a Slurm program: its output, or err if there is none.
func failed(name, said string, err error) error {
	if errors.Is(err, exec.ErrNotFound) {
		return fault.New(fault.Usage, "run dsbuild on a login node of the cluster, or load Slurm first: module load slurm",
			"%s not found on PATH", name)
	}
	said = strings.TrimSpace(said)
	if said == "" {
		return fmt.Errorf("%s: %w", name, err)
	}
	if len(said) > complaintMost {
		said = "..." + strings.ToValidUTF8(said[len(said)-complaintMost:], "")
	}
	return errors.New(said)
}

// Environ removes the variables of a surrounding Slurm job from an environment. Otherwise a job
// submitted from within a job would inherit that job's nodes, tasks and GPUs. SLURM_CONF selects the
// cluster, so it stays.
func Environ(env []string) []string {
	var out []string
	for _, v := range env {
		name, _, _ := strings.Cut(v, "=")
		if name == "SLURM_CONF" || !strings.HasPrefix(name, "SLURM") {
			out = append(out, v)
		}
	}
	return out
}

// clean returns the kept bytes, made safe for a terminal.
func clean(t *remote.Tail) string { return strings.TrimSpace(ui.Clean(t.String())) }
