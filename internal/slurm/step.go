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

	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/internal/remote"
)

// onNode is what srun runs on a node: a line for the shell, as sshd would have it
// run, and the mark that tells how it ended.
//
//go:embed node.sh
var onNode string

// lineVariable is all of this machine's environment that reaches a node: the line for
// the shell there. Among srun's arguments everybody here could read what may be in it.
const lineVariable = "DSBUILD_LINE"

// srun is the beginning of every srun in a job. All steps of a node share what the
// job has of it.
func (a *allocation) srun(nodes string, count int, more ...string) []string {
	n := strconv.Itoa(count)
	return append([]string{
		"--jobid=" + a.job, "--overlap", "--nodes=" + n, "--ntasks=" + n, "--ntasks-per-node=1", "--nodelist=" + nodes,
		"--export=" + lineVariable, "--propagate=NONE", "--chdir=/", "--mpi=none", "--no-kill",
	}, more...)
}

// step is a program on one node, at work.
type step struct {
	cmd   *exec.Cmd
	input io.WriteCloser // nil: it has none
	errs  *marked
	own   *tail         // what srun itself says
	ended chan struct{} // closed when it has ended
	err   error         // valid then
}

// streams are what a program is given. Each may be nil.
type streams struct {
	in        io.Reader
	out, errs io.Writer
}

// start runs a line for the shell on a node.
func (a *allocation) start(node, line string, s streams) (*step, error) {
	mark := "dsbuild-end-" + rand.Text()[:16]
	p := &step{errs: &marked{to: s.errs, mark: mark}, own: &tail{most: complaintMost}, ended: make(chan struct{})}
	input := "--input=all"
	if s.in == nil {
		input = "--input=none"
	}
	// What srun says and what the program says on stderr must not be mixed.
	args := a.srun(node, 1, input, "--error=/dev/fd/3", "/bin/sh", "-c", onNode, "sh", mark)
	p.cmd = exec.Command("srun", args...)
	p.cmd.Env = append(Environ(os.Environ()), lineVariable+"="+line)
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.WaitDelay = s.out, p.own, 2*time.Second
	detach(p.cmd)
	var err error
	if s.in != nil {
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
		// Not waited for: a program may end before it has read all its input.
		go func() {
			io.Copy(p.input, s.in) //nolint:errcheck // the program's status is the verdict
			p.input.Close()
		}()
	}
	go p.wait(r)
	return p, nil
}

// wait waits for the end of srun, and of what the program says on stderr.
func (p *step) wait(errs *os.File) {
	said := make(chan struct{})
	go func() {
		io.Copy(p.errs, errs) //nolint:errcheck // what is missing is seen by the mark
		close(said)
	}()
	p.err = p.cmd.Wait()
	errs.SetReadDeadline(time.Now().Add(p.cmd.WaitDelay)) //nolint:errcheck // whoever else has it will not end it
	<-said
	errs.Close()
	p.errs.end()
	close(p.ended)
}

// How a program on a node is ended: its input ends and it gets SIGTERM, and time to
// put right what it was about. Then it is killed.
const (
	tellEvery = 200 * time.Millisecond
	killAfter = 30 * time.Second
	killGrace = 10 * time.Second
)

// abort ends the program, and returns when it has ended.
func (p *step) abort() {
	if p.input != nil {
		p.input.Close() //nolint:errcheck // it may have ended
	}
	for end := time.Now().Add(killAfter); time.Now().Before(end); {
		if !p.errs.told() {
			p.cmd.Process.Signal(passOn) //nolint:errcheck // it may have ended
		}
		if p.endsIn(tellEvery) {
			return
		}
	}
	p.cmd.Process.Signal(endNow) //nolint:errcheck // likewise
	if !p.endsIn(killGrace) {
		p.cmd.Process.Kill() //nolint:errcheck // likewise
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

// verdict is how the program ended.
func (p *step) verdict(a *allocation, node string) error {
	status, seen := p.errs.status()
	own := p.own.text()
	if slurmEnded.MatchString(own) {
		// However the program took it. Why, is known a moment later.
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
			err = hint.With(fmt.Errorf("%w: it wanted more memory than the job has", err), "give the job more: --salloc=--mem=8G")
		}
		return err
	case a.over():
		return a.lost("while running a command")
	case errors.Is(p.err, exec.ErrNotFound):
		return failed("srun", "", p.err)
	}
	return lostStep(node, own, p.err)
}

var (
	oomKilled   = regexp.MustCompile(`(?i)oom.kill|out.of.memory`)
	slurmEnded  = regexp.MustCompile(`(?m)^srun: (?:error: )?(?:Force Terminated|Job step aborted|Job \d+ step \d+ aborted)|forcing job termination`)
	nodeFailure = regexp.MustCompile(`Node failure on `)
	srunSays    = regexp.MustCompile(`^(?:srun|slurmstepd[^:]*): (?:error: )?`)
)

// endedLimit is how long after the end of its steps the end of a job may be noted.
const endedLimit = 5 * time.Second

// lostStep is the error of a program whose end was not seen.
func lostStep(node, said string, err error) error {
	why := "srun ended without a word"
	if err != nil {
		why = "srun: " + err.Error()
	}
	lines := strings.Split(said, "\n")
	if last := srunSays.ReplaceAllString(lines[len(lines)-1], ""); last != "" {
		why = "srun says: " + last
	}
	if nodeFailure.MatchString(said) {
		why = "Slurm says that the node failed"
	}
	return hint.With(fmt.Errorf("%w while running a command: %s", remote.ErrLost, why),
		"scontrol show node %s. Running the same command again is safe", node)
}

// marked is a Writer that passes on what a program says, but for its end: there is
// the mark with the status.
type marked struct {
	to   io.Writer // nil: nobody
	mark string
	mu   sync.Mutex
	kept []byte
}

// keep is how much is held back: what Slurm itself says may follow the mark.
const keep = 2048

// Write implements io.Writer. It never fails: the program's status is the verdict.
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
		m.to.Write(b) //nolint:errcheck // likewise
	}
}

// end passes on what comes before the mark.
func (m *marked) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	before, _, _ := strings.Cut(string(m.kept), m.mark)
	m.pass([]byte(before))
}

// status is what comes with the mark.
func (m *marked) status() (code int, seen bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, text, found := strings.Cut(string(m.kept), m.mark+" ")
	text, _, whole := strings.Cut(text, "\n")
	code, err := strconv.Atoi(text)
	return code, found && whole && err == nil
}

// told reports whether the program has been told to end.
func (m *marked) told() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return strings.Contains(string(m.kept), m.mark+" told")
}

// after is what comes behind the mark.
func (m *marked) after() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, text, _ := strings.Cut(string(m.kept), m.mark)
	return text
}
