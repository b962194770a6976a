// Package fleet takes the nodes of an inventory through lists of steps. For each node it keeps
// the connection, the time limits, the log and the outcome; for all of them the window and the
// progress display. It knows nothing of wheels: package deploy and package verify give it their
// steps.
package fleet

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/fanout"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
)

// Options are the settings that all commands on nodes share.
type Options struct {
	Command    string // the dsbuild command, for logs and the report, such as deploy or env rollback
	By         string // the user who runs it, for logs and journals
	Hosts      []inventory.Host
	KnownHosts string        // path of known_hosts; "" means the user's own
	Dialer     remote.Dialer // Close closes it, if it is an io.Closer
	Reporter   ui.Reporter
	Forks      int // nodes at once; 0 means fanout.DefaultForks
	// TooMany is called with the number of failed nodes and the total: of all nodes, or of one
	// group of --serial. If it returns true, dsbuild starts no further node. nil: dsbuild
	// never stops early.
	TooMany func(failed, of int) bool
	Logs    Logs          // where to keep the log of each node
	Timeout time.Duration // limit of each long step on a node, and cap for the other steps; 0: the defaults
	// SlowHint is the hint for a step that took too long; "" names --timeout.
	SlowHint string
	// ConnectWait is how long the dialer may let a node wait in a queue. A waiting node does not
	// count towards Forks.
	ConnectWait time.Duration
	// Asks is true if the dialer may prompt a person. Connecting then has no time limit here; the
	// dialer has limits of its own.
	Asks bool
}

// Fleet is the nodes of one run.
type Fleet struct {
	Run   string  // the name of this run in files and journals
	Nodes []*Node // in the order of Options.Hosts

	opt      Options
	progress *progress // nil unless nodes are at work
}

// New prepares a run; it contacts no node yet.
func New(opt Options) *Fleet {
	f := &Fleet{opt: opt, Run: time.Now().UTC().Format("20060102T150405-") + strings.ToLower(rand.Text()[:6])}
	logs := newLogFolder(opt, f.Run)
	for _, h := range opt.Hosts {
		f.Nodes = append(f.Nodes, &Node{Host: h, Log: logs.newLog(h), Status: report.Skipped, Seconds: map[string]float64{}, fleet: f})
	}
	return f
}

// Close closes every connection, and the dialer.
func (f *Fleet) Close() {
	for _, n := range f.Nodes {
		n.HangUp()
	}
	if c, ok := f.opt.Dialer.(io.Closer); ok {
		c.Close() //nolint:errcheck // no node needs it any more
	}
}

// Forks is the number of nodes that dsbuild works on at once.
func (f *Fleet) Forks() int {
	if f.opt.Forks > 0 {
		return f.opt.Forks
	}
	return fanout.DefaultForks
}

// maxWide bounds the window that Widen opens.
const maxWide = 256

// Widen opens the window for so many nodes, at most 256, unless --forks is below its default. Nodes
// that pass a file on to each other must be at work at the same time.
func (f *Fleet) Widen(nodes int) {
	if f.Forks() >= fanout.DefaultForks {
		f.opt.Forks = max(f.Forks(), min(nodes, maxWide))
	}
}

// StopWhen wraps Options.TooMany for a phase before which some nodes failed already. It returns
// nil if the run never stops early.
func (f *Fleet) StopWhen(failedBefore int) func(failed int) bool {
	if f.opt.TooMany == nil {
		return nil
	}
	return func(n int) bool { return failedBefore+n > 0 && f.opt.TooMany(failedBefore+n, len(f.Nodes)) }
}

// Abandon ends a phase that was interrupted: the nodes that were reached are skipped too, with
// the reason, which it returns.
func (f *Fleet) Abandon(ctx context.Context) error {
	why := context.Cause(ctx)
	for _, n := range f.Nodes {
		if n.Err == nil {
			n.Err = why
		}
	}
	return why
}

// Step is one action on a node.
type Step struct {
	Name  string
	Limit time.Duration // 0: none
	Do    func(context.Context) error
	// ReadOnly is true for a step that changes nothing on the node. If the connection is lost in
	// such a step, the node is unreachable; if the user interrupts it, the node is skipped.
	ReadOnly bool
	// Needed is asked when the step's turn comes; nil: it is always needed.
	Needed func() bool
}

// NodeSteps is what one node is taken through.
type NodeSteps struct {
	Node  *Node
	Steps []Step
	// End is called once at the end, with the error of the failed step; nil: nothing to do. The
	// node has its Status by then, which End may correct.
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

// ConnectAndRun connects to nodes and takes each through its steps. Once stop returns true for the number
// of failed nodes, it starts no further node; nil means never. If connecting may mean a wait in a
// queue (ConnectWait), every node connects at once and the limit of Forks applies only to steps.
func (f *Fleet) ConnectAndRun(ctx context.Context, title string, nodeSteps []NodeSteps, stop func(int) bool) {
	f.progress = newProgress(f.opt.Reporter, title, len(nodeSteps), 0, nil)
	defer f.progress.close()
	opt := fanout.Options{Forks: f.opt.Forks, StopWhen: stop}
	var window chan struct{}
	if f.opt.ConnectWait > 0 {
		window = make(chan struct{}, f.Forks())
		opt.Forks = len(nodeSteps)
	}
	limit := f.Limit(connectLimit) + f.opt.ConnectWait
	if f.opt.Asks {
		limit = 0
	}
	f.run(ctx, nodeSteps, opt, 1, func(ctx context.Context, w NodeSteps) error {
		connect := Step{Name: "connect", Limit: limit, Do: w.Node.Connect, ReadOnly: true}
		if err := w.Node.runSteps(ctx, []Step{connect}); err != nil {
			return err
		}
		if window != nil {
			window <- struct{}{} // a node that holds a place ends when ctx does
			defer func() { <-window }()
		}
		return w.Node.runSteps(ctx, w.Steps)
	})
}

// Show displays the progress of some nodes until the caller calls hide: their number, the bytes to
// send, and the nodes that failed before.
func (f *Fleet) Show(title string, nodes int, bytes int64) (hide func()) {
	f.progress = newProgress(f.opt.Reporter, title, nodes, bytes, f.Failed())
	return f.progress.close
}

// Failed returns the names of the nodes that failed so far.
func (f *Fleet) Failed() []string {
	var names []string
	for _, n := range f.Nodes {
		if n.Failed() {
			names = append(names, n.Host.Name)
		}
	}
	return names
}

// RunSteps takes nodes that are connected through their steps, and starts no further node once stop
// returns true for the number of failed nodes; nil means never. Show comes before it.
func (f *Fleet) RunSteps(ctx context.Context, nodeSteps []NodeSteps, stop func(int) bool) {
	if stop != nil && stop(0) {
		for _, w := range nodeSteps {
			w.Node.Err = fanout.ErrStopped
		}
		return
	}
	f.run(ctx, nodeSteps, fanout.Options{Forks: f.opt.Forks, StopWhen: stop}, 0, func(ctx context.Context, w NodeSteps) error {
		return w.Node.runSteps(ctx, w.Steps)
	})
}

// run calls do for every node, and ends it. It notes the errors that only fanout knows: the node
// was not started, or its goroutine panicked. more is the number of steps beyond NodeSteps.Steps.
func (f *Fleet) run(ctx context.Context, nodeSteps []NodeSteps, opt fanout.Options, more int, do func(context.Context, NodeSteps) error) {
	results := fanout.Run(ctx, nodeSteps, opt, func(ctx context.Context, w NodeSteps) (struct{}, error) {
		f.progress.begin(w.Node, more+len(w.Steps))
		defer f.progress.end(w.Node)
		ended := false
		defer func() {
			if !ended { // do panicked
				w.Node.HangUp()
			}
		}()
		err := do(ctx, w)
		ended = true
		if w.End != nil {
			w.End(ctx, err)
		}
		w.Node.Log.endPhase(w.Node.Status == report.Failed || w.Node.KeepLog)
		if w.Node.Status == report.Refused {
			err = nil // a refusal does not count as a failure
		}
		return struct{}{}, err
	})
	for i, r := range results {
		if n := nodeSteps[i].Node; r.Err != nil && n.Err == nil {
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
			limited, cancel = context.WithTimeoutCause(ctx, s.Limit, n.fleet.NotWithin(s.Limit))
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

// NotWithin is the error of a step that took longer than its limit.
func (f *Fleet) NotWithin(limit time.Duration) error {
	try := cmp.Or(f.opt.SlowHint, "check the node's network and disk; --timeout gives it more time")
	return fault.WithHint(fmt.Errorf("not done within %s", ui.Duration(limit)), "%s", try)
}
