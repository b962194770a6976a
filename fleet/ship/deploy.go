package ship

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/wheel"
)

// assignPending assigns the wheels before the builds. A node that lacks packages gets its wheel with them.
func (s *Ship) assignPending(ctx context.Context) {
	for _, w := range s.selection.Wheels {
		if s.assign(ctx, w); s.opt.Bundle == nil {
			continue
		}
		for _, i := range s.nodesLackingPackages(w) {
			s.assignments[i].Wheel = nil
			s.assignments[i].Pending = "with missing packages, once they are collected"
		}
	}
}

// assignBuilt assigns the wheels after the builds, and collects the packages that nodes lack.
func (s *Ship) assignBuilt(ctx context.Context) {
	for _, w := range s.selection.Wheels {
		if s.assign(ctx, w); s.opt.Bundle != nil {
			s.bundleForNodes(ctx, w)
		}
	}
}

// assign assigns a wheel to its nodes, or the reason why it does not exist.
func (s *Ship) assign(ctx context.Context, w *Delivery) {
	a := deploy.Assignment{Name: w.Name, Pending: "once it is built"}
	if w.Err == nil && w.State != ToBuild {
		loaded, err := wheel.LoadAll(ctx, w.filePath())
		if err != nil {
			w.markFailed(err)
		} else {
			a = deploy.Assignment{Name: loaded[0].Manifest.Name, Wheel: &loaded[0]}
		}
	}
	if w.Err != nil {
		reason, _, _ := strings.Cut(w.Err.Error(), "\n")
		err := fmt.Errorf("no wheel %s: %s", w.Name, reason)
		a = deploy.Assignment{Err: fault.AddHint(err, fault.Hint(w.Err))}
	}
	for _, i := range w.indexes {
		s.assignments[i] = a
	}
}

// nodesLackingPackages returns the nodes of a wheel that lack a package that it requires, or nil if the wheel is not
// built yet.
func (s *Ship) nodesLackingPackages(w *Delivery) (places []int) {
	for _, i := range w.indexes {
		g := s.assignments[i]
		if g.Wheel == nil {
			continue
		}
		if lacks, err := deploy.MissingRequirements(*g.Wheel, s.known[i].Facts); err == nil && len(lacks) > 0 {
			places = append(places, i)
		}
	}
	return places
}

// bundleForNodes makes wheelhouses for the nodes of a wheel that lack packages, one for each Python version. If that
// fails, these nodes are refused and the others served.
func (s *Ship) bundleForNodes(ctx context.Context, w *Delivery) {
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
// one of them; for another Python, the packages are collected with a base that has that Python.
func (s *Ship) makeBundle(ctx context.Context, w *Delivery, python string) (*wheel.Bundle, error) {
	a, p, name := w.Artifact, w.Plan, w.Name
	a.Path = w.filePath()
	r := w.Request
	if r.Python == "" {
		name += "-cp" + strings.ReplaceAll(python, ".", "")
	}
	if w.State != Built || p.Toolchain().Python != python { // planned without an engine, or for another Python
		r.Python = python
		var err error
		if p, err = s.opt.Plans.Plan(ctx, name, r); err != nil {
			return nil, err
		}
	}
	return s.opt.Bundle(ctx, name, p, a)
}
