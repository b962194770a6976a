package compat

import (
	"errors"

	"github.com/dsbuild/dsbuild/wheel"
)

// Pair says which toolchain makes a wheel for one torch and one Python, or why
// none does.
type Pair struct {
	Torch  string   `json:"torch"`
	CUDA   string   `json:"cuda"`
	Python string   `json:"python"`
	Road   Road     `json:"toolchain,omitempty"`
	Base   string   `json:"base,omitempty"`
	Why    []string `json:"why,omitempty"`
	Try    string   `json:"hint,omitempty"`
}

// Matrix resolves the newest torch of every minor with each of its Pythons, for
// what is wanted otherwise, newest torch first.
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
				p.Road, p.Base = tc.Road, tc.Ground.Ref
			case errors.As(err, &bad):
				for _, c := range bad.Conflicts {
					p.Why = append(p.Why, c.What)
				}
				p.Try = bad.Hint()
			default:
				p.Why = []string{err.Error()}
			}
			out = append(out, p)
		}
	}
	return out
}
