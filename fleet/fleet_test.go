package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/fanout"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
)

// servers starts SSH servers in this process, and returns the options that reach them.
func servers(t *testing.T, count int) fleet.Options {
	t.Helper()
	opt := fleet.Options{
		Command: "test", By: "tester", Reporter: ui.New(io.Discard, ui.Options{}),
		Dialer: remote.NewSSH(remote.Options{Config: remote.NoConfig, AgentSocket: "none", Timeout: time.Minute}),
	}
	var all []*sshtest.Server
	for i := range count {
		s := sshtest.Start(t, sshtest.Options{Name: fmt.Sprint("gpu", i)})
		all = append(all, s)
		opt.Hosts = append(opt.Hosts, inventory.Host{
			Name: fmt.Sprint("gpu", i), Node: fmt.Sprint("gpu", i), Address: s.Address, Port: s.Port, User: s.User, IdentityFile: s.IdentityFile,
		})
	}
	opt.KnownHosts = sshtest.KnownHosts(t, all...)
	return opt
}

// say is a step that runs echo on the node and notes that it was there.
func say(n *fleet.Node, word string, said *[]string) fleet.Step {
	return fleet.Step{Name: word, Do: func(ctx context.Context) error {
		answer, err := remote.RunForAnswer(ctx, n.Runner, remote.Command{Argv: []string{"echo", word}})
		*said = append(*said, strings.TrimSpace(answer))
		return err
	}}
}

// Steps run in their order on a real connection; a failed one ends them, and the outcome
// is in the node's report.
func TestStepsEndWithTheFirstThatFails(t *testing.T) {
	t.Parallel()
	f := fleet.New(servers(t, 2))
	defer f.Close()
	broken := errors.New("it is broken")
	said, ended := make([][]string, 2), make([]error, 2)
	var tasks []fleet.Task
	for i, n := range f.Nodes {
		steps := []fleet.Step{say(n, "first", &said[i]), say(n, "second", &said[i]), say(n, "third", &said[i])}
		if i == 1 {
			steps[1].Do = func(context.Context) error { return fault.WithHint(broken, "mend it") }
		}
		tasks = append(tasks, fleet.Task{Node: n, Steps: steps, End: func(_ context.Context, err error) { ended[i] = err }})
	}
	f.ConnectAndRun(t.Context(), "testing", tasks, nil)
	if want := []string{"first", "second", "third"}; !slices.Equal(said[0], want) || ended[0] != nil || f.Nodes[0].Err != nil {
		t.Errorf("%q, %v, %v", said[0], ended[0], f.Nodes[0].Err)
	}
	if !slices.Equal(said[1], []string{"first"}) || !errors.Is(ended[1], broken) {
		t.Errorf("%q, %v", said[1], ended[1])
	}
	r := f.Nodes[1].Report()
	if r.Status != report.Failed || r.Step != "second" || r.Error != "it is broken" || r.Hint != "mend it" || len(r.Seconds) != 3 {
		t.Errorf("%+v", r)
	}
}

// A step that is not needed when its turn comes is left out.
func TestStepsThatAreNotNeeded(t *testing.T) {
	t.Parallel()
	f := fleet.New(servers(t, 1))
	defer f.Close()
	var said []string
	first, second := say(f.Nodes[0], "first", &said), say(f.Nodes[0], "second", &said)
	second.Needed = func() bool { return len(said) == 0 }
	f.ConnectAndRun(t.Context(), "testing", []fleet.Task{{Node: f.Nodes[0], Steps: []fleet.Step{first, second}}}, nil)
	if !slices.Equal(said, []string{"first"}) || f.Nodes[0].Err != nil {
		t.Errorf("%q, %v", said, f.Nodes[0].Err)
	}
}

// refusal is an error of a node that was left as it is.
type refusal struct{ error }

func (refusal) Refused() {}

// The status of a node says what is to be done about it.
func TestStatusOfAFailure(t *testing.T) {
	t.Parallel()
	lost := fmt.Errorf("%w: connection reset", remote.ErrLost)
	for name, c := range map[string]struct {
		readOnly, interrupt bool
		err                 error
		want                report.Status
	}{
		"a program fails":              {false, false, errors.New("exit status 1"), report.Failed},
		"the line breaks in a change":  {false, false, lost, report.Failed},
		"the line breaks, no change":   {true, false, lost, report.Unreachable},
		"no right to sudo":             {true, false, remote.ErrSudo, report.Failed},
		"interrupted in a change":      {false, true, errors.New("stopped"), report.Failed},
		"interrupted, no change":       {true, true, errors.New("stopped"), report.Skipped},
		"refused":                      {false, false, refusal{errors.New("in use")}, report.Refused},
		"refused, and the error is in": {false, false, fmt.Errorf("why: %w", refusal{errors.New("in use")}), report.Refused},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := fleet.New(servers(t, 1))
			defer f.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			step := fleet.Step{Name: "step", ReadOnly: c.readOnly, Do: func(context.Context) error {
				if c.interrupt {
					cancel()
				}
				return c.err
			}}
			f.ConnectAndRun(ctx, "testing", []fleet.Task{{Node: f.Nodes[0], Steps: []fleet.Step{step}}}, nil)
			if got := f.Nodes[0].Status; got != c.want {
				t.Errorf("%s, not %s", got, c.want)
			}
		})
	}
}

// A step has its time, and the hint of those who know which flag prolongs it.
func TestStepsHaveLimits(t *testing.T) {
	t.Parallel()
	opt := servers(t, 1)
	opt.SlowHint = "look at the disk"
	f := fleet.New(opt)
	defer f.Close()
	wait := fleet.Step{Name: "wait", Limit: 50 * time.Millisecond, Do: func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}}
	f.ConnectAndRun(t.Context(), "testing", []fleet.Task{{Node: f.Nodes[0], Steps: []fleet.Step{wait}}}, nil)
	if r := f.Nodes[0].Report(); r.Error != "timed out after 0.1s" || r.Hint != "look at the disk" {
		t.Errorf("%+v", r)
	}
	for _, c := range []struct{ timeout, usual, want time.Duration }{
		{0, time.Minute, time.Minute},
		{time.Hour, time.Minute, time.Minute},    // short steps stay short
		{time.Hour, 15 * time.Minute, time.Hour}, // long ones get longer
		{time.Second, time.Minute, time.Second},  // all get shorter
		{time.Second, 20 * time.Minute, time.Second},
	} {
		if got := fleet.New(fleet.Options{Timeout: c.timeout}).Limit(c.usual); got != c.want {
			t.Errorf("%s with --timeout %s: %s, not %s", c.usual, c.timeout, got, c.want)
		}
	}
}

// A panic on one node ends that node, and closes its connection; the others go on.
func TestPanicEndsOneNode(t *testing.T) {
	t.Parallel()
	f := fleet.New(servers(t, 2))
	defer f.Close()
	var said []string
	f.ConnectAndRun(t.Context(), "testing", []fleet.Task{
		{Node: f.Nodes[0], Steps: []fleet.Step{{Name: "step", Do: func(context.Context) error { panic("no node") }}}},
		{Node: f.Nodes[1], Steps: []fleet.Step{say(f.Nodes[1], "well", &said)}},
	}, nil)
	var panicked *fanout.PanicError
	if !errors.As(f.Nodes[0].Err, &panicked) || f.Nodes[0].Status != report.Failed || f.Nodes[0].Conn != nil {
		t.Errorf("%v, %s, connected: %v", f.Nodes[0].Err, f.Nodes[0].Status, f.Nodes[0].Conn != nil)
	}
	if !slices.Equal(said, []string{"well"}) || f.Nodes[1].Err != nil {
		t.Errorf("%q, %v", said, f.Nodes[1].Err)
	}
}

// queue is a Dialer in whose queue all nodes wait at once.
type queue struct {
	remote.Dialer
	waiting sync.WaitGroup
}

func (q *queue) Dial(ctx context.Context, target remote.Target) (remote.Conn, error) {
	q.waiting.Done()
	q.waiting.Wait()
	return q.Dialer.Dial(ctx, target)
}

// Nodes that wait in a queue take no place in the window; those at work do.
func TestQueueIsOutsideTheWindow(t *testing.T) {
	t.Parallel()
	const nodes = 5
	opt := servers(t, nodes)
	q := &queue{Dialer: opt.Dialer}
	q.waiting.Add(nodes)
	opt.Dialer, opt.Forks, opt.ConnectWait = q, 2, time.Minute
	f := fleet.New(opt)
	defer f.Close()
	var now, most atomic.Int64
	var tasks []fleet.Task
	for _, n := range f.Nodes {
		tasks = append(tasks, fleet.Task{Node: n, Steps: []fleet.Step{{Name: "work", Do: func(context.Context) error {
			most.Store(max(most.Load(), now.Add(1)))
			time.Sleep(20 * time.Millisecond)
			now.Add(-1)
			return nil
		}}}})
	}
	f.ConnectAndRun(t.Context(), "testing", tasks, nil)
	for _, n := range f.Nodes {
		if n.Err != nil {
			t.Errorf("%s: %v", n.Host.Name, n.Err)
		}
	}
	if most.Load() > 2 {
		t.Errorf("%d nodes at work at once", most.Load())
	}
}

// Once too many have failed, no further node is started, and each says so. A refusal is no
// failure.
func TestTooManyFailures(t *testing.T) {
	t.Parallel()
	opt := servers(t, 4)
	opt.Forks = 1
	opt.MaxFailures = func(failed, of int) bool { return failed*4 > of }
	f := fleet.New(opt)
	defer f.Close()
	errs := []error{refusal{errors.New("in use")}, errors.New("first"), errors.New("second"), nil}
	var tasks []fleet.Task
	for i, n := range f.Nodes {
		tasks = append(tasks, fleet.Task{Node: n, Steps: []fleet.Step{{Name: "step", Do: func(context.Context) error { return errs[i] }}}})
	}
	f.ConnectAndRun(t.Context(), "testing", tasks, f.StopWhen(0))
	if f.Nodes[2].Status != report.Failed || !errors.Is(f.Nodes[3].Err, fanout.ErrStopped) || f.Nodes[3].Status != report.Skipped {
		t.Errorf("%s, then %v", f.Nodes[2].Status, f.Nodes[3].Err)
	}
	hide := f.Show("testing", 1, 0)
	defer hide()
	f.Nodes[3].Err = nil
	f.RunSteps(t.Context(), tasks[3:], f.StopWhen(2))
	if !errors.Is(f.Nodes[3].Err, fanout.ErrStopped) {
		t.Errorf("too many failed in the phase before: %v", f.Nodes[3].Err)
	}
}

// A wider window respects what the user chose.
func TestWiden(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ forks, nodes, want int }{
		{0, 10, 32}, {0, 48, 48}, {32, 48, 48}, {100, 48, 100}, {4, 48, 4}, {0, 1000, 256},
	} {
		f := fleet.New(fleet.Options{Forks: c.forks})
		if f.RaiseForks(c.nodes); f.Forks() != c.want {
			t.Errorf("%d forks, %d nodes: %d", c.forks, c.nodes, f.Forks())
		}
	}
}
