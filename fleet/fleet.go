// Package fleet takes the nodes of an inventory through lists of steps. For each node it keeps
// the connection, the time limits, the log and the outcome; for all of them the window and the
// progress display. It knows nothing of wheels: package deploy and package verify give it their
// steps.
package fleet

import (
	"context"
	"io"
	"slices"
	"time"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/fanout"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
)

// Options are the settings that all commands on nodes share.
type Options struct {
	Command    string // the dsbuild command, for logs and the report, such as deploy or env rollback
	By         string // the user who runs it, for logs and journals
	Hosts      []inventory.Host
	Outside    []inventory.Host // the other nodes of the inventory, which may share directories with these
	KnownHosts string           // path of known_hosts; by default the user's
	Dialer     remote.Dialer    // Close closes it, if it is an io.Closer
	Reporter   ui.Reporter
	Forks      int // nodes at once; by default fanout.DefaultForks
	// MaxFailures is called with the number of failed nodes and the total, of all nodes or of one group of --serial.
	// If it returns true, no further node is started. If it is nil, all nodes of a group are started, and a failure
	// stops only further groups.
	MaxFailures func(failed, of int) bool
	Logs        Logs          // where to keep the log of each node
	Timeout     time.Duration // limit of each long step on a node, and cap for the other steps; optional
	// WriteHint writes out the commands in a hint, for a node's log; nil leaves it as it is.
	WriteHint func(hint, nodes string) string
	// SlowHint is the hint for a step that took too long, by default to raise --timeout.
	SlowHint string
	// ConnectWait is how long the dialer may let a node wait in a queue. A waiting node does not
	// count towards Forks.
	ConnectWait time.Duration
	// Asks is true if the dialer may prompt a person. The fleet then sets no time limit for connecting, only the
	// dialer does.
	Asks bool
}

// Fleet is the nodes of one run.
type Fleet struct {
	Run   string  // the name of this run in files and journals
	Nodes []*Node // in the order of Options.Hosts

	opt      Options
	progress *progress // nil unless nodes are at work
	outside  []*Node   // of Outside
	logs     *logFolder
}

// New prepares a run; it contacts no node yet.
func New(opt Options) *Fleet {
	f := &Fleet{opt: opt, Run: NewRunName()}
	f.logs = newLogFolder(opt, f.Run)
	for _, h := range opt.Hosts {
		f.Nodes = append(f.Nodes, &Node{
			Host: h, Log: f.logs.newLog(h), Status: report.Skipped, Seconds: map[string]float64{}, fleet: f,
		})
	}
	return f
}

// Close closes every connection, and the dialer.
func (f *Fleet) Close() {
	for _, n := range slices.Concat(f.Nodes, f.outside) {
		n.Disconnect()
	}
	if c, ok := f.opt.Dialer.(io.Closer); ok {
		c.Close() //nolint:errcheck // no node needs it any more
	}
	if f.logs.release != nil {
		f.logs.release()
	}
}

// Forks is the number of nodes that are handled in parallel.
func (f *Fleet) Forks() int {
	if f.opt.Forks > 0 {
		return f.opt.Forks
	}
	return fanout.DefaultForks
}

// maxWide bounds the window that RaiseForks opens.
const maxWide = 256

// RaiseForks raises the number of nodes at work to nodes, at most maxWide, because nodes that pass a file on to each
// other must run at the same time. A lowered --forks wins.
func (f *Fleet) RaiseForks(nodes int) {
	if f.Forks() >= fanout.DefaultForks {
		f.opt.Forks = max(f.Forks(), min(nodes, maxWide))
	}
}

// StopWhen wraps Options.MaxFailures for a phase before which some nodes failed already. It returns
// nil if the run never stops early.
func (f *Fleet) StopWhen(failedBefore int) func(failed int) bool {
	if f.opt.MaxFailures == nil {
		return nil
	}
	return func(n int) bool { return failedBefore+n > 0 && f.opt.MaxFailures(failedBefore+n, len(f.Nodes)) }
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

// Show displays the progress of some nodes until the caller calls hide: their number, the bytes to
// send, and the nodes that failed before.
func (f *Fleet) Show(title string, nodes int, bytes int64) (hide func()) {
	f.progress = newProgress(f.opt.Reporter, title, nodes, bytes, f.Failed())
	return f.progress.close
}

// Hide is Show without a display.
func (f *Fleet) Hide() (end func()) {
	f.progress = newProgress(ui.New(io.Discard, ui.Options{}), "", 1, 0, nil)
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
