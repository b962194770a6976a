package compat

import "slices"

// Offered adds to what was found in a base what its distribution offers to
// install there, where the tables know that release.
func (t *Tables) Offered(g Ground) Ground {
	i := slices.IndexFunc(t.Bases, func(b Base) bool { return g.Suite != "" && b.Suite == g.Suite })
	if i < 0 {
		return g
	}
	g.Pythons = union(g.Pythons, t.Bases[i].Pythons)
	g.GCCs = union(g.GCCs, t.Bases[i].GCCs)
	return g
}

// union is a, and what b has beside it, in order.
func union(a, b []string) []string {
	out := slices.Clone(a)
	for _, s := range b {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}
