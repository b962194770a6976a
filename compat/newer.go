package compat

import "fmt"

// manyMinors is the number of minors of torch from which a note is worthwhile, if the user's
// choice of Python costs them.
const manyMinors = 3

// newerTorch names another Python that would give a much newer torch, if the user left torch and
// CUDA to dsbuild; "" if there is none.
func (best *evaluation) newerTorch() string {
	spec := best.spec
	if spec.Torch != "" || spec.CUDA != "" || spec.Python == "" || best.source.Source == FoundCUDA {
		return ""
	}
	for _, near := range NearestVersions(spec.Python, allPythons(best.Torches)) {
		other := spec
		other.Python = near
		a := best.find(other, best.namedEnvironments(), best.archOptional)
		if a != nil && minorsBetween(best.Torches, best.torch, a.torch) >= manyMinors {
			return fmt.Sprintf("torch %s is the newest for this request: with --python %s it is %s", best.torch.Version, near, a.torch.Version)
		}
	}
	return ""
}

// minorsBetween counts the minors by which a torch is newer, 0 if it is older.
func minorsBetween(all []Torch, from, to Torch) int {
	seen := map[string]bool{}
	for _, r := range all {
		if compareVersions(r.Version, from.Version) > 0 && compareVersions(r.Version, to.Version) <= 0 {
			seen[firstTwo(r.Version)] = true
		}
	}
	delete(seen, firstTwo(from.Version))
	return len(seen)
}

// namedEnvironments returns the build environments of the caller, nil if they come from the
// tables.
func (w *requirements) namedEnvironments() []BuildEnvironment {
	if w.environmentsNamed {
		return w.environments
	}
	return nil
}
