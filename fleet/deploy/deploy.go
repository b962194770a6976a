package deploy

import (
	"context"
	"fmt"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/fleet/verify"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/release/signing"
	"github.com/dsbuild/dsbuild/wheel"
)

// Options are the resolved settings of a deploy.
type Options struct {
	fleet.Options
	change.Rules

	Verify          verify.Level
	Wheels          []wheel.Loaded
	Bundle          *wheel.Bundle // wheelhouse for requirements; nil: a node that lacks one is refused
	VerifyUnchanged verify.Level  // the level for nodes that dsbuild does not change; "" means Verify
	// PipWheel returns the path of a pip wheel for a Python X.Y. dsbuild sends it to nodes whose
	// environment has no pip.
	PipWheel func(ctx context.Context, python string) (string, error)
}

// Deployment is one deploy or rollback. The caller calls Survey, SurveyRollback, or Probe and
// Assign; then Apply, then Close.
type Deployment struct {
	*change.Run
	opt   Options
	nodes []*nodeRun
	plan  Plan
	pips  map[string]fleet.LocalFile // pip wheels, by Python X.Y
}

// New prepares a deploy; it contacts no node yet.
func New(opt Options) *Deployment {
	d := &Deployment{opt: opt, pips: map[string]fleet.LocalFile{}}
	d.Run = change.NewRun(opt.Options, opt.Rules, "deploying", func(n *change.NodeRun) change.Kind {
		u := &nodeRun{NodeRun: n, run: d}
		d.nodes = append(d.nodes, u)
		return u
	})
	return d
}

// Survey is the first phase: dsbuild connects to every node, probes it and decides its action. It
// changes no environment and sends no wheel. It first judges the wheels, and leaves out those that are refused.
// Where nodes claim that they share an environment,
// dsbuild writes a file with one word there for a moment to prove it.
func (d *Deployment) Survey(ctx context.Context) (Plan, error) {
	var left []wheel.Loaded
	var refused []error
	for _, w := range d.opt.Wheels {
		if err := d.Accept(w.Path, w.Manifest.SHA256); err != nil {
			refused = append(refused, fmt.Errorf("%s: %w", w.Manifest.Name, err))
			continue
		}
		left = append(left, w)
	}
	if len(left) == 0 && len(refused) > 0 {
		return Plan{}, refused[0]
	}
	for _, err := range refused {
		d.opt.Reporter.Note("left out: %v", err)
	}
	d.opt.Wheels = left
	if _, err := d.Probe(ctx); err != nil {
		return Plan{}, err
	}
	return d.decide(ctx, func(known []ProbeResult) (Plan, error) { return NewPlan(known, d.opt.Wheels, d.planOptions(ctx)) })
}

// planOptions returns the settings of the plan. It gets the pip wheels for nodes without any pip, one for each Python.
func (d *Deployment) planOptions(ctx context.Context) PlanOptions {
	opt := PlanOptions{Force: d.opt.Force, Bundle: d.opt.Bundle, NoPip: map[string]error{}}
	for _, u := range d.nodes {
		if u.facts == nil || u.facts.Pip != "" || u.facts.PipWheel != "" || u.facts.Dists == nil || d.opt.PipWheel == nil {
			continue
		}
		python := wheel.Minor(u.facts.Python)
		if _, done := d.pips[python]; done || opt.NoPip[python] != nil {
			continue
		}
		file, err := d.opt.PipWheel(ctx, python)
		if err != nil {
			opt.NoPip[python] = err
			continue
		}
		sum, size, err := wheel.HashFile(file)
		if err != nil {
			opt.NoPip[python] = err
			continue
		}
		d.pips[python] = fleet.LocalFile{Path: file, SHA256: sum, Size: size}
	}
	return opt
}

// SurveyRollback is Survey for a rollback to the version before the last deploy. It needs no
// wheels.
func (d *Deployment) SurveyRollback(ctx context.Context) (Plan, error) {
	if _, err := d.Probe(ctx); err != nil {
		return Plan{}, err
	}
	return d.decide(ctx, func(known []ProbeResult) (Plan, error) { return NewRollbackPlan(known), nil })
}

// Probe connects to every node and gathers its facts. A second call probes again.
func (d *Deployment) Probe(ctx context.Context) ([]ProbeResult, error) {
	if err := d.ProbeNodes(ctx); err != nil {
		return nil, err
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
		return Plan{}, d.Fleet.Abandon(ctx)
	}
	if err != nil {
		return Plan{}, err
	}
	for i := range plan.Nodes {
		if p := &plan.Nodes[i]; p.Action == change.Install {
			if err := d.Accept(p.Wheel.Path, p.Wheel.Manifest.SHA256); err != nil {
				p.refuse(fault.Hint(err), err.Error())
			}
		}
	}
	plan.ApplyPolicy(d.opt.Policy)
	plan.ApplyInUse(known, d.opt.InUse)
	d.Adopt(plan.Decisions)
	d.plan = plan
	for i, u := range d.nodes {
		u.plan = &plan.Nodes[i]
	}
	return plan, nil
}

// ApplyPolicy refuses the nodes that need other wheels beside DeepSpeed's, unless the policy accepts these.
func (p *Plan) ApplyPolicy(policy *signing.Policy) {
	if policy == nil || policy.Companions {
		return
	}
	for i := range p.Nodes {
		if n := &p.Nodes[i]; n.Action == change.Install && len(n.Extra) > 0 {
			n.refuse("install them there first, or let the policy accept them (companions: accept)", "other wheels would be installed with it, and nobody has signed these")
		}
	}
}

// Apply is the second phase: it carries out the plan of the survey. The report is complete even if
// ctx ends early.
func (d *Deployment) Apply(ctx context.Context) *report.Report {
	d.Change(ctx)
	return d.Report()
}

// Report returns the report of the run so far.
func (d *Deployment) Report() *report.Report {
	r := report.Empty(d.opt.Command)
	r.Mixed = d.plan.Assigned || wheel.AnyStable(d.plan.Wheels)
	var seen []report.ProbedNode
	for _, u := range d.nodes {
		var w *report.Wheel
		kind := ""
		if u.plan != nil && u.plan.Wheel != nil {
			w = &report.Wheel{Name: u.plan.Wheel.Manifest.Name, SHA256: u.plan.Wheel.Manifest.SHA256, Version: u.plan.Wheel.Version}
			if u.facts != nil {
				kind = compat.AlikeKey(u.plan.Wheel.Manifest, *u.facts)
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
