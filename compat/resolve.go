package compat

import (
	"cmp"
	"iter"
	"slices"

	"github.com/dsbuild/dsbuild/wheel"
)

// Resolve chooses the toolchain for s in one of the build environments, by default those of the
// tables. If there is none, it returns a *ConflictError that names every conflict and the
// nearest fix.
//
// Among the candidates without a conflict it prefers, in this order: a torch that runs on the
// GPUs asked for, the CUDA toolkit of the build environment, the newest torch, a toolkit of
// exactly torch's CUDA, and the order of the tables.
func (t *Tables) Resolve(s wheel.Spec, environments ...BuildEnvironment) (Toolchain, error) {
	best := t.find(s, environments, false)
	if best == nil {
		return Toolchain{}, t.conflict(request{spec: s, environments: environments})
	}
	tc := best.finishedToolchain()
	if newer := best.newerTorch(); newer != "" {
		tc.Notes = append(tc.Notes, newer)
	}
	return tc, nil
}

// find is Resolve without the reasons: nil if there is no toolchain. With archOptional a
// Spec without an arch is complete.
func (t *Tables) find(s wheel.Spec, environments []BuildEnvironment, archOptional bool) *evaluation {
	w, bad := t.lookUp(s, environments)
	if len(bad) > 0 {
		return nil
	}
	w.archOptional = archOptional && len(w.archs) == 0
	best, _ := t.search(w)
	return best
}

// candidate is one combination of torch, CUDA source, build environment and Python.
type candidate struct {
	torch       Torch
	source      CUDASourceInfo
	environment BuildEnvironment
	python      string
	places      [4]int // in the tables: torch, source, environment, Python
}

// rank orders candidates: lower is better, the first number that differs decides.
type rank [9]int

// search returns the best candidate without a conflict. If there is none, refused has the
// best candidate of each CUDA source, with its conflicts.
func (t *Tables) search(w *requirements) (best *evaluation, refused []*evaluation) {
	refused = make([]*evaluation, len(t.CUDASources))
	for c := range t.candidates(w) {
		r := c.rankFor(w)
		if best != nil && slices.Compare(r[:5], best.rank[:5]) > 0 {
			continue // without a closer look
		}
		e := t.evaluate(w, c)
		e.rank = r
		e.rank[5] = len(e.toolchain.Left)
		if len(e.conflicts) == 0 {
			if best == nil || slices.Compare(e.rank[:], best.rank[:]) < 0 {
				best = e
			}
			continue
		}
		have := refused[c.places[1]]
		if have == nil || cmp.Or(boolToInt(e.impossible)-boolToInt(have.impossible), slices.Compare(e.rank[:], have.rank[:])) < 0 {
			refused[c.places[1]] = e
		}
	}
	return best, refused
}

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (c candidate) rankFor(w *requirements) rank {
	e := evaluation{requirements: w, candidate: c}
	torch, source, environment, python := c.places[0], c.places[1], c.places[2], c.places[3]
	return rank{
		len(e.archsTorchLacks()),
		boolToInt(w.allOps && !c.source.Nvcc), // all ops means more than the ops without device code
		boolToInt(c.environment.CUDA != "" && c.source.Source != FoundCUDA),
		torch,
		boolToInt(firstTwo(e.toolkitVersion()) != c.torch.CUDA),
		0, // the ops left out, which evaluate counts
		source, environment, python,
	}
}

// candidates yields the combinations that w allows.
func (t *Tables) candidates(w *requirements) iter.Seq[candidate] {
	return func(yield func(candidate) bool) {
		for i, torch := range t.Torches {
			if !isTorch(w.spec.Torch, torch) || !isCUDA(w.spec.CUDA, torch.CUDA) {
				continue
			}
			for k, g := range w.environments {
				for j, source := range t.CUDASources {
					if g.isForeign() || !source.fitsTorch(torch, g) {
						continue
					}
					for l, python := range g.pythonsFor(w.spec.Python, torch) {
						if !yield(candidate{torch, source, g, python, [4]int{i, j, k, l}}) {
							return
						}
					}
				}
			}
		}
	}
}

// isForeign reports whether no x86_64 wheel can be built there.
func (g BuildEnvironment) isForeign() bool { return g.Machine != "" && g.Machine != x86Machine }

// pythonsFor lists the Pythons that are asked for, that the build environment has and that
// torch has wheels for. A build environment that names none has the one asked for.
func (g BuildEnvironment) pythonsFor(asked string, torch Torch) []string {
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
