package ship

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/wheel"
)

// Planner turns the requirements of one wheel into a plan.
type Planner interface {
	// Ask makes the plan as far as that works without an engine. request is the key of the plan
	// in the store (pipeline.RequestDigest).
	Ask(ctx context.Context, spec wheel.Spec) (p *pipeline.Plan, request string, err error)
	// Plan makes the plan to run. The planner reports its progress under the wheel's name.
	Plan(ctx context.Context, name string, spec wheel.Spec) (*pipeline.Plan, error)
}

// Options configure a Shipment, with plain resolved values.
type Options struct {
	// Deploy configures the deploy, without wheels.
	Deploy deploy.Options
	// Want holds the requirements of every wheel.
	Want wheel.Spec
	// Group finds the fewest wheels for nodes (compat.Tables.Group).
	Group func(context.Context, []compat.Member, wheel.Spec) compat.Grouping
	// Plans plans the wheels.
	Plans Planner
	// Build runs plans (pipeline.Runner.RunAll).
	Build func(context.Context, []pipeline.Job) []pipeline.Result
	// Bundle gathers the packages that a wheel requires in a wheelhouse of its own, for the Python
	// of the plan and nodes that lack some of them. If it is nil, dsbuild refuses such a node.
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
	// RemoveOps allows wheels that lack ops which the DeepSpeed of a node has.
	RemoveOps bool
	// Assume returns the facts of a node as they will be when the wheel comes there; nil: as they
	// are.
	Assume func(node.Facts) node.Facts
	// Sign signs the wheel at path before it is deployed; nil: dsbuild signs nothing.
	Sign func(path string) error
	// Report receives the progress.
	Report ui.Reporter
}

// Shipment is one run: Survey, then Build, then Deploy, then Close.
type Shipment struct {
	opt         Options
	deployment  *deploy.Deploy
	known       []deploy.ProbeResult
	probed      []node.Facts // one per node, without Assume
	plan        *Plan
	assignments []deploy.Assignment // one per node, without the wheels themselves
	built       bool                // the run built a wheel, so the facts of the nodes may be old
}

// New prepares a run. It does not contact the nodes yet.
func New(opt Options) *Shipment { return &Shipment{opt: opt, deployment: deploy.New(opt.Deploy)} }

// Close closes every connection.
func (s *Shipment) Close() { s.deployment.Close() }

// Survey probes the nodes, groups them, and finds the wheels that exist already. It changes
// nothing, builds nothing and needs no engine.
func (s *Shipment) Survey(ctx context.Context) (*Plan, error) {
	known, err := s.deployment.Probe(ctx)
	if err != nil {
		return nil, err
	}
	for i := range known {
		s.probed = append(s.probed, known[i].Facts)
		if known[i].Err == nil && s.opt.Assume != nil {
			known[i].Facts = s.opt.Assume(known[i].Facts)
		}
	}
	s.known, s.assignments = known, make([]deploy.Assignment, len(known))
	s.plan = &Plan{Nodes: len(known), Left: []LeftOut{}, BuildOnly: s.opt.BuildOnly}
	s.groupNodes(ctx)
	nameWheels(s.plan.Wheels)
	for _, w := range s.plan.Wheels {
		if err := s.lookUpWheel(ctx, w); err != nil {
			return nil, err
		}
		if !s.opt.BuildOnly && s.opt.Assume == nil { // the wheel takes the place of the DeepSpeed that is there
			s.checkRemovedOps(w)
		}
		w.Running = w.nodesRunning(s.known)
		if len(w.Running) == len(w.Nodes) && !s.opt.Deploy.Force {
			w.State = Running
		}
	}
	s.plan.Wheels = slices.DeleteFunc(s.plan.Wheels, func(w *Wheel) bool { return len(w.Nodes) == 0 })
	return s.plan, nil
}

// groupNodes groups the nodes into the fewest wheels, and records the nodes that get none.
// dsbuild builds no wheel for a node that would refuse any wheel.
func (s *Shipment) groupNodes(ctx context.Context) {
	var members []compat.Member
	var places []int // of the members in the inventory
	for i, n := range deploy.Usable(s.known, deploy.PlanOptions{}).Nodes {
		refused := n.Action == change.Refuse && !s.opt.BuildOnly
		if refused {
			s.assignments[i].Refusal = &deploy.Refusal{Reasons: n.Reasons, Hint: n.Hint}
		}
		if refused || n.Action == change.Absent {
			s.leaveOut(i, LeftOut{Reasons: n.Reasons, Hint: n.Hint, cause: n.Cause()})
			continue
		}
		members = append(members, compat.Member{Name: s.known[i].Name, Facts: s.known[i].Facts})
		places = append(places, i)
	}
	grouping := s.opt.Group(ctx, members, s.opt.Want)
	for _, l := range grouping.Left {
		i := places[l.Node]
		s.assignments[i].Refusal = &deploy.Refusal{Reasons: l.Reasons, Hint: l.Hint}
		s.leaveOut(i, LeftOut{Reasons: l.Reasons, Hint: l.Hint, unserved: true})
	}
	for _, g := range grouping.Groups {
		w := &Wheel{Spec: g.Spec, Why: g.Reasons, State: ToBuild}
		for _, n := range g.Nodes {
			w.indexes = append(w.indexes, places[n])
			w.Nodes = append(w.Nodes, s.known[places[n]].Name)
		}
		s.plan.Wheels = append(s.plan.Wheels, w)
	}
}

// checkRemovedOps notes which nodes have a DeepSpeed with ops that the wheel lacks: those without
// a visible GPU, for example, get a wheel without device code. Without RemoveOps they get no wheel.
func (s *Shipment) checkRemovedOps(w *Wheel) {
	if w.Plan == nil {
		return
	}
	kept := w.Plan.Toolchain.OpNames(false)
	all := w.indexes
	w.indexes, w.Nodes = nil, nil
	for _, i := range all {
		var removed []string
		if d := s.known[i].Facts.DeepSpeed; d != nil {
			removed = slices.DeleteFunc(slices.Clone(d.Ops), func(op string) bool { return slices.Contains(kept, op) })
		}
		name := s.known[i].Name
		if len(removed) > 0 && !s.opt.RemoveOps {
			reason := "the wheel for it would remove " + ui.OneLine(strings.Join(removed, ", ")) + " from its DeepSpeed"
			if len(s.known[i].Facts.GPUs) == 0 {
				reason += ": dsbuild sees no GPU there"
			}
			try := "--remove-ops removes them; --ops and --gpu say what to build"
			s.assignments[i].Refusal = &deploy.Refusal{Reasons: []string{reason}, Hint: try}
			s.leaveOut(i, LeftOut{Reasons: []string{reason}, Hint: try})
			continue
		}
		if len(removed) > 0 {
			w.Why = append(w.Why, "it removes "+ui.OneLine(strings.Join(removed, ", "))+" from "+name)
		}
		w.indexes, w.Nodes = append(w.indexes, i), append(w.Nodes, name)
	}
}

// leaveOut records that a node gets no wheel, and why.
func (s *Shipment) leaveOut(i int, l LeftOut) {
	l.Node, l.index = s.known[i].Name, i
	s.plan.Left = append(s.plan.Left, l)
	slices.SortFunc(s.plan.Left, func(a, b LeftOut) int { return a.index - b.index })
}

// lookUpWheel plans a wheel as far as that works without an engine, and looks for a finished one.
// If planning fails, only this wheel fails.
func (s *Shipment) lookUpWheel(ctx context.Context, w *Wheel) error {
	p, request, err := s.opt.Plans.Ask(ctx, w.Spec)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		w.markFailed(err)
		return nil
	}
	w.Plan, w.request = p, request
	if s.opt.Fresh {
		return nil
	}
	led, err := s.opt.Store.PlanOfRequest(ctx, request)
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	for _, digest := range []string{p.Digest, led} {
		kept, ok, err := s.opt.Store.Find(ctx, digest)
		if err != nil {
			return fmt.Errorf("store: %w", err)
		}
		if ok && w.useFinished(kept, Stored) {
			return nil
		}
	}
	kept, ok, err := pipeline.Placed(s.opt.Dir, p.Digest)
	if ok {
		w.useFinished(kept, Placed)
	}
	return err
}

// Preview returns the plan for every node. Before the builds it may be incomplete. It changes
// nothing.
func (s *Shipment) Preview(ctx context.Context) (deploy.Plan, error) {
	for _, w := range s.plan.Wheels {
		if s.assignWheel(ctx, w); s.opt.Bundle != nil {
			for _, i := range s.nodesLackingPackages(w) {
				s.assignments[i].Wheel = nil
				s.assignments[i].Pending = "with its missing packages, once dsbuild has collected them"
			}
		}
	}
	plan, err := s.deployment.Preview(s.assignments)
	if err != nil {
		return plan, err
	}
	if err = s.plan.noWheelError(); err == nil {
		err = plan.Err()
	}
	return plan, err
}

// Build builds the missing wheels, and puts each wheel that is still to be delivered into
// Options.Dir. A wheel that fails does not stop the others. The policy judges the wheels before one is sent.
func (s *Shipment) Build(ctx context.Context) {
	jobs := s.planBuilds(ctx)
	if len(jobs) > 0 {
		s.built = true
		for i, r := range s.opt.Build(ctx, jobs) {
			at := slices.IndexFunc(s.plan.Wheels, func(w *Wheel) bool { return w.Name == jobs[i].Name })
			s.recordBuild(ctx, r, s.plan.Wheels[at])
		}
	}
	for _, w := range s.plan.Wheels {
		found := w.State == Placed
		if (w.State == Stored || w.State == Running && s.opt.BuildOnly) && w.Artifact.Path == "" { // else the build put it there, and signed it
			found = true
			s.placeStored(ctx, w)
		}
		if found && w.Err == nil && s.opt.Sign != nil {
			if err := pipeline.SignPlaced(ctx, w.filePath(), s.opt.Sign); err != nil {
				w.markFailed(err)
			}
		}
	}
	if s.opt.BuildOnly {
		return // dsbuild sends nothing, and the wheels may be signed later
	}
	for _, w := range s.plan.Wheels {
		if w.Err != nil || w.Artifact.Path == "" {
			continue
		}
		if err := s.deployment.Accept(w.Artifact.Path, w.Artifact.SHA256); err != nil {
			w.markFailed(err)
		}
	}
}

// planBuilds plans the missing wheels.
func (s *Shipment) planBuilds(ctx context.Context) []pipeline.Job {
	var jobs []pipeline.Job
	for _, w := range s.plan.Wheels {
		if w.State == ToBuild && ctx.Err() != nil {
			w.markFailed(context.Cause(ctx))
		}
		if w.State != ToBuild {
			continue
		}
		p, err := s.opt.Plans.Plan(ctx, w.Name, w.Spec)
		if err != nil {
			w.markFailed(err)
			continue
		}
		w.Plan = p
		jobs = append(jobs, pipeline.Job{Name: w.Name, Plan: p})
	}
	return jobs
}

// recordBuild records the result of a build.
func (s *Shipment) recordBuild(ctx context.Context, r pipeline.Result, w *Wheel) {
	if r.Err != nil {
		w.markFailed(r.Err)
		return
	}
	w.State, w.Artifact = Built, r.Artifact
	if r.Artifact.Cached {
		w.State = Stored
	}
	if err := s.opt.Store.LinkRequest(ctx, w.request, w.Plan.Digest); err != nil {
		s.opt.Report.Warn("%s: the store could not record its targets: %v", w.Name, err)
	}
}

// placeStored copies a wheel from the store to Options.Dir.
func (s *Shipment) placeStored(ctx context.Context, w *Wheel) {
	for _, other := range s.plan.Wheels {
		if m := other.Artifact.Manifest; other.Artifact.Path != "" && m.Name == w.Artifact.Manifest.Name && m.SHA256 != w.Artifact.SHA256 {
			w.markFailed(pipeline.SameNameError(m.Name, other.Name))
			return
		}
	}
	a, err := pipeline.Place(ctx, w.product, s.opt.Dir)
	if err != nil {
		w.markFailed(err)
		return
	}
	a.Cached = true
	w.Artifact = a
}

// Deploy installs on every node its wheel, and reports the results. The report is complete even
// if ctx ends early. The error says why no node could be changed.
func (s *Shipment) Deploy(ctx context.Context) (*report.Report, error) {
	if s.built && ctx.Err() == nil { // the nodes may have changed during the build
		if known, err := s.deployment.Probe(ctx); err == nil {
			s.known = known
		}
	}
	for _, w := range s.plan.Wheels {
		if s.assignWheel(ctx, w); s.opt.Bundle != nil {
			s.bundleForNodes(ctx, w)
		}
	}
	if _, err := s.deployment.Assign(ctx, s.assignments); err != nil {
		return s.Report(), err
	}
	s.deployment.Apply(ctx)
	return s.Report(), nil
}

// Report returns the results so far.
func (s *Shipment) Report() *report.Report {
	r := s.deployment.Report()
	if s.plan != nil {
		r.Groups = s.plan.Groups()
	}
	return r
}

// Run runs Build and Deploy. The error carries the exit code. The report is set in any case.
func (s *Shipment) Run(ctx context.Context) (*report.Report, error) {
	s.Build(ctx)
	r, err := s.Deploy(ctx)
	if ctx.Err() != nil {
		return r, context.Cause(ctx)
	}
	if err != nil {
		return r, err
	}
	if err := s.plan.noWheelError(); err != nil {
		return r, err
	}
	return r, r.Err()
}

// assignWheel assigns a wheel to its nodes, or the reason why it does not exist.
func (s *Shipment) assignWheel(ctx context.Context, w *Wheel) {
	g := deploy.Assignment{Name: w.Name, Pending: "once it is built"}
	if w.Err == nil && w.State != ToBuild {
		loaded, err := wheel.LoadAll(ctx, w.filePath())
		if err != nil {
			w.markFailed(err)
		} else {
			g = deploy.Assignment{Name: loaded[0].Manifest.Name, Wheel: &loaded[0]}
		}
	}
	if w.Err != nil {
		reason, _, _ := strings.Cut(w.Err.Error(), "\n")
		g = deploy.Assignment{Err: fault.AddHint(fmt.Errorf("there is no wheel %s: %s", w.Name, reason), fault.Hint(w.Err))}
	}
	for _, i := range w.indexes {
		s.assignments[i] = g
	}
}

// nodesLackingPackages returns the nodes of a wheel that lack a package that it requires; none if
// the wheel is still to be built.
func (s *Shipment) nodesLackingPackages(w *Wheel) (places []int) {
	for _, i := range w.indexes {
		g := s.assignments[i]
		if g.Wheel == nil {
			continue
		}
		if lacks, err := deploy.Lacks(*g.Wheel, s.known[i].Facts); err == nil && len(lacks) > 0 {
			places = append(places, i)
		}
	}
	return places
}

// bundleForNodes makes a wheelhouse for the nodes of a wheel that lack packages: one for each of
// their Pythons. If that fails, dsbuild refuses these nodes and serves the others.
func (s *Shipment) bundleForNodes(ctx context.Context, w *Wheel) {
	byPython := map[string][]int{}
	for _, i := range s.nodesLackingPackages(w) {
		python := wheel.Minor(s.known[i].Facts.Python)
		byPython[python] = append(byPython[python], i)
	}
	for _, python := range slices.Sorted(maps.Keys(byPython)) {
		if ctx.Err() != nil {
			return
		}
		b, err := s.makeBundle(ctx, w, python)
		if err != nil {
			s.opt.Report.Warn("%s: no wheelhouse for Python %s: %v", w.Name, python, err)
			continue
		}
		for _, i := range byPython[python] {
			s.assignments[i].Bundle = b
		}
	}
}

// makeBundle makes the wheelhouse of a wheel for a Python. A wheel for several Pythons was built with
// one of them; dsbuild collects the packages for another one with a base that has that Python.
func (s *Shipment) makeBundle(ctx context.Context, w *Wheel, python string) (*wheel.Bundle, error) {
	a, p, name := w.Artifact, w.Plan, w.Name
	a.Path = w.filePath()
	spec := w.Spec
	if spec.Python == "" {
		name += "-cp" + strings.ReplaceAll(python, ".", "")
	}
	if w.State != Built || p.Toolchain.Python != python { // planned without an engine, or for another Python
		spec.Python = python
		var err error
		if p, err = s.opt.Plans.Plan(ctx, name, spec); err != nil {
			return nil, err
		}
	}
	return s.opt.Bundle(ctx, name, p, a)
}
