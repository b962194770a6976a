package deploy

import (
	"context"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/dsbuild/dsbuild/deploy/changes"
	"github.com/dsbuild/dsbuild/deploy/wheels"
	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/relay"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/cause"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/signing"
	"github.com/dsbuild/dsbuild/verify"
	"github.com/dsbuild/dsbuild/wheel"
)

// Options are the resolved settings of a deploy.
type Options struct {
	fleet.Options

	Wheels          []wheels.Wheel
	Serial          fleet.Serial // the groups in which nodes are changed; nil: all nodes at once
	Force           bool
	Bundle          *wheel.Bundle   // wheelhouse for requirements; nil: a node that lacks one is refused
	Index           bool            // meet requirements from each node's own index
	InUse           InUse           // the policy for nodes whose environment is in use
	DryRun          bool            // write nothing: without a proof, dsbuild believes nodes that claim to share an environment
	Bandwidth       *rate.Limiter   // bytes per second of all uploads; nil: no limit
	Policy          *signing.Policy // the wheels that may come to nodes; nil: all
	Relay           relay.Options   // how nodes pass files on to each other
	Verify          verify.Level
	VerifyUnchanged verify.Level // the level for nodes that dsbuild does not change; "" means Verify
	// PipWheel returns the path of a pip wheel for a Python X.Y. dsbuild sends it to nodes whose
	// environment has no pip.
	PipWheel func(ctx context.Context, python string) (string, error)
}

// Deployment is one deploy or rollback. The caller calls Survey, SurveyRollback, or Probe and
// Assign; then Apply, then Close.
type Deployment struct {
	opt      Options
	fleet    *fleet.Fleet
	transfer changes.Transfer
	nodes    []*nodeRun
	plan     Plan

	accepted map[string]signing.Signed // what lies beside each accepted wheel, by the wheel's sha256
	pips     map[string]wheels.File    // pip wheels, by Python X.Y
	installs int                       // number of nodes that Apply installs on
}

// New prepares a deploy; it contacts no node yet.
func New(opt Options) *Deployment {
	d := &Deployment{
		opt: opt, fleet: fleet.New(opt.Options), accepted: map[string]signing.Signed{}, pips: map[string]wheels.File{},
		transfer: changes.NewTransfer(opt.Dialer, opt.Relay, opt.Bandwidth),
	}
	for _, n := range d.fleet.Nodes {
		d.nodes = append(d.nodes, &nodeRun{Node: n, run: d})
	}
	return d
}

// Close closes every connection, and the dialer.
func (d *Deployment) Close() {
	d.transfer.Relay.Close()
	d.fleet.Close()
}

// Survey is the first phase: dsbuild connects to every node, probes it and decides its action. It
// changes no environment and sends no wheel. It first judges the wheels. Where nodes claim that they share an environment,
// dsbuild writes a file with one word there for a moment to prove it.
func (d *Deployment) Survey(ctx context.Context) (Plan, error) {
	if err := d.acceptOffered(); err != nil {
		return Plan{}, err
	}
	if _, err := d.Probe(ctx); err != nil {
		return Plan{}, err
	}
	return d.decide(ctx, func(known []ProbeResult) (Plan, error) { return NewPlan(known, d.opt.Wheels, d.planOptions(ctx)) })
}

func (d *Deployment) planOptions(ctx context.Context) PlanOptions {
	return PlanOptions{Force: d.opt.Force, Bundle: d.opt.Bundle, Index: d.opt.Index, NoPip: d.fetchPips(ctx)}
}

// SurveyRollback is Survey for a rollback to the version before the last deploy. It needs no
// wheels.
func (d *Deployment) SurveyRollback(ctx context.Context) (Plan, error) {
	if _, err := d.Probe(ctx); err != nil {
		return Plan{}, err
	}
	return d.decide(ctx, func(known []ProbeResult) (Plan, error) { return NewRollbackPlan(known), nil })
}

// probeLimit is the time limit of a probe.
const probeLimit = 2 * time.Minute

// Probe connects to every node and gathers its facts. A second call probes again, over the open
// connections, or over new ones where those have ended. It does not retry a node that could not
// be reached before.
func (d *Deployment) Probe(ctx context.Context) ([]ProbeResult, error) {
	var nodeSteps []fleet.NodeSteps
	for _, u := range d.nodes {
		if u.Err == nil {
			nodeSteps = append(nodeSteps, fleet.NodeSteps{Node: u.Node, Steps: []fleet.Step{
				{Name: "probe", Limit: d.fleet.Limit(probeLimit), Do: u.probe, ReadOnly: true}, // gathers the facts
			}})
		}
	}
	d.fleet.ConnectAndRun(ctx, "surveying", nodeSteps, d.fleet.StopWhen(len(d.nodes)-len(nodeSteps)))
	if ctx.Err() != nil {
		return nil, d.fleet.Abandon(ctx)
	}
	return d.probeResults(), nil
}

// probeResults returns the results of the probe.
func (d *Deployment) probeResults() []ProbeResult {
	nodes := make([]ProbeResult, len(d.nodes))
	for i, u := range d.nodes {
		nodes[i] = ProbeResult{Name: u.Host.Name, Python: u.Host.Python, Err: u.Err}
		if u.facts != nil {
			nodes[i].Facts = *u.facts
		}
	}
	return nodes
}

// decide ends the first phase: newPlan makes the plan, and every node gets its part of it.
func (d *Deployment) decide(ctx context.Context, newPlan func([]ProbeResult) (Plan, error)) (Plan, error) {
	known := d.probeResults()
	if !d.opt.DryRun {
		d.proveSharing(ctx, known)
	}
	plan, err := newPlan(known)
	if ctx.Err() != nil { // the plan may rest on a download that was interrupted
		return Plan{}, d.fleet.Abandon(ctx)
	}
	if err != nil {
		return Plan{}, err
	}
	d.refuseUnaccepted(&plan)
	plan.ApplyInUse(known, d.opt.InUse)
	plan.AssignGroups(d.opt.Serial)
	d.plan = plan
	for i, u := range d.nodes {
		u.plan = plan.Nodes[i]
		switch u.plan.Action {
		case Refuse:
			u.Status, u.Step = report.Refused, "fit"
			u.Err = fault.AddHint(cause.Error(cause.Message{Text: strings.Join(u.plan.Reasons, "; "), Cause: u.plan.Cause()}), u.plan.Hint)
		case Install, Rollback, UpToDate, Shared:
			u.Step = "fit"
		}
	}
	return plan, nil
}

// Apply is the second phase: it carries out the plan of the survey. The report is complete even if
// ctx ends early.
func (d *Deployment) Apply(ctx context.Context) *report.Report {
	rollout := newRollout(d.plan.Nodes, d.opt.Serial)
	var unchanged []int
	for i, u := range d.nodes {
		if u.plan.Action == UpToDate {
			unchanged = append(unchanged, i)
		}
	}
	hide := d.showProgress(rollout.Total() + len(unchanged))
	defer hide()
	start := time.Now()
	d.fleet.ChangeGroups(ctx, rollout, unchanged, func(group, unchanged []int) {
		d.changeGroup(ctx, d.members(group), d.members(unchanged), start)
	})
	return d.Report()
}

// showProgress displays the progress of Apply on a number of nodes.
func (d *Deployment) showProgress(nodes int) (hide func()) {
	title := "deploying"
	var bytes int64
	for _, u := range d.nodes {
		if u.plan.Action == Install {
			d.installs++
		}
		if u.plan.Action == Rollback {
			title = "rolling back"
		}
	}
	for _, u := range d.nodes {
		if u.plan.Action == Install {
			for _, f := range u.uploads() {
				bytes += f.Size
			}
		}
	}
	return d.fleet.Show(title, nodes, bytes)
}

// announce tells a Broadcaster, or else the relay, which nodes of a group get the same files.
func (d *Deployment) announce(group []*nodeRun) {
	nodes := make(map[relay.File][]*fleet.Node)
	for _, u := range group {
		if u.plan.Action == Install {
			for _, f := range u.uploads() {
				nodes[relay.File(f)] = append(nodes[relay.File(f)], u.Node)
			}
		}
	}
	d.transfer.Relay.AnnounceAll(d.fleet, d.opt.Dialer, nodes)
}

// changeGroup changes a group of nodes, and verifies along with it the nodes in unchanged. Nodes
// that share an environment come after the node that changes it.
func (d *Deployment) changeGroup(ctx context.Context, group, unchanged []*nodeRun, start time.Time) {
	var first, sharing []*nodeRun
	for _, u := range group {
		u.waitUntil = time.Now().Add(d.opt.InUse.Wait)
		if u.plan.waits { // counted from the start of Apply
			u.waitUntil = start.Add(d.opt.InUse.Wait)
		}
		if u.plan.Action == Shared {
			sharing = append(sharing, u)
		} else {
			first = append(first, u)
		}
	}
	d.announce(first)
	d.runSteps(ctx, append(unchanged, first...))
	d.runSteps(ctx, sharing)
}

// runSteps takes nodes through their steps, and starts no further node once too many have failed.
func (d *Deployment) runSteps(ctx context.Context, nodes []*nodeRun) {
	nodeSteps := make([]fleet.NodeSteps, len(nodes))
	for i, u := range nodes {
		nodeSteps[i] = fleet.NodeSteps{Node: u.Node, Steps: u.steps(), End: u.end}
	}
	d.fleet.RunSteps(ctx, nodeSteps, d.fleet.StopWhen(len(d.fleet.Failed())))
}

// Report returns the report of the run so far.
func (d *Deployment) Report() *report.Report {
	r := report.Empty(d.opt.Command)
	r.Mixed = d.plan.Assigned || wheels.AnyStable(d.plan.Wheels)
	var seen []report.ProbedNode
	for _, u := range d.nodes {
		var w *report.Wheel
		kind := ""
		if u.plan.Wheel != nil {
			w = u.plan.Wheel.Ref()
			if u.facts != nil {
				kind = u.plan.Wheel.Kind(*u.facts)
			}
		}
		r.Add(u.report(), w)
		if u.facts != nil {
			seen = append(seen, report.ProbedNode{Name: u.Host.Name, Facts: u.currentFacts(), Kind: kind})
		}
	}
	r.Differences = report.Compare(seen, r.Mixed)
	r.Complete()
	return r
}

// broadcasts reports whether the dialer brings a file to all nodes at once.
func (d *Deployment) broadcasts() bool {
	_, ok := d.opt.Dialer.(remote.Broadcaster)
	return ok
}

// members returns the nodes at the given indexes.
func (d *Deployment) members(at []int) []*nodeRun {
	nodes := make([]*nodeRun, len(at))
	for i, place := range at {
		nodes[i] = d.nodes[place]
	}
	return nodes
}
