package compat

import (
	"cmp"
	"iter"
	"slices"

	"github.com/dsbuild/dsbuild/wheel"
)

// Resolve chooses the toolchain for r on one of the build hosts, by default the tables'. If there is
// none, it returns a *ConflictError with every conflict and, if possible, a change of one flag that is
// enough.
//
// Among the candidates without a conflict it prefers, in this order: a torch that runs on the
// requested GPUs, the CUDA toolkit of the build environment, the newest torch, a toolkit of
// exactly torch's CUDA, and the order of the tables.
func (t *Tables) Resolve(r wheel.Request, hosts ...BuildHost) (Toolchain, error) {
	asked := attempt{r, hosts}
	best := t.find(asked)
	if best == nil {
		return Toolchain{}, t.conflict(asked)
	}
	return best.finishedToolchain(), nil
}

// find is Resolve without the reasons: nil if there is no toolchain.
func (t *Tables) find(asked attempt) *evaluation {
	w, bad := t.lookUp(asked)
	if len(bad) > 0 {
		return nil
	}
	best, _ := t.search(w)
	return best
}

// candidate is one combination of torch, CUDA source, build environment and Python.
type candidate struct {
	torch  Torch
	source CUDASourceInfo
	host   BuildHost
	python string
	places [4]int // in the tables: torch, source, host, Python
}

// compare orders evaluations by preference, then fewer omitted ops, then the order of the tables.
func (a *evaluation) compare(o *evaluation) int {
	return cmp.Or(
		slices.Compare(a.preference, o.preference), cmp.Compare(len(a.toolchain.SkippedOps), len(o.toolchain.SkippedOps)),
		slices.Compare(a.places[:], o.places[:]),
	)
}

// search returns the best candidate without a conflict. If there is none, it returns the best
// candidate of each CUDA source, with its conflicts.
func (t *Tables) search(w *requirements) (best *evaluation, refused []*evaluation) {
	refused = make([]*evaluation, len(t.CUDASources))
	for c := range w.candidates(t.Torches, t.CUDASources) {
		e := &evaluation{Tables: t, requirements: w, candidate: c}
		e.preference = []int{
			len(e.archsTorchLacks()),
			oneIf(w.allOps && !c.source.Nvcc),
			oneIf(c.host.CUDA != "" && c.source.Source != FoundCUDA),
			c.places[0],
			oneIf(firstTwo(e.toolkitVersion()) != c.torch.CUDA),
		}
		if best != nil && slices.Compare(e.preference, best.preference) > 0 {
			continue // without a closer look
		}
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
			if !isTorch(w.request.Torch, torch) || !isCUDA(w.request.CUDA, torch.CUDA) {
				continue
			}
			for k, g := range w.hosts {
				for j, source := range sources {
					if !g.builds(w.machine) || !source.fitsTorch(torch, g) {
						continue
					}
					for l, python := range g.pythonsFor(w.request.Python, torch) {
						if !yield(candidate{torch, source, g, python, [4]int{i, j, k, l}}) {
							return
						}
					}
				}
			}
		}
	}
}

// pythonsFor lists the requested Pythons that the build environment has and that torch has wheels
// for. A build environment that lists none has the requested one.
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
