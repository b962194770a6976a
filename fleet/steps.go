package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/fanout"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// Step is one action on a node.
type Step struct {
	Name  string
	Limit time.Duration // 0: none
	Do    func(context.Context) error
	// ReadOnly is true for a step that changes nothing on the node. If the connection is lost in
	// such a step, the node is unreachable; if the user interrupts it, the node is skipped.
	ReadOnly bool
	// Needed, if set, reports whether the step is needed. It is called when the step's turn comes.
	Needed func() bool
}

// Task is a node with the steps to take it through.
type Task struct {
	Node  *Node
	Steps []Step
	// End, if set, is called once at the end, with the error of the failed step. The node has its Status by then,
	// which End may correct.
	End func(ctx context.Context, err error)
}

// Limits of time.
const (
	connectLimit = 2 * time.Minute
	// longStep divides the steps that Options.Timeout prolongs from those that it only shortens.
	longStep = 15 * time.Minute
)

// Limit is a step's time limit after --timeout, which replaces the limits of long steps and caps
// the others.
func (f *Fleet) Limit(usual time.Duration) time.Duration {
	if given := f.opt.Timeout; given > 0 && (usual >= longStep || usual > given) {
		return given
	}
	return usual
}

// ConnectAndRun connects to nodes and takes each through its steps. Once stop returns true for the number of failed
// nodes, it starts no further node; stop may be nil. If connecting may mean a wait in a queue (ConnectWait), every node
// connects at once and the limit of Forks applies only to steps.
func (f *Fleet) ConnectAndRun(ctx context.Context, title string, tasks []Task, stop func(int) bool) {
	f.progress = newProgress(f.opt.Reporter, title, len(tasks), 0, nil)
	defer f.progress.close()
	opt := fanout.Options{Forks: f.opt.Forks, StopWhen: stop}
	var window chan struct{}
	if f.opt.ConnectWait > 0 {
		window = make(chan struct{}, f.Forks())
		opt.Forks = len(tasks)
	}
	limit := f.Limit(connectLimit) + f.opt.ConnectWait
	if f.opt.Asks {
		limit = 0
	}
	f.run(ctx, tasks, opt, 1, func(ctx context.Context, t Task) error {
		connect := Step{Name: "connect", Limit: limit, Do: t.Node.Connect, ReadOnly: true}
		if err := t.Node.runSteps(ctx, []Step{connect}); err != nil {
			return err
		}
		if window != nil {
			window <- struct{}{} // a node that holds a place ends when ctx does
			defer func() { <-window }()
		}
		return t.Node.runSteps(ctx, t.Steps)
	})
}

// Probe connects to every node that has not failed, and runs the step probe there, which changes nothing. It may be
// called more than once: open connections are reused. The error says that the run was interrupted.
func (f *Fleet) Probe(ctx context.Context, limit time.Duration, probe func(ctx context.Context, i int) error) error {
	var tasks []Task
	for i, n := range f.Nodes {
		if n.Err == nil {
			do := func(ctx context.Context) error { return probe(ctx, i) }
			tasks = append(tasks, Task{Node: n, Steps: []Step{{Name: "probe", Limit: f.Limit(limit), Do: do, ReadOnly: true}}})
		}
	}
	f.ConnectAndRun(ctx, "probing", tasks, f.StopWhen(len(f.Nodes)-len(tasks)))
	if ctx.Err() != nil {
		return f.Abandon(ctx)
	}
	return nil
}

// RunSteps takes connected nodes through their steps. Once stop returns true for the number of failed nodes, it starts
// no further node; stop may be nil. Show comes before it.
func (f *Fleet) RunSteps(ctx context.Context, tasks []Task, stop func(int) bool) {
	if stop != nil && stop(0) {
		for _, t := range tasks {
			t.Node.Err = fanout.ErrStopped
		}
		return
	}
	f.run(ctx, tasks, fanout.Options{Forks: f.opt.Forks, StopWhen: stop}, 0, func(ctx context.Context, t Task) error {
		return t.Node.runSteps(ctx, t.Steps)
	})
}

// run calls do for every node, and ends it. It records the errors that only fanout knows: the node
// was not started, or its goroutine panicked. more is the number of steps beyond Task.Steps.
func (f *Fleet) run(
	ctx context.Context, tasks []Task, opt fanout.Options, more int, do func(context.Context, Task) error,
) {
	results := fanout.Run(ctx, tasks, opt, func(ctx context.Context, t Task) (struct{}, error) {
		f.progress.begin(t.Node, more+len(t.Steps))
		defer f.progress.end(t.Node)
		ended := false
		defer func() {
			if !ended { // do panicked
				t.Node.Disconnect()
			}
		}()
		err := do(ctx, t)
		ended = true
		if t.End != nil {
			t.End(ctx, err)
		}
		t.Node.Log.endPhase(t.Node.Status == report.Failed || t.Node.KeepLog)
		if t.Node.Status == report.Refused {
			err = nil // a refusal does not count as a failure
		}
		return struct{}{}, err
	})
	for i, r := range results {
		if n := tasks[i].Node; r.Err != nil && n.Err == nil {
			n.Err = r.Err
			if r.Started {
				n.Status = report.Failed
			}
		}
	}
}

// runSteps takes a node through steps: it handles the display, durations, time limits and the log, so
// that a step does not have to.
func (n *Node) runSteps(ctx context.Context, steps []Step) error {
	for _, s := range steps {
		if s.Needed != nil && !s.Needed() {
			continue
		}
		n.Step = s.Name
		n.fleet.progress.step(n, s.Name)
		n.Log.step(s.Name)
		begin := time.Now()
		limited, cancel := ctx, context.CancelFunc(func() {})
		if s.Limit > 0 {
			limited, cancel = context.WithTimeoutCause(ctx, s.Limit, n.fleet.TimeoutError(s.Limit))
		}
		err := s.Do(limited)
		if err != nil && errors.Is(err, limited.Err()) {
			err = context.Cause(limited)
		}
		cancel()
		n.Seconds[s.Name] += time.Since(begin).Seconds()
		// Log the end of a step.
		took := time.Since(begin)
		text := "done after " + ui.Duration(took)
		if err != nil {
			text = "failed after " + ui.Duration(took) + ": " + ui.OneLine(err.Error())
			if try := fault.Hint(err); try != "" {
				if write := n.fleet.opt.WriteHint; write != nil {
					try = write(try, n.Host.Name)
				}
				text += "\nhint: " + try
			}
		}
		n.Log.Line("", text)
		if err != nil {
			n.Err, n.Status = err, s.statusAfter(ctx, err)
			return err
		}
	}
	return nil
}

// statusAfter is the status of a node on which the step failed.
func (s Step) statusAfter(ctx context.Context, err error) report.Status {
	switch {
	case errors.As(err, new(interface{ Refused() })):
		return report.Refused
	case s.ReadOnly && ctx.Err() != nil:
		return report.Skipped // the run was interrupted; the node did not fail
	case errors.Is(err, remote.ErrSudo):
		return report.Failed // the node was reached
	case s.Name == "connect", s.ReadOnly && errors.Is(err, remote.ErrLost):
		return report.Unreachable
	}
	return report.Failed
}

// TimeoutError is the error of a step that took longer than its limit.
func (f *Fleet) TimeoutError(limit time.Duration) error {
	try := cmp.Or(f.opt.SlowHint, "check network and disk, or raise --timeout")
	return fault.WithHint(fmt.Errorf("timed out after %s", ui.Duration(limit)), "%s", try)
}
