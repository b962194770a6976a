package compat

import (
	"errors"

	"github.com/dsbuild/dsbuild/wheel"
)

// Pair holds the toolchain that makes a wheel for one torch and one Python, or the reason why
// there is none.
type Pair struct {
	Torch      string     `json:"torch"`
	CUDA       string     `json:"cuda"`
	Python     string     `json:"python"`
	CUDASource CUDASource `json:"toolchain,omitempty"`
	Base       string     `json:"base,omitempty"`
	Why        []string   `json:"why,omitempty"`
	Try        string     `json:"hint,omitempty"`
}

// Matrix resolves the newest torch of every minor with each of its Pythons, newest torch
// first. The other values come from want.
func (t *Tables) Matrix(want wheel.Spec) []Pair {
	var out []Pair
	seen := map[string]bool{}
	for _, torch := range t.Torches {
		if seen[firstTwo(torch.Version)] {
			continue
		}
		seen[firstTwo(torch.Version)] = true
		for _, python := range torch.Pythons {
			spec := want
			spec.Torch, spec.Python = torch.Version, python
			p := Pair{Torch: torch.Version, CUDA: torch.CUDA, Python: python}
			tc, err := t.Resolve(spec)
			var bad *ConflictError
			switch {
			case err == nil:
				p.CUDASource, p.Base = tc.CUDASource, tc.Environment.Ref
			case errors.As(err, &bad):
				p.Why, p.Try = reasonsOf(bad.Conflicts), bad.Hint()
			default:
				p.Why = []string{err.Error()}
			}
			out = append(out, p)
		}
	}
	return out
}
