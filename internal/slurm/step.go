package slurm

import (
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
)

// onNode is the script that srun runs on a node. It runs a line in the shell as sshd would, and
// then prints the mark with the exit status.
//
//go:embed node.sh
var onNode string

// lineVariable holds the line for the node's shell. It is the only variable of the local environment
// that reaches the node. The line is not an argument of srun, because it may hold secrets and every
// local user can read srun's arguments.
const lineVariable = "DSBUILD_LINE"

// srun returns the first arguments of every srun in a job. All steps on a node share the job's
// resources there.
func (a *allocation) srun(nodes string, count int, more ...string) []string {
	n := strconv.Itoa(count)
	return append([]string{
		"--jobid=" + a.job, "--overlap", "--nodes=" + n, "--ntasks=" + n, "--ntasks-per-node=1", "--nodelist=" + nodes,
		"--export=" + lineVariable, "--propagate=NONE", "--chdir=/", "--mpi=none", "--no-kill",
	}, more...)
}

// step is a running program on one node.
type step struct {
	cmd   *exec.Cmd
	input io.WriteCloser // nil without input
	errs  *marked
	own   *remote.Tail  // srun's own messages
	ended chan struct{} // closed when the step has ended
	err   error         // valid once ended is closed
}

// start runs a line in the shell of a node. in may be nil.
func (a *allocation) start(node, line string, in io.Reader, out, errs io.Writer) (*step, error) {
	mark := "dsbuild-end-" + rand.Text()[:16]
	p := &step{errs: &marked{to: errs, mark: mark}, own: &remote.Tail{Most: complaintMost}, ended: make(chan struct{})}
	input := "--input=all"
	if in == nil {
		input = "--input=none"
	}
	// The program's stderr goes to file 3, apart from srun's own messages.
	args := a.srun(node, 1, input, "--error=/dev/fd/3", "/bin/sh", "-c", onNode, "sh", mark)
	p.cmd = exec.Command("srun", args...)
	p.cmd.Env = append(Environ(os.Environ()), lineVariable+"="+line)
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.WaitDelay = out, p.own, 2*time.Second
	detach(p.cmd)
	var err error
	if in != nil {
		if p.input, err = p.cmd.StdinPipe(); err != nil {
			return nil, err
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.cmd.ExtraFiles = []*os.File{w}
	err = p.cmd.Start()
	w.Close()
	if err != nil {
		r.Close()
		return nil, failed("srun", "", err)
	}
	if p.input != nil {
		// start does not wait for this copy: the program may end before it has read all its input.
		go func() {
			io.Copy(p.input, in) //nolint:errcheck // the program's status decides
			p.input.Close()
		}()
	}
	go p.wait(r)
	return p, nil
}

// wait waits for srun and for the program's stderr to end.
func (p *step) wait(errs *os.File) {
	said := make(chan struct{})
	go func() {
		io.Copy(p.errs, errs) //nolint:errcheck // a missing mark shows that the output is incomplete
		close(said)
	}()
	p.err = p.cmd.Wait()
	errs.SetReadDeadline(time.Now().Add(p.cmd.WaitDelay)) //nolint:errcheck // others may hold the pipe open
	<-said
	errs.Close()
	p.errs.end()
	close(p.ended)
}

// Times for ending a program on a node. Its input is closed and srun is signalled every tellEvery, until
// node.sh reports that it sent SIGTERM to the program. The program then has time to clean up. After
// killAfter the step is ended immediately, and after another killGrace srun is killed.
const (
	tellEvery = 200 * time.Millisecond
	killAfter = 30 * time.Second
	killGrace = 10 * time.Second
)

// abort ends the program and returns when it has ended.
func (p *step) abort() {
	if p.input != nil {
		p.input.Close() //nolint:errcheck // the input may be closed already
	}
	for end := time.Now().Add(killAfter); time.Now().Before(end); {
		if !p.errs.told() {
			p.cmd.Process.Signal(passOn) //nolint:errcheck // srun may have ended
		}
		if p.endsIn(tellEvery) {
			return
		}
	}
	p.cmd.Process.Signal(endNow) //nolint:errcheck // srun may have ended
	if !p.endsIn(killGrace) {
		p.cmd.Process.Kill() //nolint:errcheck // srun may have ended
		<-p.ended
	}
}

// endsIn reports whether the program ends within a time.
func (p *step) endsIn(within time.Duration) bool {
	select {
	case <-p.ended:
		return true
	case <-time.After(within):
		return false
	}
}

// result returns the result of the program.
func (p *step) result(a *allocation, node string) error {
	status, seen := p.errs.status()
	own := clean(p.own)
	if slurmEnded.MatchString(own) {
		// Slurm ended the step, so the program's exit status is meaningless. The reason is known
		// once the job's end is recorded.
		select {
		case <-a.ended:
		case <-time.After(endedLimit):
		}
		seen = false
	}
	switch {
	case seen && status == 0 && p.err == nil:
		return nil
	case seen && status != 0:
		var err error = &remote.ExitError{Code: status}
		if oomKilled.MatchString(own + p.errs.after()) {
			err = fault.WithHint(fmt.Errorf("%w: memory limit of the job exceeded", err),
				"raise the limit: --salloc=--mem=8G")
		}
		return err
	case a.over():
		return a.lost("while running a command")
	case errors.Is(p.err, exec.ErrNotFound):
		return failed("srun", "", p.err)
	}
	// The error of a program without a status.
	why := "srun exited without a message"
	if p.err != nil {
		why = "srun: " + p.err.Error()
	}
	lines := strings.Split(own, "\n")
	if last := srunSays.ReplaceAllString(lines[len(lines)-1], ""); last != "" {
		why = "srun: " + last
	}
	if nodeFailure.MatchString(own) {
		why = "node failure reported by Slurm"
	}
	return fault.WithHint(fmt.Errorf("%w while running a command: %s", remote.ErrLost, why),
		"check the node with scontrol show node %s, then rerun the command, which is safe", node)
}

var (
	oomKilled  = regexp.MustCompile(`(?i)oom.kill|out.of.memory`)
	slurmEnded = regexp.MustCompile(`(?m)^srun: (?:error: )?` +
		`(?:Force Terminated|Job step aborted|Job \d+ step \d+ aborted)|forcing job termination`)
	nodeFailure = regexp.MustCompile(`Node failure on `)
	srunSays    = regexp.MustCompile(`^(?:srun|slurmstepd[^:]*): (?:error: )?`)
)

// endedLimit limits the wait for a job's end after the end of a step.
const endedLimit = 5 * time.Second

// marked is a Writer that passes a program's stderr on, up to the mark with the exit status.
type marked struct {
	to   io.Writer // nil discards the output
	mark string
	mu   sync.Mutex
	kept []byte
}

// keep is the number of bytes held back, since Slurm's own messages may follow the mark.
const keep = 2048

// Write implements io.Writer. It never fails: the program's status decides.
func (m *marked) Write(b []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kept = append(m.kept, b...)
	if n := len(m.kept) - keep; n > 0 {
		m.pass(m.kept[:n])
		m.kept = append(m.kept[:0], m.kept[n:]...)
	}
	return len(b), nil
}

func (m *marked) pass(b []byte) {
	if m.to != nil {
		m.to.Write(b) //nolint:errcheck // the program's exit status decides
	}
}

// end passes on the text before the mark.
func (m *marked) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	before, _, _ := strings.Cut(string(m.kept), m.mark)
	m.pass([]byte(before))
}

// status returns the exit status that follows the mark.
func (m *marked) status() (code int, seen bool) {
	text, _, whole := strings.Cut(strings.TrimPrefix(m.after(), " "), "\n")
	code, err := strconv.Atoi(text)
	return code, whole && err == nil
}

// told reports whether node.sh has sent SIGTERM to the program.
func (m *marked) told() bool { return strings.HasPrefix(m.after(), " told") }

// after returns the text after the mark.
func (m *marked) after() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, text, _ := strings.Cut(string(m.kept), m.mark)
	return text
}
