package change

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/node/agent"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/release/signing"
)

// Kind is what is special for one node in one kind of change: the wheel of DeepSpeed or a whole environment.
type Kind interface {
	// Probe gathers the facts of the node.
	Probe(ctx context.Context) error
	// Steps returns the steps of the node's action. If one fails, the agent undoes the change.
	Steps() []fleet.Step
	// Uploads returns the files to send to a node that installs.
	Uploads() []Upload
	// Users finds the processes that use the environment now.
	Users(ctx context.Context) (node.Processes, error)
	// Script is the agent with a request, which holds req.
	Script(req Request) node.Script
	// Found notes the state that the agent found.
	Found(b Begun)
	// Undone notes the state after an undo that answered is or failed with err, and describes it.
	Undone(is Undone, err error) error
}

// NodeRun is one node on its way through a change.
type NodeRun struct {
	*fleet.Node
	Session *agent.Session // nil unless the agent runs there
	Changed bool           // dsbuild changed it
	Unseen  bool           // the state of the node is not known
	Sent    int64          // bytes of the files that have arrived

	run       *Run
	kind      Kind
	common    *Decision
	python    string    // runs the agent
	inbox     string    // the folder for uploads of the agent
	waitUntil time.Time // deadline of the wait for processes to end
}

// Expected is a file that the agent expects.
type Expected struct {
	Name    string `json:"name"`
	SHA256  string `json:"sha256"`
	Package string `json:"package"` // of an environment; "" for the installer, which is no part of it
	Version string `json:"version"`
}

// Request is the first input of the agent.
type Request struct {
	Files []Expected `json:"files"`
	Look  bool       `json:"look"` // no files: report the current state and end
	Run   string     `json:"run"`
	Label string     `json:"label"` // the node's name, as part of a file name
	By    string     `json:"by"`
	LockS float64    `json:"lock_s"`
}

// Begun is the first answer of the agent: the state once it holds the lock. Another run may have changed it since
// the probe.
type Begun struct {
	Inbox    string   `json:"inbox"`   // private folder for uploads
	Arrived  []string `json:"arrived"` // names of files in the inbox that need not be sent again
	Repaired bool     `json:"repaired"`
	Run      string   `json:"run"` // the run that made the last recorded change

	Now      *node.Installed `json:"now"` // a wheel: the DeepSpeed that is there
	Previous *node.Previous  `json:"previous"`

	Have    []string     `json:"have"` // an environment: the sha256 of files that the node keeps
	Current *Environment `json:"current"`
	Before  *Environment `json:"before"`
}

// Environment is an environment on a node.
type Environment struct {
	Name      string          `json:"name"` // of its folder
	Digest    string          `json:"digest"`
	Python    string          `json:"python"`
	DeepSpeed *report.Version `json:"deepspeed"`
}

// Undone is the answer of the agent to undo.
type Undone struct {
	Before   *report.Version `json:"before"`   // a wheel: the version there now
	Current  *Environment    `json:"current"`  // an environment: the one there now
	Recorded bool            `json:"recorded"` // the change was already final and stays
	Finished bool            `json:"finished"` // the next run has nothing left to repair
}

// lockWait is how long an agent waits for the lock. It covers an agent that still cleans up
// after a killed driver.
const lockWait = 20 * time.Second

// Begin starts the agent, which takes the lock and repairs what an interrupted run has left. The agent outlives
// ctx, so that the driver can still ask it to undo. With again set it waits longer for the lock: the agent before
// it may not know yet that its connection is gone. With look set, the agent only reports the state, and ends.
func (n *NodeRun) Begin(ctx context.Context, files []Expected, again, look bool) (Begun, error) {
	wait := lockWait
	if again {
		wait += agent.Silence
	}
	script := n.kind.Script(Request{
		Files: append([]Expected{}, files...), Look: look, // files is not null
		Run: n.run.Fleet.Run, Label: FileLabel(n.Host.Name), By: n.run.by, LockS: wait.Seconds(),
	})
	var b Begun
	s, err := agent.Start(ctx, n.Runner, agent.Options{Script: script, Event: ignoreOutput, Asked: n.Log.Order}, &b)
	if err != nil {
		// Another deploy is changing the state that the probe saw.
		refused := (*agent.Failure)(nil)
		n.Unseen = n.Unseen || errors.As(err, &refused) && refused.Busy
		return Begun{}, n.withAdvice(err)
	}
	if look {
		s.End()
		return b, nil
	}
	n.Session, n.python, n.inbox, n.Unseen = s, script.Python, b.Inbox, false
	n.kind.Found(b)
	if b.Repaired {
		n.Warn("an earlier run was interrupted; the node has repaired what it left")
	}
	return b, nil
}

// ignoreOutput takes the output of a program on the node, which the agent sends before its
// answer; the log already has it.
func ignoreOutput(m json.RawMessage) error {
	var got struct {
		Pip []string `json:"pip"`
	}
	return node.Decode(m, &got)
}

// Ask sends an order to the agent, waits for the answer and decodes it into into, unless into is nil.
func (n *NodeRun) Ask(ctx context.Context, order agent.Order, into any) error {
	return n.withAdvice(n.Session.Ask(ctx, order, into))
}

// withAdvice adds the hint to the failure of an order.
func (n *NodeRun) withAdvice(err error) error {
	var f *agent.Failure
	if !errors.As(err, &f) {
		return err
	}
	return node.WithAdvice(f, f.Advice, n.Host.Python)
}

// AskKept lets a policy judge the version that the agent would bring back, and returns the digest of the
// files that it has accepted, which the agent compares again: "" if there is no policy.
func (n *NodeRun) AskKept(ctx context.Context) (digest string, err error) {
	if n.run.Rules.Policy == nil {
		return "", nil
	}
	var kept struct {
		signing.Kept
		Signed [][]byte `json:"signed"` // the node's file, in pieces; none: there is no file
		Digest string   `json:"digest"`
	}
	if err := n.Ask(ctx, agent.Order{"do": "kept"}, &kept); err != nil {
		return "", err
	}
	if json.Unmarshal(slices.Concat(kept.Signed...), &kept.Kept.Signed) != nil {
		kept.Kept.Signed = nil // it counts as none
	}
	return kept.Digest, n.run.Rules.Policy.CheckKept(kept.Kept, time.Now())
}

// HoldsLock reports whether the agent holds the lock. Put releases a node that has the result already.
func (n *NodeRun) HoldsLock() bool { return n.Session != nil }

// Release ends the agent on the node, if there is one.
func (n *NodeRun) Release() {
	if n.Session != nil {
		n.Session.End()
		n.Session = nil
	}
}

// restart ends the agent and replaces the connection.
func (n *NodeRun) restart(ctx context.Context) error {
	n.Release()
	return n.Reconnect(ctx)
}

// putRetries is how often PutStep tries again to send the files if the connection breaks.
const putRetries = 4

// PutStep is the step that takes the lock and sends files by put. If the connection breaks, it connects again, and
// then puts again: nothing has been changed by then, and the files that have arrived stay. again tells put that it
// is not the first try.
func (n *NodeRun) PutStep(name string, put func(ctx context.Context, again bool) error) fleet.Step {
	return fleet.Step{Name: name, Limit: n.run.Fleet.Limit(PutLimit), Do: func(ctx context.Context) error {
		for retry := 0; ; retry++ {
			err := put(ctx, retry > 0)
			if err == nil || retry == putRetries || !errors.Is(err, remote.ErrLost) || ctx.Err() != nil {
				return err
			}
			n.Note("%v; dsbuild reconnects and continues the transfer", err)
			if err := n.restart(ctx); err != nil {
				return err
			}
		}
	}}
}

// PutFile sends a file to the inbox, unless the node has it.
func (n *NodeRun) PutFile(ctx context.Context, f fleet.LocalFile, has bool, b Begun) error {
	if has || slices.Contains(b.Arrived, filepath.Base(f.Path)) {
		n.AddSent(f.Size)
		n.run.Relay.Skip(f.SHA256, n.Node)
		return nil
	}
	return n.Send(ctx, f, n.python, n.InboxPath(f.Path))
}

// TidyStep is the step that removes the files of an interrupted run from a node that needs no other change.
func (n *NodeRun) TidyStep(needed func() bool) fleet.Step {
	return fleet.Step{Name: "put", Limit: n.run.Fleet.Limit(PutLimit), Needed: needed, Do: func(ctx context.Context) error {
		_, err := n.Begin(ctx, nil, false, false)
		n.Release()
		if errors.As(err, new(*agent.Failure)) && !n.Unseen {
			n.Warn("the files of an interrupted run stay: %v", err)
			return nil
		}
		return err // if another deploy is running, the files are its own
	}}
}

// end is the end of a node's steps: it undoes an unfinished change, ends the agent and closes the
// connection.
func (n *NodeRun) end(ctx context.Context, err error) {
	defer n.HangUp()
	if err != nil {
		n.undo(ctx)
		return
	}
	n.Status = report.OK
	n.Release()
}

// hurriedLimit is how long dsbuild tries to reach a lost node again after the user has
// interrupted the run.
const hurriedLimit = 15 * time.Second

// undo takes back the change that was begun on a node, even after ctx has ended, and finds out the state there.
func (n *NodeRun) undo(ctx context.Context) {
	if n.Session == nil {
		return
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), UndoLimit)
	defer cancel()
	var is Undone
	err := n.Ask(limited, agent.Order{"do": "undo"}, &is)
	n.Release()
	if err != nil && n.Step == "put" {
		return // nothing was changed yet; the next run uses the files that have arrived
	}
	if err != nil {
		if ctx.Err() != nil {
			var hurry context.CancelFunc
			limited, hurry = context.WithTimeout(limited, hurriedLimit)
			defer hurry()
		}
		if seen, inspectErr := n.inspectAgain(limited, err); inspectErr == nil {
			is, err = seen, nil
		}
	}
	try, after := fault.Hint(n.Err), n.kind.Undone(is, err)
	if err != nil {
		n.Unseen, try = true, strings.TrimPrefix(try+"; run it again once the node answers", "; ")
	}
	n.Log.Line("", after.Error())
	n.Err = fault.AddHint(fmt.Errorf("%w; %w", n.Err, after), try)
}

// inspectAgain finds out the state of a node after its agent was lost or could not undo. It starts
// another agent, over a new connection if needed. That agent waits for the end of the first one, and
// repairs what it left.
func (n *NodeRun) inspectAgain(ctx context.Context, lost error) (Undone, error) {
	if errors.Is(lost, remote.ErrLost) || errors.Is(n.Err, remote.ErrLost) { // the agent may have ended before the connection was lost
		if err := n.restart(ctx); err != nil {
			return Undone{}, err
		}
	}
	b, err := n.Begin(ctx, nil, false, true)
	is := Undone{Current: b.Current, Finished: true, Recorded: b.Run == n.run.Fleet.Run}
	if b.Now != nil {
		is.Before = &report.Version{Version: b.Now.Version, SHA256: b.Now.SHA256}
	}
	return is, err
}

// Report is the common part of the node's report.
func (n *NodeRun) Report() report.Node {
	r := n.Node.Report()
	r.Changed, r.Unseen, r.Sent, r.From = n.Changed, n.Unseen, n.Sent, n.run.Relay.Sources(n.Node, n.Sent)
	if n.common != nil {
		r.Unfit = n.common.Unfit
	}
	return r
}

// JournalEntry is the part of a line in a node's journal that all changes have.
type JournalEntry struct {
	Do   string `json:"do"` // deploy, rollback, env deploy or env rollback
	Run  string `json:"run"`
	At   string `json:"at"`
	By   string `json:"by"`
	Node string `json:"node"`
}

// NewEntry describes the change of a node, for the journal.
func (n *NodeRun) NewEntry(do string) JournalEntry {
	return JournalEntry{do, n.run.Fleet.Run, time.Now().UTC().Format(time.RFC3339), n.run.by, n.Host.Name}
}

// FileLabel turns a node's name into a part of a file name.
func FileLabel(name string) string {
	s := strings.Map(func(r rune) rune {
		if r == '-' || r == '.' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '_'
	}, name)
	return s[:min(len(s), 64)]
}
