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
	"github.com/dsbuild/dsbuild/fleet/relay"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/internal/nodeerr"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/release/signing"
)

// Rules are the settings shared by all changes.
type Rules struct {
	DryRun    bool            // write nothing, also not to find out which nodes share a directory
	Force     bool            // also change nodes that already have the result
	InUse     InUse           // the policy for nodes whose environment is in use
	Serial    fleet.Serial    // batch sizes; nil means one batch of all nodes
	Gate      *Gate           // decides after the first batch whether the others follow; nil means that they do
	Bandwidth *rate.Limiter   // bytes per second of all uploads together; nil means no limit
	Relay     relay.Options   // how nodes relay files to each other
	Policy    *signing.Policy // the wheels that nodes accept; nil means all
	LockWait  time.Duration   // how long an agent waits for the lock; zero means lockWait
}

// Gate decides after the first batch whether the others follow.
type Gate struct {
	Command string                                  // as shown to the user
	Undo    func(run string, nodes []string) string // the command that rolls them back, for hints
	// Run gets the changed nodes that are ok, and the report on the first batch. An error stops the run.
	Run func(ctx context.Context, run string, nodes []string, batch *report.Report) error
}

// Check runs the gate, and returns its outcome.
func (g *Gate) Check(ctx context.Context, run string, nodes []string, batch *report.Report) *report.Gate {
	outcome := &report.Gate{Command: g.Command, Nodes: nodes}
	if err := g.Run(ctx, run, nodes, batch); err != nil {
		outcome.Error = ui.OneLine(err.Error())
		outcome.Hint = "fix the cause and rerun, or roll the first batch back: " + g.Undo(run, nodes)
	}
	return outcome
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
	gate    *report.Gate
	adopted bool // the survey has ended, with a plan
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

// Adopt ends the survey: it assigns the nodes of a plan to batches, and marks the refused ones.
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

// Change takes nodes through their work, batch by batch. work is in inventory order. Nodes that share an environment
// follow the node that changes it; nodes that need no change are verified with the first batch. soFar returns the report,
// for the gate.
func (r *Run) Change(ctx context.Context, title string, work []Work, soFar func() *report.Report) {
	if !r.adopted {
		return // the survey was interrupted
	}
	plan := Decisions(lists.Map(work, func(w Work) *Decision { return w.Plan }))
	var unchanged []int
	bytes := int64(0)
	for i, w := range work {
		switch w.Plan.Action {
		case UpToDate, Leave:
			unchanged = append(unchanged, i)
		case Install:
			for _, f := range w.Files {
				bytes += f.Size
			}
		}
		w.Plan.sharing = lists.Map(plan.membersOf(i)[1:], func(i int) *fleet.Node { return work[i].Node })
		for _, o := range w.Plan.outside {
			w.Plan.sharing = append(w.Plan.sharing, o.Node)
		}
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
		if !r.Fleet.FinishGroup(ctx, rollout, group) || !r.passGate(ctx, rollout, group, soFar) {
			return
		}
	}
}

// passGate runs the gate after the first batch with an ok node. It reports whether the next batch may begin.
func (r *Run) passGate(ctx context.Context, rollout *fleet.Rollout, group []int, soFar func() *report.Report) bool {
	var all, ok []string
	for _, i := range group {
		n := r.Fleet.Nodes[i]
		all = append(all, n.Host.Name)
		if n.Status == report.OK {
			ok = append(ok, n.Host.Name)
		}
	}
	if r.Rules.Gate == nil || r.gate != nil || len(ok) == 0 || ctx.Err() != nil {
		return true
	}
	r.gate = r.Rules.Gate.Check(ctx, r.Fleet.Run, ok, soFar().Of(all))
	if r.gate.Error == "" || ctx.Err() != nil { // an interrupted run starts no further node
		return true
	}
	r.Fleet.SkipRest(rollout, fmt.Errorf("skipped: gate failed after the first batch (%s): %s", ui.FoldShort(ok), r.gate.Error))
	return false
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
	return JournalEntry{do, r.Fleet.Run, time.Now().UTC().Format(time.RFC3339), r.by, n.Host.Name}
}
