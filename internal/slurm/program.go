// Package slurm reaches nodes by way of Slurm's own programs, and no SSH at all:
// salloc allocates them, sbcast brings files there and srun runs commands, as the
// user who submits. What a user could not have typed it does not do: there is no
// accounting, no REST daemon and no plugin that it needs.
package slurm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// Bounds on what is kept of what a program says.
const (
	answerMost    = 64 << 20
	complaintMost = 16 << 10
)

// Program is one of Slurm's programs, to be run to its end.
type Program struct {
	Name  string
	Args  []string
	Dir   string   // "": the current folder
	More  []string // added to the environment, which is Environ's
	Stdin []byte
}

// Output runs the program and returns what it says on stdout and on stderr, made
// safe for a terminal. The error of one that fails is what it said.
func (p Program) Output(ctx context.Context) (out, said string, err error) {
	cmd := exec.CommandContext(ctx, p.Name, p.Args...)
	cmd.Env = append(Environ(os.Environ()), p.More...)
	answer, complaint := &tail{most: answerMost}, &tail{most: complaintMost}
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = p.Dir, bytes.NewReader(p.Stdin), answer, complaint, time.Second
	detach(cmd)
	err = cmd.Run()
	out, said = answer.text(), complaint.text()
	switch {
	case ctx.Err() != nil:
		return "", "", context.Cause(ctx)
	case err != nil:
		return "", "", failed(p.Name, said+"\n"+out, err)
	}
	return out, said, nil
}

// failed is the error of a program of Slurm's: what it said, where it said something.
func failed(name, said string, err error) error {
	if errors.Is(err, exec.ErrNotFound) {
		return hint.With(fmt.Errorf("there is no %s here", name), "run this on a login node of the cluster, or 'module load slurm' first")
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

// Environ leaves out of an environment what makes Slurm's programs believe that
// what they start is part of another job: a job submitted from within one would
// inherit its nodes, tasks and GPUs. SLURM_CONF says which cluster is meant, and
// stays.
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

// tail is a Writer that keeps the last bytes.
type tail struct {
	most int
	mu   sync.Mutex
	kept []byte
}

// Write implements io.Writer.
func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, b...)
	if over := len(t.kept) - t.most; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	return len(b), nil
}

// text is what was kept, made safe for a terminal.
func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(ui.Clean(string(t.kept)))
}
