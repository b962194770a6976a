package wheels

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/node"
	"github.com/dsbuild/dsbuild/wheel"
)

// Choose picks the wheel for a node. A single wheel is always chosen, and its verdict decides.
// With several, one must fit better than all others.
func Choose(tables *compat.Tables, wheels []Wheel, f node.Facts) (*Wheel, compat.Verdict, error) {
	if len(wheels) == 1 {
		return &wheels[0], tables.Fit(wheels[0].Manifest, f), nil
	}
	type fitting struct {
		w *Wheel
		v compat.Verdict
	}
	var fits []fitting
	var list []string
	for i := range wheels {
		v := tables.Fit(wheels[i].Manifest, f)
		if v.OK() {
			fits = append(fits, fitting{&wheels[i], v})
			continue
		}
		list = append(list, fmt.Sprintf("%s: %s", wheels[i].Manifest.Name, strings.Join(v.Reasons, "; ")))
	}
	if len(fits) == 0 {
		return nil, compat.Verdict{}, errors.New("no wheel fits it:\n    " + strings.Join(list, "\n    "))
	}
	var equal []string
	for _, a := range fits {
		beaten := func(b fitting) bool { return better(b.w.Manifest, b.v, a.w.Manifest, a.v) < 0 }
		beatsAll := func(b fitting) bool { return a.w == b.w || better(a.w.Manifest, a.v, b.w.Manifest, b.v) < 0 }
		if !slices.ContainsFunc(fits, func(b fitting) bool { return !beatsAll(b) }) {
			return a.w, a.v, nil
		}
		if !slices.ContainsFunc(fits, beaten) {
			equal = append(equal, a.w.Manifest.Name)
		}
	}
	return nil, compat.Verdict{}, errors.New("these fit it equally well: " + strings.Join(equal, ", "))
}

// better is negative if a suits a node more than b: first by fewer remarks (nothing to compile at
// first use), then by the higher CPU level. It never ranks wheels with different sources or ops:
// only the user knows which is wanted.
func better(a wheel.Manifest, av compat.Verdict, b wheel.Manifest, bv compat.Verdict) int {
	if a.Source != b.Source || !slices.Equal(slices.Sorted(slices.Values(a.Ops)), slices.Sorted(slices.Values(b.Ops))) {
		return 0
	}
	return cmp.Or(cmp.Compare(len(av.Remarks), len(bv.Remarks)), cmp.Compare(b.CPU, a.CPU))
}
