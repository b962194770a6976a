package compat

import (
	"cmp"
	"iter"
	"slices"

	"github.com/dsbuild/dsbuild/wheel"
)

// Resolve chooses the toolchain for s in one of the build environments, by default those of the
// tables. If there is none, it returns a *ConflictError that names every conflict and, if there is one, the
// change of one constraint that is enough.
//
// Among the candidates without a conflict it prefers, in this order: a torch that runs on the
// GPUs asked for, the CUDA toolkit of the build environment, the newest torch, a toolkit of
// exactly torch's CUDA, and the order of the tables.
func (t *Tables) Resolve(s wheel.Request, environments ...BuildHost) (Toolchain, error) {
	best := t.find(s, environments)
	if best == nil {
		return Toolchain{}, t.conflict(request{spec: s, environments: environments})
	}
	return best.finishedToolchain(), nil
}

// find is Resolve without the reasons: nil if there is no toolchain.
func (t *Tables) find(s wheel.Request, environments []BuildHost) *evaluation {
	w, bad := t.lookUp(s, environments)
	if len(bad) > 0 {
		return nil
	}
	best, _ := t.search(w)
	return best
}

// candidate is one combination of torch, CUDA source, build environment and Python.
type candidate struct {
	torch       Torch
	source      CUDASourceInfo
	environment BuildHost
	python      string
	places      [4]int // in the tables: torch, source, environment, Python
}

// preference orders candidates before their conflicts are known: lower is better, and the first
// field that differs decides.
type preference struct {
	archsWithoutTorch int // of the archs asked for, those that torch's own binaries do not run on
	lacksNvcc         int // 1 if all ops are asked for and there is no nvcc
	ignoresToolkit    int // 1 if the build environment has a toolkit that is not used
	torch             int // place in the table
	otherCUDA         int // 1 if the toolkit is not of exactly torch's CUDA
}

func (p preference) compare(o preference) int {
	return cmp.Or(
		cmp.Compare(p.archsWithoutTorch, o.archsWithoutTorch), cmp.Compare(p.lacksNvcc, o.lacksNvcc),
		cmp.Compare(p.ignoresToolkit, o.ignoresToolkit), cmp.Compare(p.torch, o.torch), cmp.Compare(p.otherCUDA, o.otherCUDA),
	)
}

// compare orders evaluations: after the preference, fewer ops that are left out, then the order of the tables.
func (a *evaluation) compare(o *evaluation) int {
	return cmp.Or(
		a.preference.compare(o.preference), cmp.Compare(len(a.toolchain.Left), len(o.toolchain.Left)),
		slices.Compare(a.places[:], o.places[:]),
	)
}

// search returns the best candidate without a conflict. If there is none, refused has the
// best candidate of each CUDA source, with its conflicts.
func (t *Tables) search(w *requirements) (best *evaluation, refused []*evaluation) {
	refused = make([]*evaluation, len(t.CUDASources))
	for c := range w.candidates(t.Torches, t.CUDASources) {
		e := &evaluation{Tables: t, requirements: w, candidate: c}
		p := preference{
			archsWithoutTorch: len(e.archsTorchLacks()),
			lacksNvcc:         oneIf(w.allOps && !c.source.Nvcc),
			ignoresToolkit:    oneIf(c.environment.CUDA != "" && c.source.Source != FoundCUDA),
			torch:             c.places[0],
			otherCUDA:         oneIf(firstTwo(e.toolkitVersion()) != c.torch.CUDA),
		}
		if best != nil && p.compare(best.preference) > 0 {
			continue // without a closer look
		}
		e.preference = p
		e.evaluate()
		if len(e.conflicts) == 0 {
			if best == nil || e.compare(best) < 0 {
				best = e
			}
			continue
		}
		source := c.places[1]
		have := refused[source]
		if have == nil || cmp.Or(oneIf(e.impossible)-oneIf(have.impossible), e.compare(have)) < 0 {
			refused[source] = e
		}
	}
	return best, refused
}

func oneIf(b bool) int {
	if b {
		return 1
	}
	return 0
}

// candidates yields the combinations that w allows.
func (w *requirements) candidates(torches []Torch, sources []CUDASourceInfo) iter.Seq[candidate] {
	return func(yield func(candidate) bool) {
		for i, torch := range torches {
			if !isTorch(w.spec.Torch, torch) || !isCUDA(w.spec.CUDA, torch.CUDA) {
				continue
			}
			for k, g := range w.environments {
				for j, source := range sources {
					if !g.builds(w.machine) || !source.fitsTorch(torch, g) {
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

// pythonsFor lists the Pythons that are asked for, that the build environment has and that
// torch has wheels for. A build environment that names none has the one asked for.
func (g BuildHost) pythonsFor(asked string, torch Torch) []string {
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
