// Package envdeploy puts whole environments on the nodes of an inventory: it makes an environment next to
// the current one, verifies it and switches to it by one rename of a link. docs/commands.md (Files) and
// places.py name the files on a node.
package envdeploy

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/environment"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/fleet/verify"
)

// Options are the resolved settings of a run.
type Options struct {
	fleet.Options
	change.Rules

	Verify verify.Level
	Lock   *environment.Lock
	Files  *Files // of the lock; a rollback and a verification may do without
}

// Deploy is one deploy or rollback of an environment: Survey or SurveyRollback, then Apply,
// then Close.
type Deploy struct {
	*change.Run
	opt   Options
	nodes []*nodeState

	sharing    *change.Sharing // which nodes share the folder of the environments
	goesBack   bool            // it is a rollback
	undone     *node.Run       // the run that it undoes, if any
	onlyVerify bool            // it changes no node
}

// New prepares a run; it contacts no node yet.
func New(opt Options) *Deploy {
	d := &Deploy{Run: change.NewRun(opt.Options, opt.Rules), opt: opt}
	for i, n := range d.Fleet.Nodes {
		d.nodes = append(d.nodes, &nodeState{Node: n, index: i, run: d, plan: &NodePlan{}})
	}
	return d
}

// steps are the phases through which Apply takes a node. If one fails, end (undo.go) takes the change back.
func (n *nodeState) steps() []fleet.Step {
	limit, wait := n.run.Fleet.Limit, n.run.opt.InUse.Wait
	await := n.run.AwaitStep(n.Node, &n.plan.Decision)
	switch n.plan.Action {
	case change.Install:
		python := n.run.PutStep(n.Node, "python", n.bringPython)
		python.Needed = func() bool { return n.plan.Python }
		return []fleet.Step{
			// fit: waits until no process uses the environment.
			await,
			// python: sends the lock's Python.
			python,
			// put: takes the lock, sends the files that the node lacks. It releases a node that has the result already.
			n.run.PutStep(n.Node, "put", n.put),
			// install: makes the environment next to the current one.
			{Name: "install", Limit: limit(change.InstallLimit) + change.ProgramGrace, Do: n.install, Needed: n.HoldsLock},
			// verify: compares every package, loads every op.
			{Name: "verify", Limit: limit(change.VerifyLimit), Do: n.verify},
			// record: switches to it by one rename.
			{Name: "record", Limit: wait + limit(change.ProbeLimit) + change.RecordLimit, Do: n.record, Needed: n.HoldsLock},
		}
	case change.Rollback:
		return []fleet.Step{
			await,
			// rollback: switches back, after a look at every file.
			{Name: "rollback", Limit: wait + limit(change.InstallLimit), Do: n.rollBack},
		}
	case change.Leave:
		return []fleet.Step{
			// verify: looks into the environment, so that the report can compare it with other nodes.
			{
				Name: "verify", Limit: limit(change.ProbeLimit), ReadOnly: true, Needed: func() bool { return n.now != nil },
				Do: func(ctx context.Context) error { return n.prove(ctx, n.now.Python) },
			},
		}
	case change.UpToDate:
		return []fleet.Step{
			n.run.CleanupStep(n.Node, n.state.Leftovers, n.tidy),
			{Name: "verify", Limit: limit(change.VerifyLimit), Do: n.verifyCurrent},
		}
	}
	return nil
}

// Survey checks the wheels against the policy, then connects to every node, probes it and decides its action. It
// changes nothing. It checks only the wheels of DeepSpeed: no other wheel has files in DeepSpeed's folder.
func (d *Deploy) Survey(ctx context.Context) (Plan, error) {
	files := d.opt.Files
	for _, sum := range slices.Sorted(maps.Keys(files.Wheels)) {
		if err := d.Accept(files.Paths[sum], sum); err != nil {
			return Plan{}, fmt.Errorf("%s: %w", path.Base(files.Paths[sum]), err)
		}
	}
	return d.survey(ctx, func(known []ProbeResult) (Plan, error) {
		return planNodes(known, PlanOptions{
			Lock: d.opt.Lock, Wheels: files.Wheels, Manifests: files.Manifests, Unpacked: files.Unpacked, Force: d.opt.Force,
		})
	})
}

// SurveyRollback is Survey for a rollback of one run, the latest if run is empty.
func (d *Deploy) SurveyRollback(ctx context.Context, run string) (Plan, error) {
	d.goesBack = true
	return d.survey(ctx, func(known []ProbeResult) (Plan, error) { return planRollback(known, run) })
}

// survey probes the nodes, and gives each its part of the plan that newPlan makes.
func (d *Deploy) survey(ctx context.Context, newPlan func([]ProbeResult) (Plan, error)) (Plan, error) {
	known, err := d.probe(ctx)
	if err != nil {
		return Plan{}, err
	}
	plan, err := newPlan(known)
	if err != nil {
		return Plan{}, err
	}
	d.sharing = d.findSharing(ctx, plan.Decisions, known)
	if ctx.Err() != nil {
		return Plan{}, d.Fleet.Abandon(ctx)
	}
	for i := range known {
		known[i].Shares = d.sharing.ID(i)
	}
	d.sharing.Explain(plan.Decisions, "the environments' directory")
	plan.agree(known, d.opt.InUse)
	d.undone = plan.Undone
	d.Adopt(plan.Decisions)
	for i, n := range d.nodes {
		n.plan = &plan.Nodes[i]
	}
	return plan, nil
}

// Apply carries out the plan of the survey. The report is complete even if ctx ends early.
func (d *Deploy) Apply(ctx context.Context) *report.Report {
	title := "deploying the environment"
	if d.goesBack {
		title = "rolling back"
	}
	var work []change.Work
	for _, n := range d.nodes {
		w := change.Work{Task: fleet.Task{Node: n.Node, Steps: n.steps(), End: n.end}, Plan: &n.plan.Decision}
		if n.plan.Action == change.Install {
			w.Files = n.uploads()
		}
		work = append(work, w)
	}
	d.Change(ctx, title, work)
	if changed, _ := d.AtGate(); len(changed) > 0 {
		return d.soFar()
	}
	return d.Report()
}
