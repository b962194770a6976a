package compat

import "slices"

// Offered adds the Pythons and compilers that the distribution of a base offers to
// install, if the tables know its release.
func (t *Tables) Offered(g BuildEnvironment) BuildEnvironment {
	i := slices.IndexFunc(t.Bases, func(b Base) bool { return g.Suite != "" && b.Suite == g.Suite })
	if i < 0 {
		return g
	}
	g.Pythons = appendMissing(g.Pythons, t.Bases[i].Pythons)
	g.GCCs = appendMissing(g.GCCs, t.Bases[i].GCCs)
	return g
}

// appendMissing returns a with those values of b that it lacks, in order.
func appendMissing(a, b []string) []string {
	out := slices.Clone(a)
	for _, s := range b {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}
