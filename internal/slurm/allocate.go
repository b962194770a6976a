package slurm

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
)

// obtain requests nodes from Slurm until each has an allocation or an error.
func (d *Dialer) obtain(names []string) {
	ctx, cancel := context.WithTimeoutCause(d.asking, d.opt.Wait, errNotInTime)
	defer cancel()
	listed, err := Nodes(ctx, d.opt.Partition)
	if err != nil {
		d.refuse(names, func(string) error { return unreachable(err) })
		return
	}
	parts, unknown := d.byPartition(names, listed)
	d.refuse(unknown, func(string) error {
		return unreachable(errors.New("no longer known to Slurm"))
	})
	var all sync.WaitGroup
	for _, part := range parts {
		for _, n := range part.nodes {
			if why := n.down(); why != "" {
				d.refuse([]string{n.Name}, func(string) error { return downError(n.Name, why) })
			}
		}
		all.Go(func() { d.obtainIn(ctx, part) })
	}
	all.Wait()
}

// errNotInTime ends the wait for busy nodes.
var errNotInTime = errors.New("allocation timed out")

// pauseBetween is the minimum time between two job requests. The nodes of a large job become idle one
// by one when it ends, and the pause lets one request get several of them.
const pauseBetween = time.Second

// obtainIn requests the nodes of a partition. The first job gets the nodes that are idle now, and
// later jobs get the rest.
func (d *Dialer) obtainIn(ctx context.Context, part partition) {
	for left := part.usable(); len(left) > 0; {
		a, err := d.allocate(ctx, part, left)
		if err != nil {
			d.refuse(left, func(string) error { return d.turnDown(err) })
			return
		}
		d.grant(a)
		left = slices.DeleteFunc(left, func(name string) bool { return slices.Contains(a.nodes, name) })
		select {
		case <-time.After(pauseBetween):
		case <-ctx.Done():
		}
	}
}

// turnDown returns the error for nodes that Slurm did not allocate.
func (d *Dialer) turnDown(err error) error {
	if !errors.Is(err, errNotInTime) {
		return unreachable(err)
	}
	says := ""
	var late *notInTime
	if errors.As(err, &late) && !slices.Contains([]string{"", "Resources", "Priority"}, late.reason) {
		says = " (Slurm reason: " + late.reason + ")"
	}
	return fault.WithHint(unreachable(fmt.Errorf("%w after %s%s", errNotInTime, ui.Duration(d.opt.Wait), says)),
		"check the node's jobs (squeue --nodelist=NODE) and rerun later, which skips finished nodes; "+
			"or wait longer: --slurm-wait 1h")
}

// downError returns the error of a node on which Slurm starts no job.
func downError(name, why string) error {
	return fault.WithHint(unreachable(errors.New(why)), "Slurm starts no jobs on this node; check its state: scontrol show node %s", name)
}

// unreachable marks err as a remote.ErrDial.
func unreachable(err error) error { return &noWay{err} }

type noWay struct{ error }

func (e *noWay) Unwrap() error { return e.error }

// Is makes errors.Is report remote.ErrDial.
func (e *noWay) Is(target error) bool { return target == remote.ErrDial }

// allocation is a job that holds nodes while its salloc runs.
type allocation struct {
	job    string
	nodes  []string
	salloc *salloc
	ended  chan struct{} // closed when the job has ended
	why    string        // the reason, valid once ended is closed
	ours   atomic.Bool   // this program ended the job
}

// watchdog is a shell script that runs salloc until the script's own input ends.
//
//go:embed watchdog.sh
var watchdog string

//go:embed report.sh
var report string

// reported is the beginning of the line that report.sh prints.
const reported = "dsbuild-allocation "

// allocate gets as many of these nodes as are idle. If none is idle, it waits for one.
func (d *Dialer) allocate(ctx context.Context, part partition, names []string) (*allocation, error) {
	s, err := startSalloc(slices.Concat(d.jobOptions(part, names), []string{"--no-bell", "--kill-command=TERM"}))
	if err != nil {
		return nil, err
	}
	select {
	case line := <-s.line:
		if line == "" {
			<-s.ended
			return nil, failed("salloc", clean(s.said), s.err)
		}
		return d.allocated(s, line)
	case <-ctx.Done():
	}
	err = context.Cause(ctx)
	if errors.Is(err, errNotInTime) {
		err = &notInTime{s.waitsFor()}
	}
	io.WriteString(s.input, "stop\n") //nolint:errcheck // salloc may have ended
	s.end()                           // if Slurm allocated nodes just now, this frees them
	return nil, err
}

// notInTime means that Slurm did not grant an allocation in time.
type notInTime struct{ reason string } // Slurm's reason, if any

func (e *notInTime) Error() string { return errNotInTime.Error() }
func (e *notInTime) Unwrap() error { return errNotInTime }

// salloc is a running salloc process.
type salloc struct {
	cmd   *exec.Cmd
	input io.WriteCloser
	said  *remote.Tail
	line  chan string   // gets the line of report.sh, or "" if none came
	ended chan struct{} // closed when salloc has ended
	err   error         // valid once ended is closed
}

func startSalloc(options []string) (*salloc, error) {
	if _, err := exec.LookPath("salloc"); err != nil {
		return nil, failed("salloc", "", err)
	}
	args := slices.Concat([]string{"-c", watchdog, "sh"}, options, []string{"sh", "-c", report})
	s := &salloc{
		cmd:   exec.Command("sh", args...),
		said:  &remote.Tail{Most: complaintMost},
		line:  make(chan string, 1),
		ended: make(chan struct{}),
	}
	s.cmd.Env, s.cmd.Stderr, s.cmd.WaitDelay = Environ(os.Environ()), s.said, 2*time.Second
	detach(s.cmd)
	var err error
	if s.input, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	answer, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	s.cmd.Stdout = w
	err = s.cmd.Start()
	w.Close()
	if err != nil {
		answer.Close()
		return nil, err
	}
	go func() {
		s.err = s.cmd.Wait()
		close(s.ended)
	}()
	go func() {
		defer answer.Close()
		s.line <- reportIn(answer)
	}()
	return s, nil
}

// reportIn returns the line of report.sh, or "" if it does not come.
func reportIn(r io.Reader) string {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		if line, ok := strings.CutPrefix(lines.Text(), reported); ok {
			return line
		}
	}
	return ""
}

// sallocEnd limits the time salloc may take to release a job.
const sallocEnd = 10 * time.Second

// end ends the job and waits for salloc to end.
func (s *salloc) end() {
	s.input.Close() //nolint:errcheck // salloc has ended, or will
	select {
	case <-s.ended:
	case <-time.After(sallocEnd):
		s.cmd.Process.Kill() //nolint:errcheck // it may have ended
		<-s.ended
	}
}

var pendingJob = regexp.MustCompile(`Pending job allocation (\d+)`)

// waitsFor returns Slurm's reason for keeping the job pending, or "" if it is not known.
func (s *salloc) waitsFor() string {
	m := pendingJob.FindStringSubmatch(clean(s.said))
	if m == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, reason, err := stateOf(ctx, m[1])
	if err != nil {
		return ""
	}
	return reason
}

// allocated makes an allocation from the line of report.sh.
func (d *Dialer) allocated(s *salloc, line string) (*allocation, error) {
	id, list, _ := strings.Cut(line, " ")
	names, err := inventory.Expand(list)
	if err != nil {
		s.end()
		return nil, fmt.Errorf("unexpected node list %[2]q of job %[1]s: %[3]w", id, list, err)
	}
	a := &allocation{job: id, nodes: names, salloc: s, ended: make(chan struct{})}
	d.pending.Go(func() {
		<-s.ended
		if !a.ours.Load() {
			d.noteEnd(a)
		}
		close(a.ended)
	})
	return a, nil
}

// noteEnd records why Slurm ended a job, and stops all further requests. The user may have cancelled
// the job on purpose, and a time limit that was too short for this job is too short for the next one.
func (d *Dialer) noteEnd(a *allocation) {
	a.why = "ended by Slurm"
	for range 30 { // Slurm gives no reason while the job is completing
		state, _, err := stateOf(d.life, a.job)
		if err == nil && state == "COMPLETING" {
			time.Sleep(100 * time.Millisecond)
			continue
		}
		switch {
		case err != nil || state == "":
		case state == "CANCELLED":
			a.why = "cancelled"
		case state == "TIMEOUT":
			a.why = "time limit reached (raise it with --time)"
		case state == "RUNNING":
			a.why = "salloc was killed"
		default:
			a.why = "state " + state
		}
		break
	}
	d.stop(a.lost("before a command"))
}

// end ends the job and waits until it has ended. It may have ended before.
func (a *allocation) end() {
	a.ours.Store(true)
	a.salloc.end()
	<-a.ended
}

// over reports whether the job has ended.
func (a *allocation) over() bool { return closed(a.ended) }

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// lost returns the error of an operation during which the job ended.
func (a *allocation) lost(when string) error {
	return fault.WithHint(fmt.Errorf("%w %s: Slurm job %s has ended: %s", remote.ErrLost, when, a.job, a.why),
		"rerun the command, which is safe")
}
