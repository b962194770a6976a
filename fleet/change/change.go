// Package change is what all changes of nodes have in common: it changes nodes in groups, waits until an environment
// is free, holds its lock through an agent on the node, sends files over connections that break, and undoes a change
// that failed. Packages deploy and envdeploy call it: deploy changes the wheel of DeepSpeed, envdeploy a whole
// environment. It calls neither.
package change

import (
	"context"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/relay"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/internal/nodeerr"
	"github.com/dsbuild/dsbuild/release/signing"
)

// Rules say how nodes are changed.
type Rules struct {
	DryRun    bool            // write nothing: without a proof, dsbuild believes nodes that claim to share a folder
	Force     bool            // make the change also where a node has the result already
	InUse     InUse           // the policy for nodes whose environment is in use
	Serial    fleet.Serial    // the groups in which nodes are changed; nil: all nodes at once
	Bandwidth *rate.Limiter   // bytes per second of all uploads; nil: no limit
	Relay     relay.Options   // how nodes pass files on to each other
	Policy    *signing.Policy // the wheels that may come to nodes; nil: all
	LockWait  time.Duration   // how long an agent waits for the lock; 0: lockWait
}

// The time limits of the steps.
const (
	ProbeLimit   = 2 * time.Minute
	PutLimit     = 30 * time.Minute
	InstallLimit = 15 * time.Minute
	VerifyLimit  = 15 * time.Minute
	RecordLimit  = 5 * time.Minute
	UndoLimit    = 2 * time.Minute
	ProgramGrace = 30 * time.Second // time for the node to stop a hanging pip or uv and report it
)

// Run is one change of the nodes of an inventory, such as a deploy.
type Run struct {
	Fleet *fleet.Fleet
	Relay *relay.Relay // sends the files that it announced; nil: the controller sends all
	Rules Rules
	// Accepted is what lies beside each accepted wheel, by the wheel's sha256.
	Accepted map[string]signing.Signed
	// AgentFindsJobs is true if the agent knows the order users. Otherwise a program of its own finds the processes
	// that use an environment.
	AgentFindsJobs bool

	by      string // the user, for journals
	adopted bool   // the survey has ended, with a plan
}

// NewRun prepares a run; it contacts no node yet.
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

// Accept judges the wheel in a file, whose SHA-256 is sum, by the policy, unless it has been judged. Only
// accepted wheels come to nodes.
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

// Adopt ends the survey: it assigns groups to the nodes of a plan, and notes which are refused.
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
	NoRelay bool // no other node may pass it on to this one
}

// Change takes nodes through their work, one group of --serial after the other. work is in inventory order. Nodes
// that share an environment come after the node that changes it; those that need no change are verified with the
// first group.
func (r *Run) Change(ctx context.Context, title string, work []Work) {
	if !r.adopted {
		return // the survey was interrupted
	}
	plan := Decisions(lists.Map(work, func(w Work) *Decision { return w.Plan }))
	var unchanged []int
	bytes := int64(0)
	for i, w := range work {
		switch w.Plan.Action {
		case UpToDate:
			unchanged = append(unchanged, i)
		case Install:
			for _, f := range w.Files {
				bytes += f.Size
			}
		}
		w.Plan.sharing = lists.Map(plan.membersOf(i)[1:], func(i int) *fleet.Node { return work[i].Node })
	}
	rollout := plan.rollout(r.Rules.Serial)
	defer r.Fleet.Show(title, rollout.Total()+len(unchanged), bytes)()
	start := time.Now()
	for group := r.Fleet.NextGroup(rollout); len(group)+len(unchanged) > 0; group = r.Fleet.NextGroup(rollout) {
		leaders := lists.Map(unchanged, func(i int) fleet.Task { return work[i].Task })
		unchanged = nil
		var followers []fleet.Task
		files := map[fleet.LocalFile][]*fleet.Node{}
		for _, i := range group {
			w := work[i]
			w.Plan.deadline = time.Now().Add(r.Rules.InUse.Wait)
			if w.Plan.WaitsForIdle { // counted from the start of the change
				w.Plan.deadline = start.Add(r.Rules.InUse.Wait)
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
		if !r.Fleet.FinishGroup(ctx, rollout, group) {
			return
		}
	}
}

// NodeReport is the part of a node's report that all changes have.
func (r *Run) NodeReport(n *fleet.Node, p *Decision) report.Node {
	part := n.Report()
	part.From, part.Unfit = r.Relay.Sources(n, n.Sent), p.Unfit
	return part
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
func (r *Run) NewEntry(n *fleet.Node, do string) JournalEntry {
	return JournalEntry{do, r.Fleet.Run, time.Now().UTC().Format(time.RFC3339), r.by, n.Host.Name}
}
