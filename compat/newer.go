package compat

import (
	"fmt"
	"strings"

	"github.com/dsbuild/dsbuild/wheel"
)

// manyMinors of torch are worth a word where something else given costs them.
const manyMinors = 3

// newerTorch says which other Python, glibc or base would give a much newer
// torch, where torch itself was left to dsbuild; "" where nothing does. CUDA, or
// a base with its toolkit, is as good as a torch.
func (t *Tables) newerTorch(best *attempt) string {
	w := best.want
	if w.spec.Torch != "" || w.spec.CUDA != "" || best.road.Road == Found {
		return ""
	}
	var ways []string
	for _, v := range versions() {
		ways = append(ways, t.newerWith(best, v)...)
	}
	for _, c := range t.loosen(choice{spec: w.spec, grounds: given(w)}, []loosener{t.loosenGround}, 1, w.loose) {
		if newer := t.muchNewer(best, c.spec, c.grounds); newer != "" {
			ways = append(ways, "with "+c.text+" it is "+newer)
		}
	}
	free := w.spec
	free.Python, free.Glibc = "", ""
	if newer := t.muchNewer(best, free, given(w)); newer != "" && len(ways) == 0 {
		ways = []string{fmt.Sprintf("without --python %s and --glibc %s it is %s", w.spec.Python, w.spec.Glibc, newer)}
	}
	if len(ways) == 0 {
		return ""
	}
	return fmt.Sprintf("torch %s is the newest that goes with what is given: %s", best.torch.Version, strings.Join(ways, ", "))
}

// newerWith finds the nearest other value of one that is given.
func (t *Tables) newerWith(best *attempt, v version) []string {
	spec := best.spec
	asked := *v.field(&spec)
	if asked == "" {
		return nil
	}
	for _, near := range nearestVersions(asked, v.known(t)) {
		*v.field(&spec) = near
		if newer := t.muchNewer(best, spec, given(best.want)); newer != "" {
			return []string{"with " + v.flag + " " + near + " it is " + newer}
		}
	}
	return nil
}

// muchNewer is the torch of another Spec, if that is worth a word.
func (t *Tables) muchNewer(best *attempt, spec wheel.Spec, grounds []Ground) string {
	a := t.find(spec, grounds, best.loose)
	if a == nil || t.minorsBetween(best.torch, a.torch) < manyMinors {
		return ""
	}
	return a.torch.Version
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
