package deploy

import (
	"context"
	"errors"
	"slices"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/deploy/wheels"
	"github.com/dsbuild/dsbuild/internal/cause"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/node"
	"github.com/dsbuild/dsbuild/wheel"
)

// Assignment is the wheel assigned to a node by the caller, or the reason why the node gets none.
type Assignment struct {
	Wheel   *wheels.Wheel // nodes with the same wheel hold the same pointer; nil with Coming: it is not chosen yet
	Bundle  *wheel.Bundle // wheelhouse for the requirements of this wheel
	Coming  string        // why the wheel does not exist yet, for a plan made without its file; "" if it exists
	Reasons []string      // why no wheel can fit this node
	Hint    string        // the hint for Reasons
	Err     error         // why its wheel is missing: dsbuild leaves the node as it is
}

// errNoWheel is the error of a node that was assigned no usable wheel.
var errNoWheel = errors.New("dsbuild has no wheel for it")

// Assign ends the first phase, after Probe, for nodes that each have a wheel assigned. It changes
// no environment and sends no wheel.
func (d *Deployment) Assign(ctx context.Context, assignments []Assignment) (Plan, error) {
	assignments = slices.Clone(assignments)
	for i, u := range d.nodes {
		g := assignments[i]
		if g.Coming != "" || g.Wheel == nil && len(g.Reasons) == 0 && g.Err == nil {
			g = Assignment{Err: errNoWheel}
			assignments[i] = g
		}
		if g.Err != nil && u.Err == nil {
			u.Err, u.Step = g.Err, "build"
		}
	}
	return d.decide(ctx, func(known []ProbeResult) (Plan, error) {
		return NewAssignedPlan(known, assignments, d.planOptions(ctx))
	})
}

// NewAssignedPlan decides the action on each node with the wheel assigned to it. It is pure.
func NewAssignedPlan(nodes []ProbeResult, assignments []Assignment, opt PlanOptions) (Plan, error) {
	plan := Plan{Nodes: make([]NodePlan, len(nodes)), Assigned: true}
	tables, err := compat.NewTables()
	if err != nil {
		return Plan{}, err
	}
	opt.markers = markers{}
	for i, n := range nodes {
		plan.Nodes[i] = planAssigned(tables, n, assignments[i], opt)
		plan.Nodes[i].Leader = i
	}
	resolveSharing(plan.Nodes, nodes)
	for _, g := range assignments {
		if g.Wheel != nil && !slices.ContainsFunc(plan.Wheels, func(w wheels.Wheel) bool { return w.Manifest.SHA256 == g.Wheel.Manifest.SHA256 }) {
			plan.Wheels = append(plan.Wheels, *g.Wheel)
		}
	}
	return plan, nil
}

// Lacks returns, as text, the requirements of a wheel that a node does not meet.
func Lacks(w wheels.Wheel, f node.Facts) ([]string, error) {
	_, lacks, err := chooseExtraWheels(w, f, nil, false, nil)
	return reasonsOf(lacks), err
}

func planAssigned(t *compat.Tables, n ProbeResult, g Assignment, opt PlanOptions) NodePlan {
	p := NodePlan{Name: n.Name, Action: Refuse}
	if n.Err == nil {
		n.Err = g.Err
	}
	if n.Err != nil {
		p.Action, p.Reasons, p.Hint = Absent, []string{p.noteCause(cause.From(n.Err))}, fault.Hint(n.Err)
		return p
	}
	if p.Reasons, p.Hint = environmentFaults(n); len(p.Reasons) == 0 {
		p.Reasons, p.Hint = missingTorchOrPip(n.Facts, opt)
	}
	switch {
	case len(p.Reasons) > 0:
	case g.Coming != "":
		p.Action, p.Wheel, p.Remarks = Install, g.Wheel, []string{g.Coming}
	case g.Wheel == nil:
		p.Reasons, p.Hint, p.Unfit = g.Reasons, g.Hint, true
	default:
		if g.Bundle != nil {
			opt.Bundle = g.Bundle
		}
		p = planWheel(p, g.Wheel, t.Fit(g.Wheel.Manifest, n.Facts), n, opt)
		if p.Unfit { // the wheel was chosen for this node, so the node has changed since
			p.Hint = "the node has changed since dsbuild probed it: run the same command again"
		}
		return p
	}
	return p
}
