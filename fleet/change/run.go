package change

import (
	"context"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/relay"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/cause"
	"github.com/dsbuild/dsbuild/internal/fault"
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
	Fleet    *fleet.Fleet
	Relay    *relay.Relay              // sends the files that it announced; nil: the driver sends all
	Accepted map[string]signing.Signed // what lies beside each accepted wheel, by the wheel's sha256

	Rules Rules
	by    string
	title string
	nodes []*NodeRun
}

// NewRun prepares a run; it contacts no node yet. title is what its progress display says. newKind makes
// what is special for a node, and is called once for each.
func NewRun(opt fleet.Options, rules Rules, title string, newKind func(*NodeRun) Kind) *Run {
	r := &Run{Fleet: fleet.New(opt), Relay: relay.New(rules.Relay), Accepted: map[string]signing.Signed{}, Rules: rules, by: opt.By, title: title}
	for _, n := range r.Fleet.Nodes {
		u := &NodeRun{Node: n, run: r}
		u.kind = newKind(u)
		r.nodes = append(r.nodes, u)
	}
	return r
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

// ProbeNodes connects to every node and probes it. A second call probes again, over the open connections or
// over new ones where those have ended. It does not retry a node that could not be reached before.
func (r *Run) ProbeNodes(ctx context.Context) error {
	var nodeSteps []fleet.NodeSteps
	for _, n := range r.nodes {
		if n.Err == nil {
			nodeSteps = append(nodeSteps, fleet.NodeSteps{Node: n.Node, Steps: []fleet.Step{
				{Name: "probe", Limit: r.Fleet.Limit(ProbeLimit), Do: n.kind.Probe, ReadOnly: true},
			}})
		}
	}
	r.Fleet.ConnectAndRun(ctx, "surveying", nodeSteps, r.Fleet.StopWhen(len(r.nodes)-len(nodeSteps)))
	if ctx.Err() != nil {
		return r.Fleet.Abandon(ctx)
	}
	return nil
}

// Adopt ends the first phase: every node gets its part of the plan.
func (r *Run) Adopt(plans Decisions) {
	plans.AssignGroups(r.Rules.Serial)
	for i, n := range r.nodes {
		n.common = plans[i]
		switch n.common.Action {
		case Absent:
		case Refuse:
			n.Status, n.Step = report.Refused, "fit"
			n.Err = fault.AddHint(cause.Error(cause.Message{Text: strings.Join(n.common.Reasons, "; "), Cause: n.common.Cause()}), n.common.Hint)
		default:
			n.Step = "fit"
		}
	}
}

// Change is the second phase: it carries out the plan that was adopted.
func (r *Run) Change(ctx context.Context) {
	plans, title, bytes := Decisions{}, r.title, int64(0)
	var unchanged []int
	for i, n := range r.nodes {
		plans = append(plans, n.common)
		switch n.common.Action {
		case UpToDate:
			unchanged = append(unchanged, i)
		case Rollback:
			title = "rolling back"
		case Install:
			for _, f := range n.kind.Uploads() {
				bytes += f.Size
			}
		}
	}
	rollout := plans.rollout(r.Rules.Serial)
	defer r.Fleet.Show(title, rollout.Total()+len(unchanged), bytes)()
	start := time.Now()
	r.Fleet.ChangeGroups(ctx, rollout, unchanged, func(group, unchanged []int) { r.changeGroup(ctx, group, unchanged, start) })
}

// changeGroup changes a group of nodes, and verifies along with it the nodes in unchanged. Nodes
// that share an environment come after the node that changes it.
func (r *Run) changeGroup(ctx context.Context, group, unchanged []int, start time.Time) {
	var first, sharing []*NodeRun
	for _, i := range unchanged {
		first = append(first, r.nodes[i])
	}
	files := map[fleet.LocalFile][]*fleet.Node{}
	for _, i := range group {
		n := r.nodes[i]
		n.waitUntil = time.Now().Add(r.Rules.InUse.Wait)
		if n.common.Waits { // counted from the start of the second phase
			n.waitUntil = start.Add(r.Rules.InUse.Wait)
		}
		if n.common.Action == Shared {
			sharing = append(sharing, n)
			continue
		}
		first = append(first, n)
		if n.common.Action == Install {
			for _, f := range n.kind.Uploads() {
				if !f.Alone {
					files[f.LocalFile] = append(files[f.LocalFile], n.Node)
				}
			}
		}
	}
	for file, all := range files {
		if r.Relay.Announce(file, all) {
			r.Fleet.Widen(len(all))
		}
	}
	r.runSteps(ctx, first)
	r.runSteps(ctx, sharing)
}

// runSteps takes nodes through their steps, and starts no further node once too many have failed.
func (r *Run) runSteps(ctx context.Context, nodes []*NodeRun) {
	nodeSteps := make([]fleet.NodeSteps, len(nodes))
	for i, n := range nodes {
		nodeSteps[i] = fleet.NodeSteps{Node: n.Node, Steps: n.kind.Steps(), End: n.end}
	}
	r.Fleet.RunSteps(ctx, nodeSteps, r.Fleet.StopWhen(len(r.Fleet.Failed())))
}

// Upload is a file to send to a node.
type Upload struct {
	fleet.LocalFile
	Alone bool // no other node may pass it on to this one
}

// Decisions are the common parts of a plan, in inventory order.
type Decisions []*Decision

// rollout is the order in which the nodes are changed. It leaves out nodes that are not to be changed. Nodes that
// share an environment are in the same group, the leader first.
func (p Decisions) rollout(sizes fleet.Serial) *fleet.Rollout {
	var ready, waiting [][]int
	for i, n := range p {
		switch {
		case n.Action != Install && n.Action != Rollback:
		case n.Waits:
			waiting = append(waiting, p.membersOf(i))
		default:
			ready = append(ready, p.membersOf(i))
		}
	}
	return fleet.NewRollout(ready, waiting, sizes)
}

// membersOf returns the indexes of a node to be changed and of the nodes that follow it.
func (p Decisions) membersOf(leader int) []int {
	members := []int{leader}
	for i, n := range p {
		if n.Action == Shared && n.Leader == leader {
			members = append(members, i)
		}
	}
	return members
}

// AssignGroups notes for each node the group of --serial that will change it, assuming that no group
// fails.
func (p Decisions) AssignGroups(serial fleet.Serial) {
	p.rollout(serial).AssignGroups(func(node, group int) { p[node].Serial = group })
}

// Left lists the nodes that the plan leaves as they are: refused, or not reached.
func (p Decisions) Left() []report.LeftNode {
	var left []report.LeftNode
	for _, n := range p {
		if n.Action == Refuse || n.Action == Absent {
			left = append(left, report.LeftNode{Name: n.Name, Unfit: n.Unfit, Hint: n.Hint})
		}
	}
	return left
}

// Err is the error that the report of this plan will have, as far as the plan can tell.
func (p Decisions) Err() error { return report.PlanErr(len(p), p.Left()) }
