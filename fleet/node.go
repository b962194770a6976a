package fleet

import (
	"context"
	"path"
	"path/filepath"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/node/agent"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/connect"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/nodeerr"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
)

// LocalFile is a file of this machine that nodes get.
type LocalFile struct {
	Path   string
	SHA256 string
	Size   int64 // in bytes
}

// Node is one node of a run: its connection, and how far it has come.
type Node struct {
	Host   inventory.Host
	Conn   remote.Conn   // nil while there is no connection
	Runner remote.Runner // runs commands with the inventory's variables, setup line and exec_prefix
	Log    *Log

	Status  report.Status
	Step    string // the last step that began
	Err     error
	Seconds map[string]float64 // by step
	KeepLog bool               // keep its log although no step failed

	Facts  *node.Facts    // nil until it is probed
	JobsOf string         // the interpreter whose processes --in-use is about, or ""
	Agent  *agent.Session // holds the lock of the node's environment while it runs; may be nil
	Inbox  string         // the agent's folder for uploads

	Changed      bool  // dsbuild changed it
	StateUnknown bool  // its state is not known
	Sent         int64 // bytes of the files that have arrived

	fleet  *Fleet
	serial int  // the group of --serial in which it was changed, from 1
	quiet  bool // connecting to it prompts for nothing
}

// Connect opens a connection to the node and checks its host key. It keeps an open connection.
func (n *Node) Connect(ctx context.Context) error {
	if n.Conn != nil {
		return nil
	}
	target, err := connect.Target(n.Host, n.fleet.opt.KnownHosts)
	if err != nil {
		return err
	}
	target.BatchMode = target.BatchMode || n.quiet
	n.Conn, err = n.fleet.opt.Dialer.Dial(ctx, target)
	if err != nil {
		return err
	}
	if !n.Log.off() {
		n.Conn = loggedConn{n.Conn, n.Log}
	}
	n.Runner = connect.Runner(n.Conn, n.Host)
	return nil
}

// Reconnect replaces a connection that is lost.
func (n *Node) Reconnect(ctx context.Context) error {
	n.Disconnect()
	return n.Connect(ctx)
}

// Disconnect closes the node's connection as soon as it is no longer needed: of a thousand nodes only
// those in the window have one.
func (n *Node) Disconnect() {
	if n.Conn != nil {
		n.Conn.Close()              //nolint:errcheck // nothing is under way
		n.Conn, n.Runner = nil, nil // drops their memory, too
	}
}

// HoldsLock reports whether an agent on the node holds the lock.
func (n *Node) HoldsLock() bool { return n.Agent != nil }

// Release ends the agent on the node, if there is one.
func (n *Node) Release() {
	if n.Agent != nil {
		n.Agent.End()
		n.Agent = nil
	}
}

// InboxPath returns the path of a file in the inbox of the agent.
func (n *Node) InboxPath(file string) string { return path.Join(n.Inbox, filepath.Base(file)) }

// Failed reports whether a step failed on the node, or no connection was possible.
func (n *Node) Failed() bool { return n.Status == report.Failed || n.Status == report.Unreachable }

// Note prints a message about the node. Equal messages about several nodes become one line.
func (n *Node) Note(format string, args ...any) {
	n.fleet.progress.note(n, n.hide(nodeerr.Messagef(format, args...)))
}

// Warn is Note for a warning.
func (n *Node) Warn(format string, args ...any) {
	n.fleet.progress.warn(n, n.hide(nodeerr.Messagef(format, args...)))
}

// hide hides the passwords of the inventory in a message: a node may repeat what it got.
func (n *Node) hide(m nodeerr.Message) nodeerr.Message {
	if n.Log == nil || n.Log.shown == nil {
		return m
	}
	hide := n.Log.shown().Hide
	return nodeerr.Message{Text: hide(m.Text), Common: hide(m.Common)}
}

// AddSent adds bytes to the display of the progress.
func (n *Node) AddSent(bytes int64) { n.fleet.progress.sent.Add(bytes) }

// maxError bounds the error text of a node in the report, in bytes.
const maxError = 4 << 10

// Report returns the node's outcome so far.
func (n *Node) Report() report.Node {
	r := report.Node{
		Name: n.Host.Name, Status: n.Status, Step: n.Step, Seconds: n.Seconds, Log: n.Log.Path(),
		Differs: []string{}, Notes: []string{}, ExtraWheels: []string{}, Serial: n.serial,
		Facts: n.Facts, Changed: n.Changed, StateUnknown: n.StateUnknown || n.Facts == nil, Sent: n.Sent,
	}
	if n.Err != nil {
		m := n.hide(nodeerr.From(n.Err))
		r.Error, r.CauseText, r.Hint = ui.ShortenMiddle(ui.OneLine(m.Text), maxError), m.Common, fault.Hint(n.Err)
	}
	return r
}
