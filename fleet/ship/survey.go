package ship

import (
	"context"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// probe gathers the facts of every node.
func (s *Ship) probe(ctx context.Context) error {
	known, err := s.deploy.Probe(ctx)
	if err != nil {
		return err
	}
	for i := range known {
		s.probed = append(s.probed, known[i].Facts)
		if known[i].Err == nil && s.opt.Assume != nil {
			known[i].Facts = s.opt.Assume(known[i].Facts)
		}
	}
	s.known, s.assignments = known, make([]deploy.Assignment, len(known))
	s.selection = &Selection{Nodes: len(known), Excluded: []ExcludedNode{}}
	return nil
}

// group groups the nodes into the fewest wheels, and records the nodes that get none: no wheel is built for a node that
// would refuse any wheel.
func (s *Ship) group(ctx context.Context) {
	var members []compat.Member
	var places []int // of the members in the inventory
	for i, n := range deploy.Usable(s.known, deploy.PlanOptions{}).Nodes {
		left := ExcludedNode{Reasons: n.Reasons, Hint: n.Hint, cause: n.Common()}
		switch {
		case n.Action == change.Refuse && !s.opt.BuildOnly:
			s.refuse(i, left)
		case n.Action == change.Absent:
			s.exclude(i, left)
		default:
			members = append(members, compat.Member{Name: s.known[i].Name, Facts: s.known[i].Facts})
			places = append(places, i)
		}
	}
	grouping := s.opt.Plans.Group(ctx, members, s.opt.Want)
	for _, l := range grouping.Unserved {
		s.refuse(places[l.Node], ExcludedNode{Reasons: l.Reasons, Hint: l.Hint, unserved: true})
	}
	for _, g := range grouping.Groups {
		w := &Delivery{Request: g.Request, Why: g.Reasons, State: ToBuild}
		for _, n := range g.Nodes {
			w.indexes = append(w.indexes, places[n])
			w.Nodes = append(w.Nodes, s.known[places[n]].Name)
		}
		s.selection.Wheels = append(s.selection.Wheels, w)
	}
	nameWheels(s.selection.Wheels)
}

// refuse records that a node gets no wheel, and that the deploy refuses it.
func (s *Ship) refuse(i int, l ExcludedNode) {
	s.assignments[i].Refusal = &deploy.Refusal{Reasons: l.Reasons, Hint: l.Hint}
	s.exclude(i, l)
}

// exclude records that a node gets no wheel, and why.
func (s *Ship) exclude(i int, l ExcludedNode) {
	l.Node, l.index = s.known[i].Name, i
	s.selection.Excluded = append(s.selection.Excluded, l)
	slices.SortFunc(s.selection.Excluded, func(a, b ExcludedNode) int { return a.index - b.index })
}

// keepOps refuses the nodes whose DeepSpeed has ops that their wheel lacks, unless AllowOpRemoval is set. Nodes without
// a visible GPU, for example, get a wheel without device code. A wheel without nodes is dropped.
func (s *Ship) keepOps() {
	if s.opt.BuildOnly || s.opt.Assume != nil { // else the wheel replaces the installed DeepSpeed
		return
	}
	for _, w := range s.selection.Wheels {
		if w.Plan == nil {
			continue
		}
		kept, all := w.Plan.Toolchain().OpNames(false), w.indexes
		w.indexes, w.Nodes = nil, nil
		for _, i := range all {
			n := s.known[i]
			var removed []string
			if d := n.Facts.DeepSpeed; d != nil {
				isKept := func(op string) bool { return slices.Contains(kept, op) }
				removed = slices.DeleteFunc(slices.Clone(d.Ops), isKept)
			}
			ops := ui.OneLine(strings.Join(removed, ", "))
			if len(removed) > 0 && !s.opt.AllowOpRemoval {
				reason := "wheel would remove " + ops + " from the installed DeepSpeed"
				if len(n.Facts.GPUs) == 0 {
					reason += ": no GPU found on the node"
				}
				const hint = "pass --allow-op-removal to remove them, or set --ops and --gpu"
				s.refuse(i, ExcludedNode{Reasons: []string{reason}, Hint: hint})
				continue
			}
			if len(removed) > 0 {
				w.Why = append(w.Why, "removes "+ops+" from "+n.Name)
			}
			w.indexes, w.Nodes = append(w.indexes, i), append(w.Nodes, n.Name)
		}
	}
	s.selection.Wheels = slices.DeleteFunc(s.selection.Wheels, func(w *Delivery) bool { return len(w.Nodes) == 0 })
}

// markRunning records which nodes run their wheel already.
func (s *Ship) markRunning() {
	for _, w := range s.selection.Wheels {
		w.Running = w.nodesRunning(s.known)
		if len(w.Running) == len(w.Nodes) && !s.deploy.Rules.Force {
			w.State = Running
		}
	}
}
