package compat

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/wheel"
)

// Choice is the wheel for a node.
type Choice struct {
	Wheel   *wheel.Loaded // nil: none of several wheels fits
	Verdict Verdict       // without a wheel: the reasons of each
	Why     []string      // why not each of the other compatible wheels
}

// Choose picks the wheel for a node. A single wheel is always chosen, and its verdict decides.
// With several, one must fit better than all others.
func Choose(tables *Tables, offered []wheel.Loaded, f node.Facts) (Choice, error) {
	if len(offered) == 1 {
		return Choice{Wheel: &offered[0], Verdict: tables.Fit(offered[0].Manifest, f)}, nil
	}
	var fits []fitting
	var list []string
	for i := range offered {
		v := tables.Fit(offered[i].Manifest, f)
		if v.OK() {
			fits = append(fits, fitting{&offered[i], v})
			continue
		}
		list = append(list, fmt.Sprintf("%s is incompatible: %s", offered[i].Manifest.Name, strings.Join(v.Reasons, ", ")))
	}
	if len(fits) == 0 {
		return Choice{Verdict: Verdict{Reasons: list}}, nil
	}
	var equal []string
	for _, a := range fits {
		others := slices.DeleteFunc(slices.Clone(fits), func(b fitting) bool { return a.w == b.w })
		beatsAll := !slices.ContainsFunc(others, func(b fitting) bool { order, _ := a.compare(b); return order >= 0 })
		if beatsAll {
			choice := Choice{Wheel: a.w, Verdict: a.v}
			for _, b := range others {
				_, why := a.compare(b)
				choice.Why = append(choice.Why, fmt.Sprintf("preferred to %s, which is also compatible: %s", b.w.Manifest.Name, why))
			}
			return choice, nil
		}
		if !slices.ContainsFunc(others, func(b fitting) bool { order, _ := a.compare(b); return order > 0 }) {
			equal = append(equal, a.w.Manifest.Name)
		}
	}
	return Choice{}, errors.New("equally suitable wheels: " + strings.Join(equal, ", "))
}

// fitting is a wheel that fits a node, with its verdict.
type fitting struct {
	w *wheel.Loaded
	v Verdict
}

// compare returns a negative order if a suits a node more than b, and why. It prefers fewer notes (nothing to
// compile at first use), then the highest CPU level, then more CUDAs, then a wheel for the node's own torch over
// a wheel for several. It never ranks wheels with different sources or ops, because only the user knows which is
// wanted, with one exception: a wheel of the stable ABI is also compatible with nodes for which another wheel
// was made, so compare prefers the wheel with more ops.
func (a fitting) compare(b fitting) (order int, why string) {
	m, n := a.w.Manifest, b.w.Manifest
	if m.Source != n.Source {
		return 0, ""
	}
	all, others := hasAll(m.Ops, n.Ops), hasAll(n.Ops, m.Ops)
	several := m.TorchABI.IsStable() || n.TorchABI.IsStable()
	if !all && !others || all != others && !several {
		return 0, ""
	}
	for _, c := range []struct {
		order int
		why   string
	}{
		{oneIf(others) - oneIf(all), "more ops"},
		{cmp.Compare(len(a.v.Notes), len(b.v.Notes)), "fewer compatibility notes"},
		{cmp.Compare(highestCPU(n), highestCPU(m)), "newer CPU instructions"},
		{cmp.Compare(len(n.CUDAs()), len(m.CUDAs())), "for more versions of CUDA"},
		{oneIf(m.TorchABI.IsStable()) - oneIf(n.TorchABI.IsStable()), "specific to this torch version"},
	} {
		if c.order != 0 {
			return c.order, c.why
		}
	}
	return 0, ""
}

// highestCPU returns the highest CPU level that a wheel has code for.
func highestCPU(m wheel.Manifest) wheel.CPULevel {
	levels := append([]wheel.CPULevel{""}, m.CPUs()...)
	return levels[len(levels)-1]
}

// hasAll reports whether a list has all values of another.
func hasAll(list, values []string) bool {
	return !slices.ContainsFunc(values, func(v string) bool { return !slices.Contains(list, v) })
}

// AlikeKey is equal for nodes that should be alike: those that run the same wheel and, if it is for
// several torches and Pythons, have the same of these.
func AlikeKey(m wheel.Manifest, f node.Facts) string {
	if m.TorchABI.IsStable() {
		return strings.Join([]string{m.SHA256, wheel.Minor(f.Torch), f.TorchCUDA, wheel.Minor(f.Python)}, " ")
	}
	return m.SHA256
}
