package flow

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/deploy"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/wheel"
)

// Planner turns what one wheel must be into a plan.
type Planner interface {
	// Ask is the plan as far as it can be told without an engine, and the request that it is known by in the store (pipeline.Request).
	Ask(ctx context.Context, spec wheel.Spec) (p *pipeline.Plan, request string, err error)
	// Plan is the plan to run. What is said meanwhile is said of the wheel called name.
	Plan(ctx context.Context, name string, spec wheel.Spec) (*pipeline.Plan, error)
}

// Options are what a ship is made with, as plain resolved values.
type Options struct {
	// Fleet is the deploy, without wheels.
	Fleet deploy.Options
	// Want is what holds for every wheel.
	Want wheel.Spec
	// Group finds the fewest wheels for nodes (compat.Tables.Group).
	Group func(context.Context, []compat.Member, wheel.Spec) compat.Grouping
	// Plans plans them.
	Plans Planner
	// Build runs plans, several at once where there is room (pipeline.Farm).
	Build func(context.Context, []pipeline.Job) []pipeline.Result
	// Bundle gathers what a wheel requires, for nodes that lack some of it, in a
	// wheelhouse of its own. nil: a node that lacks something is refused.
	Bundle func(ctx context.Context, name string, p *pipeline.Plan, a wheel.Artifact) (*wheel.Bundle, error)
	// Store is where finished wheels are found again.
	Store pipeline.Store
	// Dir is where wheels are put.
	Dir string
	// Fresh has every wheel built, also those in the store.
	Fresh bool
	// Keep leaves the nodes as they are: the wheels alone are wanted, also for
	// nodes that could not be deployed to now.
	Keep bool
	// Report is told what happens.
	Report ui.Reporter
}

// Ship is one run: Survey, then Build, then Deploy, then Close.
type Ship struct {
	opt   Options
	fleet *deploy.Deployment
	known []deploy.Known
	plan  *Plan
	given []deploy.Given // by node, but for the wheels themselves
	built bool           // some wheel was built, so time has passed
}

// New prepares a run; nothing is done yet.
func New(opt Options) *Ship { return &Ship{opt: opt, fleet: deploy.New(opt.Fleet)} }

// Close closes every connection.
func (s *Ship) Close() { s.fleet.Close() }

// Survey asks the nodes, groups them, and finds out which wheels there are
// already. It changes nothing, builds nothing and needs no engine.
func (s *Ship) Survey(ctx context.Context) (*Plan, error) {
	known, err := s.fleet.Probe(ctx)
	if err != nil {
		return nil, err
	}
	s.known, s.given = known, make([]deploy.Given, len(known))
	s.plan = &Plan{Nodes: len(known), Keep: s.opt.Keep}
	members, places, err := s.members()
	if err != nil {
		return nil, err
	}
	grouping := s.opt.Group(ctx, members, s.opt.Want)
	for _, l := range grouping.Left {
		i := places[l.Node]
		s.given[i].Reasons, s.given[i].Hint = l.Reasons, l.Hint
		s.leave(i, l.Reasons, l.Hint, true)
	}
	for _, g := range grouping.Groups {
		w := &Wheel{Spec: g.Spec, Why: g.Reasons, State: ToBuild}
		for _, n := range g.Nodes {
			w.places = append(w.places, places[n])
			w.Nodes = append(w.Nodes, known[places[n]].Name)
		}
		s.plan.Wheels = append(s.plan.Wheels, w)
	}
	nameWheels(s.plan.Wheels)
	for _, w := range s.plan.Wheels {
		if err := s.find(ctx, w); err != nil {
			return nil, err
		}
	}
	for _, w := range s.plan.Wheels {
		w.Running = w.running(known)
		if len(w.Running) == len(w.Nodes) && !s.opt.Fleet.Force {
			w.State = Running
		}
	}
	return s.plan, nil
}

// members are the nodes that a wheel is for, with their places among all. A
// node that would refuse any wheel gets none built for it.
func (s *Ship) members() (members []compat.Member, places []int, err error) {
	coming := slices.Repeat([]deploy.Given{{Wheel: &deploy.Wheel{}, Coming: "asked"}}, len(s.known))
	plan, err := deploy.NewGivenPlan(s.known, coming, deploy.PlanOptions{})
	for i, n := range plan.Nodes {
		refused := n.Action == deploy.Refuse && !s.opt.Keep
		if refused {
			s.given[i].Reasons, s.given[i].Hint = n.Reasons, n.Hint
		}
		if refused || n.Action == deploy.Absent {
			s.leave(i, n.Reasons, n.Hint, false)
			continue
		}
		members = append(members, compat.Member{Name: s.known[i].Name, Facts: s.known[i].Facts})
		places = append(places, i)
	}
	return members, places, err
}

// leave notes that a node gets no wheel, and why.
func (s *Ship) leave(i int, reasons []string, hint string, unserved bool) {
	s.plan.Left = append(s.plan.Left, Left{Node: s.known[i].Name, Reasons: reasons, Hint: hint, unserved: unserved, place: i})
	slices.SortFunc(s.plan.Left, func(a, b Left) int { return a.place - b.place })
}

// find plans a wheel as far as that goes without an engine, and looks whether
// it is there. A wheel that cannot be planned fails alone.
func (s *Ship) find(ctx context.Context, w *Wheel) error {
	p, request, err := s.opt.Plans.Ask(ctx, w.Spec)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		w.fail(err)
		return nil
	}
	w.Plan, w.request = p, request
	if s.opt.Fresh {
		return nil
	}
	led, err := s.opt.Store.Asked(request)
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	for _, digest := range []string{p.Digest, led} {
		kept, ok, err := s.opt.Store.Look(digest)
		if err != nil {
			return fmt.Errorf("store: %w", err)
		}
		if ok && w.take(kept, Stored) {
			return nil
		}
	}
	kept, ok, err := pipeline.Placed(s.opt.Dir, p.Digest)
	if ok {
		w.take(kept, Placed)
	}
	return err
}

// Preview says what would happen on every node, as far as that can be told
// while wheels are still to be built. It changes nothing.
func (s *Ship) Preview(ctx context.Context) (deploy.Plan, error) {
	for _, w := range s.plan.Wheels {
		if s.give(ctx, w); s.opt.Bundle != nil {
			s.awaitBundle(w)
		}
	}
	plan, err := deploy.NewGivenPlan(s.known, s.given, deploy.PlanOptions{Force: s.opt.Fleet.Force, Bundle: s.opt.Fleet.Bundle, Index: s.opt.Fleet.Index})
	plan.Respect(s.known, s.opt.Fleet.InUse)
	plan.Divide(s.opt.Fleet.Serial)
	if err == nil {
		err = s.plan.nothing()
	}
	if err == nil {
		err = plan.Err()
	}
	return plan, err
}

// Build builds the wheels that are not there yet, and puts all that somebody is
// to get where they are wanted. A wheel that fails stops no other.
func (s *Ship) Build(ctx context.Context) {
	jobs := s.jobs(ctx)
	if len(jobs) > 0 {
		s.built = true
		for i, r := range s.opt.Build(ctx, jobs) {
			s.take(r, s.named(jobs[i].Name))
		}
	}
	for _, w := range s.plan.Wheels {
		if w.State == Stored || w.State == Running && s.opt.Keep {
			s.place(w)
		}
	}
}

// jobs plans what has to be built.
func (s *Ship) jobs(ctx context.Context) []pipeline.Job {
	var jobs []pipeline.Job
	for _, w := range s.plan.Wheels {
		if w.State == ToBuild && ctx.Err() != nil {
			w.fail(context.Cause(ctx))
		}
		if w.State != ToBuild {
			continue
		}
		p, err := s.opt.Plans.Plan(ctx, w.Name, w.Spec)
		if err != nil {
			w.fail(err)
			continue
		}
		w.Plan = p
		jobs = append(jobs, pipeline.Job{Name: w.Name, Plan: p})
	}
	return jobs
}

func (s *Ship) named(name string) *Wheel {
	i := slices.IndexFunc(s.plan.Wheels, func(w *Wheel) bool { return w.Name == name })
	return s.plan.Wheels[i]
}

// take notes what became of a build.
func (s *Ship) take(r pipeline.Result, w *Wheel) {
	if r.Err != nil {
		w.fail(r.Err)
		return
	}
	w.State, w.Artifact, w.Engine = Built, r.Artifact, r.Engine
	if r.Artifact.Cached {
		w.State = Stored
	}
	if err := s.opt.Store.Note(w.request, w.Plan.Digest); err != nil {
		s.opt.Report.Warn("%s: the store does not keep in mind what it was built for: %v", w.Name, err)
	}
}

// place puts a wheel of the store where it is wanted.
func (s *Ship) place(w *Wheel) {
	if w.Artifact.Path != "" { // by the build
		return
	}
	for _, other := range s.plan.Wheels {
		if m := other.Artifact.Manifest; other.Artifact.Path != "" && m.Name == w.Artifact.Manifest.Name && m.SHA256 != w.Artifact.SHA256 {
			w.fail(&pipeline.NameError{Name: m.Name, Owner: other.Name})
			return
		}
	}
	a, err := pipeline.Place(w.product, s.opt.Dir)
	if err != nil {
		w.fail(err)
		return
	}
	a.Cached = true
	w.Artifact = a
}

// Deploy gives every node its wheel, and tells what came of it. The report is
// complete also when ctx ends on the way.
func (s *Ship) Deploy(ctx context.Context) *deploy.Report {
	if s.built && ctx.Err() == nil { // what was found before may have changed since
		if known, err := s.fleet.Probe(ctx); err == nil {
			s.known = known
		}
	}
	for _, w := range s.plan.Wheels {
		if s.give(ctx, w); s.opt.Bundle != nil {
			s.bundle(ctx, w)
		}
	}
	if _, err := s.fleet.Give(ctx, s.given); err != nil {
		return s.Report()
	}
	s.fleet.Apply(ctx)
	return s.Report()
}

// Report is what has been done so far.
func (s *Ship) Report() *deploy.Report {
	r := s.fleet.Report()
	if s.plan != nil {
		r.Groups = s.plan.Groups()
	}
	return r
}

// Run is Build and Deploy, with what came of them. The error carries the exit
// code; the report is there in any case.
func (s *Ship) Run(ctx context.Context) (*deploy.Report, error) {
	s.Build(ctx)
	r := s.Deploy(ctx)
	if ctx.Err() != nil {
		return r, context.Cause(ctx)
	}
	if err := s.plan.nothing(); err != nil {
		return r, err
	}
	return r, r.Err()
}

// give gives a wheel to its nodes, or the reason why there is none.
func (s *Ship) give(ctx context.Context, w *Wheel) {
	g := deploy.Given{Wheel: &deploy.Wheel{Manifest: wheel.Manifest{Name: w.Name, SHA256: w.Name}}, Coming: "once it is built"}
	if w.Err == nil && w.State != ToBuild {
		loaded, err := deploy.LoadWheels(ctx, w.path(), deploy.DefaultVerified())
		if err != nil {
			w.fail(err)
		} else {
			g = deploy.Given{Wheel: &loaded[0]}
		}
	}
	if w.Err != nil {
		g = deploy.Given{Err: &MissingError{w.Name, w.Err}}
	}
	for _, i := range w.places {
		s.given[i] = g
	}
}

// lacking are the nodes of a wheel that lack something it requires; none where it
// is still to come.
func (s *Ship) lacking(w *Wheel) (places []int) {
	for _, i := range w.places {
		g := s.given[i]
		if g.Wheel == nil || g.Coming != "" {
			continue
		}
		if lacks, err := deploy.Lacks(*g.Wheel, s.known[i].Facts); err == nil && len(lacks) > 0 {
			places = append(places, i)
		}
	}
	return places
}

// awaitBundle notes of nodes that lack something that a wheelhouse will bring it.
func (s *Ship) awaitBundle(w *Wheel) {
	for _, i := range s.lacking(w) {
		s.given[i].Coming = "with what it lacks, once that is gathered"
	}
}

// bundle has the wheelhouse made for those nodes of a wheel that lack something.
// Without it they are refused, and the others served.
func (s *Ship) bundle(ctx context.Context, w *Wheel) {
	lacking := s.lacking(w)
	if len(lacking) == 0 || ctx.Err() != nil {
		return
	}
	a := w.Artifact
	a.Path = w.path()
	p, err := w.Plan, error(nil)
	if w.State != Built { // planned without an engine
		p, err = s.opt.Plans.Plan(ctx, w.Name, w.Spec)
	}
	var b *wheel.Bundle
	if err == nil {
		b, err = s.opt.Bundle(ctx, w.Name, p, a)
	}
	if err != nil {
		s.opt.Report.Warn("%s: no wheelhouse: %v", w.Name, err)
		return
	}
	for _, i := range lacking {
		s.given[i].Bundle = b
	}
}

// MissingError is a node whose wheel could not be had.
type MissingError struct {
	Wheel string
	Err   error
}

func (e *MissingError) Error() string {
	reason, _, _ := strings.Cut(e.Err.Error(), "\n")
	return fmt.Sprintf("there is no wheel %s: %s", e.Wheel, reason)
}

func (e *MissingError) Unwrap() error { return e.Err }
