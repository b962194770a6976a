package deploy

import (
	"context"
	"errors"
	"slices"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/internal/cause"
	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/node"
	"github.com/dsbuild/dsbuild/wheel"
)

// Given is the wheel assigned to a node by the caller, or the reason why the node gets none.
type Given struct {
	Wheel   *Wheel        // nodes with the same wheel hold the same pointer
	Bundle  *wheel.Bundle // wheelhouse for the requirements of this wheel
	Coming  string        // why the wheel does not exist yet, for a plan made without its file; "" if it exists
	Reasons []string      // why no wheel can fit this node
	Hint    string        // the hint for Reasons
	Err     error         // why its wheel is missing: dsbuild leaves the node as it is
}

// errNoWheel is the error of a node that was assigned no usable wheel.
var errNoWheel = errors.New("there is no wheel for it")

// Give ends the first phase, after Probe, for nodes that each have a wheel assigned. It changes
// no environment and sends no wheel.
func (d *Deployment) Give(ctx context.Context, given []Given) (Plan, error) {
	d.given, given = true, slices.Clone(given)
	for i, u := range d.units {
		g := given[i]
		if g.Coming != "" || g.Wheel == nil && len(g.Reasons) == 0 && g.Err == nil {
			g = Given{Err: errNoWheel}
			given[i] = g
		}
		if g.Err != nil && u.err == nil {
			u.err, u.step = g.Err, "build"
		}
	}
	return d.decide(ctx, func(known []Known) (Plan, error) { return NewGivenPlan(known, given, d.planOptions(ctx)) })
}

// NewGivenPlan decides the action on each node with the wheel assigned to it. It is pure.
func NewGivenPlan(nodes []Known, given []Given, opt PlanOptions) (Plan, error) {
	plan := Plan{Nodes: make([]NodePlan, len(nodes))}
	tables, err := compat.NewTables()
	if err != nil {
		return Plan{}, err
	}
	opt.markers = markers{}
	for i, n := range nodes {
		plan.Nodes[i] = planGiven(tables, n, given[i], opt)
		plan.Nodes[i].Leader = i
	}
	share(plan.Nodes, nodes)
	for _, g := range given {
		if g.Wheel != nil && !slices.ContainsFunc(plan.Wheels, func(w Wheel) bool { return w.Manifest.SHA256 == g.Wheel.Manifest.SHA256 }) {
			plan.Wheels = append(plan.Wheels, *g.Wheel)
		}
	}
	return plan, nil
}

// Lacks returns, as text, the requirements of a wheel that a node does not meet.
func Lacks(w Wheel, f node.Facts) ([]string, error) {
	_, lacks, err := pick(w, f, nil, false, nil)
	return whys(lacks), err
}

func planGiven(t *compat.Tables, n Known, g Given, opt PlanOptions) NodePlan {
	p := NodePlan{Name: n.Name, Action: Refuse}
	if n.Err == nil {
		n.Err = g.Err
	}
	if n.Err != nil {
		p.Action, p.Reasons, p.Hint = Absent, []string{p.said(cause.From(n.Err))}, hint.Of(n.Err)
		return p
	}
	if p.Reasons, p.Hint = unusable(n.Facts); len(p.Reasons) == 0 {
		p.Reasons, p.Hint = unprepared(n.Facts, opt)
	}
	switch {
	case len(p.Reasons) > 0:
	case g.Wheel == nil:
		p.Reasons, p.Hint, p.Unfit = g.Reasons, g.Hint, true
	case g.Coming != "":
		p.Action, p.Wheel, p.Remarks = Install, g.Wheel, []string{g.Coming}
	default:
		if g.Bundle != nil {
			opt.Bundle = g.Bundle
		}
		p = planWheel(p, g.Wheel, t.Fit(g.Wheel.Manifest, n.Facts), n, opt)
		if p.Unfit { // the wheel was chosen for this node, so the node has changed since
			p.Hint = "the node is not any more what it was when it was asked: run the same command again"
		}
		return p
	}
	return p
}
