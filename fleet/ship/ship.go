// Package ship builds the wheels that the nodes of a fleet need and installs them. It combines packages pipeline and
// deploy. A run has three phases: Survey probes the nodes, finds the fewest wheels that serve all of them and looks for
// finished ones; Build builds those that are missing; Deploy puts each wheel on the nodes it fits.
package ship

import (
	"context"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/wheel"
)

// Planner decides which wheels nodes need, and how each is built (planner.Planner).
type Planner interface {
	// Group finds the fewest wheels for nodes (compat.Tables.Group).
	Group(ctx context.Context, nodes []compat.Member, r wheel.Request) compat.Grouping
	// Sketch makes the plan as far as that works without an engine, with its key in the store.
	Sketch(ctx context.Context, r wheel.Request) (*pipeline.Plan, error)
	// Plan makes the plan to run, with its name. Its messages begin with that.
	Plan(ctx context.Context, name string, r wheel.Request) (*pipeline.Plan, error)
}

// Options configure a Ship, with plain resolved values.
type Options struct {
	// Want holds the requirements of every wheel.
	Want wheel.Request
	// Plans plans the wheels.
	Plans Planner
	// SketchHere plans a wheel for this machine, without an engine. It returns nil if this machine does not build.
	SketchHere func(ctx context.Context, r wheel.Request) *pipeline.Plan
	// Build runs plans (pipeline.Runner.RunAll).
	Build func(context.Context, []*pipeline.Plan) []pipeline.Result
	// Bundle makes a wheelhouse of the packages that a wheel requires, for the Python of the plan and nodes that lack
	// some of them. If it is nil, such nodes are refused.
	Bundle func(ctx context.Context, name string, p *pipeline.Plan, a wheel.Artifact) (*wheel.Bundle, error)
	// Store keeps finished wheels for later runs.
	Store pipeline.Store
	// Dir is the folder that receives the wheels.
	Dir string
	// Fresh builds every wheel, even if the store has it.
	Fresh bool
	// BuildOnly leaves the nodes unchanged: the user wants only the wheels, also for nodes to which
	// dsbuild could not deploy now.
	BuildOnly bool
	// AllowOpRemoval allows wheels that lack ops which the DeepSpeed of a node has.
	AllowOpRemoval bool
	// Assume, if set, returns the facts of a node as they will be when the wheel is installed.
	Assume func(node.Facts) node.Facts
	// Sign, if set, signs the wheel at path before it is deployed.
	Sign func(path string) error
	// Report receives the progress.
	Report ui.Reporter
}

// Ship is one run: Survey, then Preview for a dry run, or Run.
type Ship struct {
	opt         Options
	deploy      *deploy.Deploy
	known       []deploy.ProbeResult
	probed      []node.Facts // one per node, without Assume
	selection   *Selection
	assignments []deploy.Assignment // one per node, without the wheels themselves
	built       bool                // the run built a wheel, so the facts of the nodes may be old
}

// New prepares a run that deploys with d, which has no wheels yet. It does not contact the nodes yet.
func New(d *deploy.Deploy, opt Options) *Ship { return &Ship{opt: opt, deploy: d} }

// Survey probes the nodes, groups them, and finds the wheels that exist already. It changes
// nothing, builds nothing and needs no engine.
func (s *Ship) Survey(ctx context.Context) (*Selection, error) {
	if err := s.probe(ctx); err != nil { // survey.go: the facts of every node
		return nil, err
	}
	s.group(ctx)                        // survey.go: the fewest wheels for the nodes
	if err := s.find(ctx); err != nil { // find.go: a plan for each wheel, and the wheels that are finished
		return nil, err
	}
	s.keepOps() // survey.go: no wheel for a node that would lose ops
	s.markRunning()
	return s.selection, nil
}

// Preview returns the plan for every node. Before the builds it may be incomplete. It changes
// nothing.
func (s *Ship) Preview(ctx context.Context) (deploy.Plan, error) {
	s.assignPending(ctx) // deploy.go
	plan, err := s.deploy.Preview(s.assignments)
	if err != nil {
		return plan, err
	}
	if err = s.selection.noWheelError(); err == nil {
		err = plan.Err()
	}
	return plan, err
}

// Run runs Build and Deploy. The error carries the exit code. The report is set in any case.
func (s *Ship) Run(ctx context.Context) (*report.Report, error) {
	s.Build(ctx)
	if r, err := s.Deploy(ctx); err != nil && ctx.Err() == nil {
		return r, err
	}
	return s.Outcome(ctx)
}

// Outcome returns the report so far, and its error.
func (s *Ship) Outcome(ctx context.Context) (*report.Report, error) {
	r := s.Report()
	if ctx.Err() != nil {
		return r, context.Cause(ctx)
	}
	if err := s.selection.noWheelError(); err != nil {
		return r, err
	}
	return r, r.Err()
}

// Build builds the missing wheels, and puts each wheel that is still to be delivered into Options.Dir. A wheel that
// fails does not stop the others. Wheels are checked against the policy before one is sent.
func (s *Ship) Build(ctx context.Context) {
	s.buildMissing(ctx) // build.go: plans and builds the wheels that were not found
	s.place(ctx)        // build.go: copies the others to their folder, and signs them
	if !s.opt.BuildOnly {
		s.accept() // build.go; else dsbuild sends nothing, and the wheels may be signed later
	}
}

// Deploy installs on every node its wheel, and reports the results. The report is complete even
// if ctx ends early. The error says why no node could be changed.
func (s *Ship) Deploy(ctx context.Context) (*report.Report, error) {
	if s.built && ctx.Err() == nil { // the nodes may have changed during the build
		if known, err := s.deploy.Probe(ctx); err == nil {
			s.known = known
		}
	}
	s.assignBuilt(ctx) // deploy.go: the wheel of each node, with the packages that it lacks
	if _, err := s.deploy.Assign(ctx, s.assignments); err != nil {
		return s.Report(), err
	}
	s.deploy.Apply(ctx)
	return s.Report(), nil
}

// Report returns the results so far.
func (s *Ship) Report() *report.Report {
	r := s.deploy.Report()
	if s.selection != nil {
		r.Groups = s.selection.Groups()
	}
	return r
}
