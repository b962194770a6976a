package deploy

import (
	"context"
	"fmt"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/fleet/verify"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/release/signing"
	"github.com/dsbuild/dsbuild/wheel"
)

// Options are the resolved settings of a deploy.
type Options struct {
	fleet.Options
	change.Rules

	Verify          verify.Level
	VerifyUnchanged verify.Level // the level for unchanged nodes; empty means Verify
	Wheels          []wheel.Loaded
	Bundle          *wheel.Bundle // wheelhouse for requirements; without it, nodes that lack one are refused
	// PipWheel returns the path of a pip wheel for a Python X.Y, which is sent to nodes whose
	// environment has no pip.
	PipWheel func(ctx context.Context, python string) (string, error)
}

// Deploy is one deploy or rollback. The caller calls Survey, SurveyRollback, or Probe and
// Assign; then Apply, then Close.
type Deploy struct {
	*change.Run
	opt   Options
	nodes []*nodeState
	plan  Plan
	undo  bool                       // it is a rollback
	pips  map[string]fleet.LocalFile // pip wheels, by Python X.Y
}

// New prepares a deploy without contacting a node.
func New(opt Options) *Deploy {
	d := &Deploy{Run: change.NewRun(opt.Options, opt.Rules), opt: opt, pips: map[string]fleet.LocalFile{}}
	d.AgentFindsJobs = true
	for _, n := range d.Fleet.Nodes {
		d.nodes = append(d.nodes, &nodeState{Node: n, run: d, plan: &NodePlan{}})
	}
	return d
}

// steps are the phases through which Apply takes a node. If one fails, end (undo.go) undoes the change.
func (n *nodeState) steps() []fleet.Step {
	limit, wait := n.run.Fleet.Limit, n.run.opt.InUse.Wait
	await := n.run.AwaitStep(n.Node, &n.plan.Decision)
	switch n.plan.Action {
	case change.Install:
		return []fleet.Step{
			// fit: waits until no process uses the environment.
			await,
			// put: takes the lock, sends the files. It releases a node that has the result already.
			n.run.PutStep(n.Node, "put", n.put),
			// install: moves the old version aside, runs pip.
			{
				Name: "install", Limit: wait + limit(change.InstallLimit) + change.ProgramGrace,
				Do: n.install, Needed: n.HoldsLock,
			},
			// verify: compares the files, loads every op.
			{Name: "verify", Limit: limit(change.VerifyLimit), Do: n.verify},
			// record: makes the change final, writes the journal.
			{Name: "record", Limit: change.RecordLimit, Do: n.record, Needed: n.HoldsLock},
		}
	case change.Rollback:
		return []fleet.Step{
			await,
			// rollback: takes the lock, exchanges the versions.
			{Name: "rollback", Limit: wait + limit(change.InstallLimit), Do: n.rollBack},
			{Name: "verify", Limit: limit(change.VerifyLimit), Do: n.verifyBack, Needed: n.HoldsLock},
			{Name: "record", Limit: change.RecordLimit, Do: n.recordBack, Needed: n.HoldsLock},
		}
	case change.Shared: // another node changes the environment
		follows := func() bool { return n.plan.Wheel != nil } // else it follows a rollback
		return []fleet.Step{
			// install: finds the version that the other node installed.
			{Name: "install", Limit: limit(change.ProbeLimit), Do: n.follow},
			{Name: "verify", Limit: limit(change.VerifyLimit), Do: n.verifyFollower, Needed: follows},
		}
	case change.UpToDate:
		return []fleet.Step{
			n.run.CleanupStep(n.Node, n.Facts.Leftovers, n.tidy),
			{Name: "verify", Limit: limit(change.VerifyLimit), Do: n.verify},
		}
	}
	return nil
}

// Survey is the first phase: it excludes wheels that the policy rejects, connects to every node, probes it and decides
// its action. It changes no environment and sends no wheel. Where it finds out which nodes share an environment, it puts
// temporary files there.
func (d *Deploy) Survey(ctx context.Context) (Plan, error) {
	if err := d.acceptWheels(); err != nil {
		return Plan{}, err
	}
	if _, err := d.Probe(ctx); err != nil {
		return Plan{}, err
	}
	return d.decide(ctx, func(known []ProbeResult) (Plan, error) {
		return NewPlan(known, d.opt.Wheels, d.planOptions(ctx))
	})
}

// acceptWheels excludes the wheels that the policy rejects.
func (d *Deploy) acceptWheels() error {
	var accepted []wheel.Loaded
	var refused []error
	for _, w := range d.opt.Wheels {
		if err := d.Accept(w.Path, w.Manifest.SHA256); err != nil {
			refused = append(refused, fmt.Errorf("%s: %w", w.Manifest.Name, err))
			continue
		}
		accepted = append(accepted, w)
	}
	if len(accepted) == 0 && len(refused) > 0 {
		return refused[0]
	}
	for _, err := range refused {
		d.opt.Reporter.Note("excluded: %v", err)
	}
	d.opt.Wheels = accepted
	return nil
}

// SurveyRollback is Survey for a rollback of one run, the latest if run is empty. It needs no wheels.
func (d *Deploy) SurveyRollback(ctx context.Context, run string) (Plan, error) {
	d.undo = true
	if _, err := d.Probe(ctx); err != nil {
		return Plan{}, err
	}
	return d.decide(ctx, func(known []ProbeResult) (Plan, error) { return NewRollbackPlan(known, run) })
}

// decide ends the survey: newPlan makes the plan, and every node gets its part of it.
func (d *Deploy) decide(ctx context.Context, newPlan func([]ProbeResult) (Plan, error)) (Plan, error) {
	known := d.probeResults()
	plan, err := newPlan(known)
	var sharing *change.Sharing
	if err == nil && ctx.Err() == nil {
		sharing = d.findSharing(ctx, plan.Decisions, known)
	}
	if ctx.Err() != nil { // the plan may rest on a download that was interrupted
		return Plan{}, d.Fleet.Abandon(ctx)
	}
	if err != nil {
		return Plan{}, err
	}
	for i := range known {
		known[i].Shares = sharing.ID(i)
	}
	plan.group(known)
	sharing.Explain(plan.Decisions, "the environment")
	for i := range plan.Nodes {
		if p := &plan.Nodes[i]; p.Action == change.Install {
			if err := d.Accept(p.Wheel.Path, p.Wheel.Manifest.SHA256); err != nil {
				p.refuse(fault.Hint(err), err.Error())
			}
		}
	}
	plan.applyPolicy(d.opt.Policy)
	plan.ApplyInUse(known, d.opt.InUse)
	d.Adopt(plan.Decisions)
	if !d.opt.DryRun { // which prints the plan
		plan.noteReplaced(d.opt.Reporter)
	}
	d.plan = plan
	for i, n := range d.nodes {
		n.plan = &plan.Nodes[i]
	}
	return plan, nil
}

// noteReplaced reports the versions that the plan replaces, before anything is changed.
func (p *Plan) noteReplaced(to ui.Reporter) {
	var all []ui.Named
	for _, n := range p.Nodes {
		if n.Action == change.Install && n.replaces != "" {
			all = append(all, ui.Named{Name: n.Name, Text: n.replaces})
		}
	}
	for _, f := range ui.Fold(all) {
		to.Note("%s", f)
	}
}

// applyPolicy refuses nodes that need extra wheels, unless the policy accepts the wheels.
func (p *Plan) applyPolicy(policy *signing.Policy) {
	if policy == nil || policy.Companions {
		return
	}
	for i := range p.Nodes {
		if n := &p.Nodes[i]; n.Action == change.Install && len(n.ExtraWheels) > 0 {
			n.refuse("set companions: accept in the policy, or install them first",
				"--deps bundle would install unsigned wheels")
		}
	}
}

// Apply is the second phase: it executes the plan of the survey. The report is complete even if ctx
// ends early.
func (d *Deploy) Apply(ctx context.Context) *report.Report {
	title := "deploying"
	var work []change.Work
	for _, n := range d.nodes {
		w := change.Work{Task: fleet.Task{Node: n.Node, Steps: n.steps(), End: n.end}, Plan: &n.plan.Decision}
		switch n.plan.Action {
		case change.Install:
			w.Files = n.uploads()
		case change.Rollback:
			title = "rolling back"
		}
		work = append(work, w)
	}
	d.Change(ctx, title, work)
	return d.Report()
}
