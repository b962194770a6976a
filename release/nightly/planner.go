package nightly

import (
	"cmp"
	"context"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/pipeline/planner"
)

// SourcePlanner plans the entries of a night. It opens each source once for all wheels. It is a
// Planner.
type SourcePlanner struct {
	plans   *planner.Planner
	sources map[string]openedSource
}

// openedSource is a source in its state of this night, or the error of opening it.
type openedSource struct {
	target planner.Target
	err    error
}

// NewSourcePlanner makes a SourcePlanner that uses plans. The caller must keep plans open.
func NewSourcePlanner(plans *planner.Planner) *SourcePlanner {
	return &SourcePlanner{plans, map[string]openedSource{}}
}

// openEntry opens the source of an entry, the source itself only once, for the entry's
// build. with reports its look-ups.
func (p *SourcePlanner) openEntry(
	ctx context.Context, with *planner.Planner, e Entry, s Source,
) (planner.Target, error) {
	opened, ok := p.sources[s.Name]
	if !ok {
		opened.target, opened.err = p.plans.OpenTarget(ctx, planner.Request{DeepSpeed: cmp.Or(s.DeepSpeed, compat.Latest)})
		p.sources[s.Name] = opened
	}
	if opened.err != nil {
		return opened.target, opened.err
	}
	return with.Retarget(ctx, opened.target, e.Request)
}

// Ask implements Planner.
func (p *SourcePlanner) Ask(ctx context.Context, e Entry, s Source) (*pipeline.Plan, string, error) {
	t, err := p.openEntry(ctx, p.plans.Quiet(), e, s)
	if err != nil {
		return nil, "", p.plans.Redact(err)
	}
	plan, request, err := p.plans.PlanWithoutEngine(ctx, e.Request, t)
	return plan, request, p.plans.Redact(err)
}

// Plan implements Planner.
func (p *SourcePlanner) Plan(ctx context.Context, name string, e Entry, s Source) (*pipeline.Plan, error) {
	named := p.plans.ReportingAs(name)
	t, err := p.openEntry(ctx, named, e, s)
	if err != nil {
		return nil, p.plans.Redact(err)
	}
	plan, err := named.PlanTarget(ctx, e.Request, t)
	return plan, p.plans.Redact(err)
}
