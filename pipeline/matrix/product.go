package matrix

import (
	"slices"

	"github.com/dsbuild/dsbuild/internal/each"
	"github.com/dsbuild/dsbuild/internal/yamldoc"
)

// axis is a key of the matrix with the values it takes.
type axis struct {
	key    string
	values []setting
}

// addProduct adds every combination of the matrix, except those that exclude lists.
func (l *entries) addProduct(m, exclude yamldoc.Pair, defaults settings) {
	var axes []axis
	total := 1
	for _, p := range l.Pairs(m.Node, "matrix", Keys()) {
		a := axis{key: p.Key}
		for _, n := range l.Items(p.Node, p.Key) {
			if v, ok := l.readValue(p.Key, n); ok {
				a.values = append(a.values, v)
			}
		}
		axes = append(axes, a)
		total = min(total*len(a.values), MaxEntries+1)
	}
	hasAxis := func(key string) bool { return slices.ContainsFunc(axes, func(a axis) bool { return a.key == key }) }
	if hasAxis("arch") && hasAxis("gpu") {
		l.Add(m.At, "keep one of them", "arch and gpu both say for which GPUs a wheel is")
	}
	if total > MaxEntries {
		l.Add(m.At, "", "the matrix has more than %d wheels", MaxEntries)
		return
	}
	out := l.readExclusions(exclude, axes)
	if len(axes) == 0 || len(l.Problems) > 0 {
		return
	}
	used, kept := make([]bool, len(out)), 0
	for _, combination := range combinations(axes) {
		if l.matchesExclusion(combination, out, used) {
			continue
		}
		kept++
		l.add(combination.entry(shortName(combination, axes).name(), combination[0].at, defaults))
	}
	for i, u := range used {
		if !u {
			l.Add(out[i].at, "", "this excludes nothing: no combination of the matrix matches it")
		}
	}
	if kept == 0 {
		l.Add(m.At, "", "the matrix is empty: exclude removes all of it")
	}
}

// combinations returns all combinations. The value of the last axis changes fastest.
func combinations(axes []axis) []settings {
	all := []settings{nil}
	for _, a := range axes {
		var next []settings
		for _, head := range all {
			for _, v := range a.values {
				next = append(next, append(slices.Clone(head), v))
			}
		}
		all = next
	}
	return all
}

// shortName returns the settings for a combination's name, without those that are the same in all
// combinations.
func shortName(s settings, axes []axis) settings {
	out := settings{}
	for i, said := range s {
		if len(axes[i].values) > 1 {
			out = append(out, said)
		}
	}
	if len(out) == 0 {
		return s
	}
	return out
}

// exclusion is one entry of exclude.
type exclusion struct {
	settings
	at Position
}

func (l *entries) readExclusions(p yamldoc.Pair, axes []axis) []exclusion {
	if p.Node == nil {
		return nil
	}
	names := each.Map(axes, func(a axis) string { return a.key })
	var all []exclusion
	for _, n := range l.Items(p.Node, "exclude") {
		e := exclusion{at: l.Place(n)}
		for _, p := range l.Pairs(n, "exclude, which uses the keys of the matrix", names) {
			if v, ok := l.readValue(p.Key, p.Node); ok {
				e.settings = append(e.settings, v)
			}
		}
		if yamldoc.IsMapping(n) && len(l.Keys(n)) == 0 {
			l.Add(e.at, "", "an entry of exclude without keys would exclude everything")
		}
		all = append(all, e)
	}
	return all
}

// matchesExclusion reports whether a combination is excluded, and notes in used by which
// exclusion.
func (l *entries) matchesExclusion(s settings, out []exclusion, used []bool) bool {
	left := false
	for i, e := range out {
		all := true
		for _, want := range e.settings {
			all = all && slices.ContainsFunc(s, func(said setting) bool {
				return said.key == want.key && slices.Equal(said.words, want.words)
			})
		}
		if all {
			used[i], left = true, true
		}
	}
	return left
}
