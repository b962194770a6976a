package deploy

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/wheel"
)

// Assignment is the wheel assigned to a node by the caller, or the reason why the node gets none.
type Assignment struct {
	Wheel   *wheel.Loaded // nodes with the same wheel hold the same pointer; nil with Coming: it is not chosen yet
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
	tables, err := compat.NewTables()
	if err != nil {
		return Plan{}, err
	}
	nodes = slices.Clone(nodes)
	for i := range nodes {
		if nodes[i].Err == nil {
			nodes[i].Err = assignments[i].Err
		}
	}
	plan := newPlan(nodes, func(i int, p *NodePlan) { p.assign(tables, nodes[i], assignments[i], opt) })
	plan.Assigned = true
	for _, g := range assignments {
		if g.Wheel != nil && !slices.ContainsFunc(plan.Wheels, func(w wheel.Loaded) bool { return w.Manifest.SHA256 == g.Wheel.Manifest.SHA256 }) {
			plan.Wheels = append(plan.Wheels, *g.Wheel)
		}
	}
	return plan, nil
}

// Lacks returns, as text, the requirements of a wheel that a node does not meet.
func Lacks(w wheel.Loaded, f node.Facts) ([]string, error) {
	_, lacks, err := chooseExtraWheels(w, f, nil, false)
	return reasonsOf(lacks), err
}

// assign decides the action on a node with the wheel assigned to it.
func (p *NodePlan) assign(t *compat.Tables, n ProbeResult, g Assignment, opt PlanOptions) {
	reasons, hint := missingTorchOrPip(n.Facts, opt)
	switch {
	case len(reasons) > 0:
		p.refuse(hint, reasons...)
	case g.Coming != "":
		p.Action, p.Wheel, p.Remarks = change.Install, g.Wheel, []string{g.Coming}
	case g.Wheel == nil:
		p.Unfit = true
		p.refuse(g.Hint, g.Reasons...)
	default:
		opt.Bundle = cmp.Or(g.Bundle, opt.Bundle)
		p.decide(g.Wheel, t.Fit(g.Wheel.Manifest, n.Facts), n, opt)
		if p.Unfit { // the wheel was chosen for this node, so the node has changed since
			p.Hint = "the node has changed since dsbuild probed it: run the same command again"
		}
	}
}
