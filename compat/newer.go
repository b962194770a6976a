package compat

import "fmt"

// manyMinors of torch are worth a word where a Python that was given costs them.
const manyMinors = 3

// newerTorch says which other Python would give a much newer torch, where torch
// and CUDA were left to dsbuild; "" where none does.
func (t *Tables) newerTorch(best *attempt) string {
	spec := best.spec
	if spec.Torch != "" || spec.CUDA != "" || spec.Python == "" || best.road.Road == Found {
		return ""
	}
	for _, near := range NearestVersions(spec.Python, t.pythons()) {
		other := spec
		other.Python = near
		a := t.find(other, given(best.want), best.loose)
		if a != nil && t.minorsBetween(best.torch, a.torch) >= manyMinors {
			return fmt.Sprintf("torch %s is the newest that goes with what is given: with --python %s it is %s", best.torch.Version, near, a.torch.Version)
		}
	}
	return ""
}

// minorsBetween counts the minors that a newer torch is ahead, 0 for an older.
func (t *Tables) minorsBetween(from, to Torch) int {
	seen := map[string]bool{}
	for _, r := range t.Torches {
		if compareVersions(r.Version, from.Version) > 0 && compareVersions(r.Version, to.Version) <= 0 {
			seen[firstTwo(r.Version)] = true
		}
	}
	delete(seen, firstTwo(from.Version))
	return len(seen)
}
