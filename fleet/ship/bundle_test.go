package ship

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/wheel"
)

func planWith(tc compat.Toolchain) *pipeline.Plan {
	return &pipeline.Plan{Parts: []pipeline.Part{{Toolchain: tc}}}
}

// pythonPlanner plans for the Python that is asked for, but not for 3.14.
type pythonPlanner struct{}

func (pythonPlanner) Group(context.Context, []compat.Member, wheel.Request) compat.Grouping {
	return compat.Grouping{}
}

func (pythonPlanner) Sketch(context.Context, wheel.Request) (*pipeline.Plan, error) {
	return nil, errors.New("not asked")
}

func (pythonPlanner) Plan(_ context.Context, _ string, s wheel.Request) (*pipeline.Plan, error) {
	if s.Python == "3.14" {
		return nil, errors.New("this machine has no Python 3.14")
	}
	return planWith(compat.Toolchain{Python: s.Python}), nil
}

// A wheel for several Pythons gets a wheelhouse for each Python of the nodes that lack packages.
func TestBundleForEachPython(t *testing.T) {
	built := planWith(compat.Toolchain{Python: "3.11"})
	w := &Delivery{Name: "py3-torch2.10", State: Built, Plan: built}
	loaded := &wheel.Loaded{Requires: []string{"hjson"}}
	made := map[string]string{}
	s := &Ship{opt: Options{
		Plans: pythonPlanner{}, Report: ui.New(t.Output(), ui.Options{}),
		Bundle: func(_ context.Context, name string, p *pipeline.Plan, _ wheel.Artifact) (*wheel.Bundle, error) {
			made[name] = p.Toolchain().Python
			return &wheel.Bundle{Python: p.Toolchain().Python}, nil
		},
	}}
	for i, python := range []string{"3.12.3", "3.11.2", "3.12.1", "3.13.0", "3.14.0"} {
		f := node.Facts{Python: python}
		if python == "3.13.0" {
			f.Dists = map[string]string{"hjson": "3.1.0"}
		}
		s.known = append(s.known, deploy.ProbeResult{Facts: f})
		s.assignments = append(s.assignments, deploy.Assignment{Wheel: loaded})
		w.indexes = append(w.indexes, i)
	}
	s.bundleForNodes(t.Context(), w)
	wheelhouses := map[string]string{"py3-torch2.10-cp311": "3.11", "py3-torch2.10-cp312": "3.12"}
	if !maps.Equal(made, wheelhouses) {
		t.Errorf("made %q, want %q", made, wheelhouses)
	}
	var got []string
	for _, g := range s.assignments {
		python := "-"
		if g.Bundle != nil {
			python = g.Bundle.Python
		}
		got = append(got, python)
	}
	if want := []string{"3.12", "3.11", "3.12", "-", "-"}; !slices.Equal(got, want) {
		t.Errorf("wheelhouses for %q, want %q", got, want)
	}
}
