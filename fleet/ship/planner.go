package ship

import (
	"context"
	"strings"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/pipeline/planner"
	"github.com/dsbuild/dsbuild/wheel"
)

// GroupPlanner plans the wheels for groups of nodes. It fetches the sources once for all groups.
// Its errors appear in reports, so it removes the site's secrets from them. It is a Planner.
type GroupPlanner struct {
	plans   *planner.Planner
	request planner.Request // holds for every group
	target  planner.Target
}

// NewGroupPlanner fetches the sources of a request, and refuses GPUs and ops that the tables lack before any node is
// asked. It uses plans: the caller must keep it open.
func NewGroupPlanner(ctx context.Context, plans *planner.Planner, r planner.Request) (*GroupPlanner, error) {
	target, err := plans.OpenTarget(ctx, r)
	if err != nil {
		return nil, err
	}
	tables := target.Tables()
	for _, name := range compat.SplitNames(target.Spec.GPUs) {
		if err := tables.CheckGPU(name); err != nil {
			return nil, err
		}
	}
	for _, name := range compat.SplitNames(target.Spec.Ops) {
		if err := tables.CheckOp(name); err != nil {
			return nil, err
		}
	}
	return &GroupPlanner{plans, r, target}, nil
}

// Spec is the part of every wheel's spec that the request decides.
func (g *GroupPlanner) Spec() wheel.Request { return g.target.Spec }

// Group implements Planner. For nodes that get no wheel it looks up the torches that the tables lack. If no index has
// a node's torch, the node gets no wheel for it.
func (g *GroupPlanner) Group(ctx context.Context, nodes []compat.Member, spec wheel.Request) compat.Grouping {
	grouping := g.target.Tables().Group(nodes, spec)
	if len(grouping.Left) == 0 || spec.ABI == wheel.StableABI {
		return grouping
	}
	asked := map[[2]string]bool{}
	for _, n := range nodes {
		version, _, _ := strings.Cut(n.Facts.Torch, "+")
		s := wheel.Request{Torch: version, CUDA: n.Facts.TorchCUDA}
		known := g.target.Tables().OffersTorch(wheel.Request{Torch: wheel.Minor(version), CUDA: s.CUDA})
		if s.Torch == "" || s.CUDA == "" || asked[[2]string{s.Torch, s.CUDA}] || known {
			continue
		}
		asked[[2]string{s.Torch, s.CUDA}] = true
		if err := g.plans.LookUpTorch(ctx, &g.target, s); err != nil {
			break // interrupted
		}
	}
	return g.target.Tables().Group(nodes, spec)
}

// Ask implements Planner, for a dry run.
func (g *GroupPlanner) Ask(ctx context.Context, spec wheel.Request) (*pipeline.Plan, string, error) {
	plan, request, err := g.plans.PlanWithoutEngine(ctx, g.request, g.target.WithSpec(spec))
	return plan, request, g.plans.Redact(err)
}

// Plan implements Planner.
func (g *GroupPlanner) Plan(ctx context.Context, name string, spec wheel.Request) (*pipeline.Plan, error) {
	plan, err := g.plans.ReportingAs(name).PlanTarget(ctx, g.request, g.target.WithSpec(spec))
	return plan, g.plans.Redact(err)
}
