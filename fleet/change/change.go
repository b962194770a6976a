// Package change holds what packages deploy and envdeploy share: it changes nodes batch by batch, waits until an
// environment is idle, locks it through an agent on the node, resumes interrupted transfers, and undoes failed changes.
// Package deploy changes the DeepSpeed wheel of a node, package envdeploy its complete environment.
package change

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/relay"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/internal/nodeerr"
	"github.com/dsbuild/dsbuild/release/signing"
)

// Rules are the settings shared by all changes.
type Rules struct {
	DryRun    bool            // write nothing, also not to find out which nodes share a directory
	Force     bool            // also change nodes that already have the result
	InUse     InUse           // the policy for nodes whose environment is in use
	Serial    fleet.Serial    // batch sizes; by default all nodes are one batch
	Gate      bool            // stop after the first batch, until PassGate
	Bandwidth *rate.Limiter   // limit in bytes per second, shared by all uploads; optional
	Relay     relay.Options   // how nodes relay files to each other
	Policy    *signing.Policy // which wheels the nodes accept; by default all
	LockWait  time.Duration   // how long an agent waits for the lock; by default lockWait
}

// Timeouts of the steps.
const (
	ProbeLimit   = 2 * time.Minute
	PutLimit     = 30 * time.Minute
	InstallLimit = 15 * time.Minute
	VerifyLimit  = 15 * time.Minute
	RecordLimit  = 5 * time.Minute
	GateLimit    = 15 * time.Minute
	UndoLimit    = 2 * time.Minute
	ProgramGrace = 30 * time.Second // time for the node to stop a hanging pip or uv and report it
)

// Run is one change of the nodes of an inventory, such as a deploy.
type Run struct {
	Fleet *fleet.Fleet
	Relay *relay.Relay // sends the registered files; if nil, the controller sends all
	Rules Rules
	// Accepted holds the provenance and signatures of each accepted wheel, by the wheel's SHA-256.
	Accepted map[string]signing.Signed
	// AgentFindsJobs reports whether the agent accepts the request users. Otherwise a separate program finds the
	// processes that use an environment.
	AgentFindsJobs bool

	by      string // the user, for journals
	rest    *batches
	waiting []string     // the changed nodes of the first batch, while the run waits for its gate
	batch   []string     // all nodes of that batch
	gate    *report.Gate // the outcome of the gate
	adopted bool         // the survey has ended, with a plan
}

// NewRun prepares a run without contacting a node.
func NewRun(opt fleet.Options, rules Rules) *Run {
	return &Run{
		Fleet: fleet.New(opt), Relay: relay.New(rules.Relay), Rules: rules,
		Accepted: map[string]signing.Signed{}, by: opt.By,
	}
}

// Close closes every connection, and the dialer.
func (r *Run) Close() {
	r.Relay.Close()
	r.Fleet.Close()
}

// Accept checks the wheel in a file, whose SHA-256 is sum, against the policy, unless it was accepted before. Only
// accepted wheels are sent to nodes.
func (r *Run) Accept(file, sum string) error {
	if _, done := r.Accepted[sum]; done {
		return nil
	}
	signed, err := r.Rules.Policy.Accept(file, sum, time.Now())
	if err == nil {
		r.Accepted[sum] = signed
	}
	return err
}

// Adopt ends the survey: it assigns the nodes of a plan to batches and marks the refused nodes.
func (r *Run) Adopt(plan Decisions) {
	r.adopted = true
	plan.AssignGroups(r.Rules.Serial)
	for i, n := range r.Fleet.Nodes {
		switch p := plan[i]; p.Action {
		case Absent:
		case Refuse:
			n.Status, n.Step = report.Refused, "fit"
			why := nodeerr.Message{Text: strings.Join(p.Reasons, "; "), Common: p.Common()}
			n.Err = fault.AddHint(nodeerr.Error(why), p.Hint)
		default:
			n.Step = "fit"
		}
	}
}

// Work is what a change does on one node.
type Work struct {
	fleet.Task
	Plan  *Decision
	Files []Upload // the files to send, if the node installs
}

// Upload is a file to send to a node.
type Upload struct {
	fleet.LocalFile
	NoRelay bool // only the controller may send it
}

// batches are the changes that a run has still to make.
type batches struct {
	title     string
	work      []Work
	unchanged []int // nodes that need no change; the first batch verifies them
	rollout   *fleet.Rollout
	start     time.Time
}

// Change takes nodes through their work, batch by batch. work is in inventory order. Nodes that share an environment
// follow the node that changes it; nodes that need no change are verified with the first batch. With Rules.Gate it
// returns after the first batch (AtGate), and PassGate continues.
func (r *Run) Change(ctx context.Context, title string, work []Work) {
	if !r.adopted {
		return // the survey was interrupted
	}
	plan := Decisions(lists.Map(work, func(w Work) *Decision { return w.Plan }))
	r.rest = &batches{title: title, work: work, rollout: plan.rollout(r.Rules.Serial), start: time.Now()}
	for i, w := range work {
		if w.Plan.Action == UpToDate || w.Plan.Action == Leave {
			r.rest.unchanged = append(r.rest.unchanged, i)
		}
		w.Plan.sharing = lists.Map(plan.membersOf(i)[1:], func(i int) *fleet.Node { return work[i].Node })
		for _, o := range w.Plan.outside {
			w.Plan.sharing = append(w.Plan.sharing, o.Node)
		}
	}
	r.changeRest(ctx)
}

// changeRest changes the remaining batches, up to a gate.
func (r *Run) changeRest(ctx context.Context) {
	rest, work := r.rest, r.rest.work
	bytes := int64(0)
	for _, w := range work {
		if w.Plan.Action == Install && w.Node.Status == report.Skipped {
			for _, f := range w.Files {
				bytes += f.Size
			}
		}
	}
	defer r.Fleet.Show(rest.title, rest.rollout.Left()+len(rest.unchanged), bytes)()
	for group := r.Fleet.NextGroup(rest.rollout); len(group)+len(rest.unchanged) > 0; group = r.Fleet.NextGroup(rest.rollout) {
		leaders := lists.Map(rest.unchanged, func(i int) fleet.Task { return work[i].Task })
		rest.unchanged = nil
		var followers []fleet.Task
		files := map[fleet.LocalFile][]*fleet.Node{}
		for _, i := range group {
			w := work[i]
			w.Plan.deadline = time.Now().Add(r.Rules.InUse.Wait)
			if w.Plan.WaitsForIdle { // counted from the start of the change
				w.Plan.deadline = rest.start.Add(r.Rules.InUse.Wait)
			}
			if w.Plan.Action == Shared {
				followers = append(followers, w.Task)
				continue
			}
			leaders = append(leaders, w.Task)
			for _, f := range w.Files {
				if w.Plan.Action == Install && !f.NoRelay {
					files[f.LocalFile] = append(files[f.LocalFile], w.Node)
				}
			}
		}
		for file, nodes := range files {
			if r.Relay.Register(file, nodes) {
				r.Fleet.RaiseForks(len(nodes))
			}
		}
		r.Fleet.RunSteps(ctx, leaders, r.Fleet.StopWhen(len(r.Fleet.Failed())))
		r.Fleet.RunSteps(ctx, followers, r.Fleet.StopWhen(len(r.Fleet.Failed())))
		if !r.Fleet.FinishGroup(ctx, rest.rollout, group) || r.stopAtGate(ctx, group) {
			return
		}
	}
}

// stopAtGate reports whether the run waits for its gate: after the first batch with an ok node.
func (r *Run) stopAtGate(ctx context.Context, group []int) bool {
	if !r.Rules.Gate || r.gate != nil || ctx.Err() != nil {
		return false
	}
	r.waiting, r.batch = nil, nil
	for _, i := range group {
		n := r.Fleet.Nodes[i]
		r.batch = append(r.batch, n.Host.Name)
		if n.Status == report.OK {
			r.waiting = append(r.waiting, n.Host.Name)
		}
	}
	return len(r.waiting) > 0
}

// AtGate returns the changed nodes of the first batch, and all nodes of it, if the run waits for its gate; else none.
func (r *Run) AtGate() (changed, batch []string) { return r.waiting, r.batch }

// PassGate continues a run that waits for its gate. If the gate failed, the nodes of further batches are skipped.
func (r *Run) PassGate(ctx context.Context, gate *report.Gate) {
	r.gate, r.waiting = gate, nil
	switch {
	case gate.Error != "" && ctx.Err() == nil:
		r.Fleet.SkipRest(r.rest.rollout, fmt.Errorf("skipped: %s", gate.Text()))
	case r.rest.rollout.Left() > 0: // after an interruption it starts no node
		r.changeRest(ctx)
	}
}

// AddOutcome adds to a report what is not about one node.
func (r *Run) AddOutcome(to *report.Report) { to.Gate = r.gate }

// NodeReport returns the part of a node's report that all changes share.
func (r *Run) NodeReport(n *fleet.Node, p *Decision) report.Node {
	part := n.Report()
	part.From, part.Unfit = r.Relay.Sources(n, n.Sent), p.Unfit
	return part
}

// JournalEntry holds the fields of a node's journal that all changes share.
type JournalEntry struct {
	Do   string `json:"do"` // deploy, rollback, env deploy or env rollback
	Run  string `json:"run"`
	At   string `json:"at"`
	By   string `json:"by"`
	Node string `json:"node"`
}

// NewEntry returns the journal entry for a change of a node.
func (r *Run) NewEntry(n *fleet.Node, do string) JournalEntry {
	return JournalEntry{do, r.Fleet.Run, node.Now(), r.by, n.Host.Name}
}
