package compat

import (
	"cmp"
	"slices"

	"github.com/dsbuild/dsbuild/wheel"
)

// Resolve chooses the toolchain for s on one of the grounds, which are the
// bases of the tables where none is given; or it returns a *ConflictError that
// names every conflict at once, with what works instead.
//
// Of the combinations of torch, road, ground and Python against which nothing
// speaks it takes the one whose torch runs on the GPUs asked for, which uses
// the CUDA toolkit that the ground has, and is newest; then a toolkit of just
// torch's CUDA, and the order of the tables.
func (t *Tables) Resolve(s wheel.Spec, grounds ...Ground) (Toolchain, error) {
	w, bad := t.read(s, grounds)
	best := t.search(w)
	if best != nil && len(bad) == 0 {
		tc := best.toolchain()
		if newer := t.newerTorch(best); newer != "" {
			tc.Notes = append(tc.Notes, newer)
		}
		return tc, nil
	}
	return Toolchain{}, t.conflict(w, bad)
}

// find is Resolve where the reasons do not matter.
func (t *Tables) find(s wheel.Spec, grounds []Ground, loose bool) *attempt {
	w, bad := t.read(s, grounds)
	if len(bad) > 0 {
		return nil
	}
	w.loose = loose && len(w.archs) == 0
	return t.search(w)
}

// rank orders what is possible: lower is better, the first that differs
// decides.
type rank [9]int

// search returns the best candidate against which nothing speaks, or nil.
func (t *Tables) search(w *want) *attempt {
	var best *attempt
	var bestRank rank
	for c, at := range t.candidates(w) {
		r := t.rank(w, c, at)
		if best != nil && slices.Compare(r[:5], bestRank[:5]) > 0 {
			continue // without a closer look
		}
		a := t.try(w, c)
		if len(a.why) > 0 {
			continue
		}
		r[5] = len(a.tc.Left)
		if best == nil || slices.Compare(r[:], bestRank[:]) < 0 {
			best, bestRank = a, r
		}
	}
	return best
}

// rank says how good a candidate is; at are its places in the tables.
func (t *Tables) rank(w *want, c candidate, at [4]int) rank {
	a := attempt{want: w, candidate: c}
	r := rank{len(a.unserved()), 0, 0, at[0], 0, 0, at[1], at[2], at[3]}
	if w.all && !c.road.Nvcc { // all ops is more than those without device code
		r[1] = 1
	}
	if c.ground.CUDA != "" && c.road.Road != Found {
		r[2] = 1
	}
	if firstTwo(a.toolkit()) != c.torch.CUDA {
		r[4] = 1
	}
	return r
}

// candidates yields every combination of what is wanted by itself, with its
// places in the tables: torch, road, ground, Python.
func (t *Tables) candidates(w *want) func(func(candidate, [4]int) bool) {
	return func(yield func(candidate, [4]int) bool) {
		for i, torch := range t.Torches {
			if !isTorch(w.spec.Torch, torch) || !isCUDA(w.spec.CUDA, torch.CUDA) {
				continue
			}
			for k, g := range w.grounds {
				if g.foreign() {
					continue
				}
				for j, road := range t.Roads {
					if !road.serves(torch, g) {
						continue
					}
					for l, python := range g.pythons(w.spec.Python, torch) {
						if !yield(candidate{torch, road, g, python}, [4]int{i, j, k, l}) {
							return
						}
					}
				}
			}
		}
	}
}

// foreign reports whether no x86_64 wheel is built there.
func (g Ground) foreign() bool { return g.Machine != "" && g.Machine != x86 }

// pythons lists those that the ground has, torch has wheels for, and are the
// one asked for. A ground of which none is known has the one asked for.
func (g Ground) pythons(asked string, torch Torch) []string {
	var out []string
	have := g.Pythons
	if len(have) == 0 && asked != "" {
		have = []string{asked}
	}
	for _, p := range have {
		if (asked == "" || asked == p) && slices.Contains(torch.Pythons, p) {
			out = append(out, p)
		}
	}
	return out
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// closest returns, for each road that serves, the candidate against which
// least speaks.
func (t *Tables) closest(w *want) []*attempt {
	type found struct {
		*attempt
		rank rank
	}
	byRoad := make([]*found, len(t.Roads))
	for c, at := range t.candidates(w) {
		a := t.try(w, c)
		r := t.rank(w, c, at)
		have := byRoad[at[1]]
		if have == nil || cmp.Or(cmp.Compare(bit(a.ruled), bit(have.ruled)), cmp.Compare(len(a.why), len(have.why)), slices.Compare(r[:], have.rank[:])) < 0 {
			byRoad[at[1]] = &found{a, r}
		}
	}
	var out []*attempt
	for _, f := range byRoad {
		if f != nil {
			out = append(out, f.attempt)
		}
	}
	return out
}
