package node

import (
	"cmp"
	"slices"
)

// Property is one thing that nodes of one job should agree in.
type Property struct {
	Name string
	Of   func(Facts) string // "" where the node has none
}

// Properties are those that Compare looks at, the weightiest first.
func Properties() []Property {
	return []Property{
		{"deepspeed", func(f Facts) string {
			if f.DeepSpeed == nil {
				return ""
			}
			return f.DeepSpeed.Version
		}},
		{"torch", func(f Facts) string { return f.Torch }},
		{"cuda", func(f Facts) string { return f.TorchCUDA }},
	}
}

// Diff is one property in which nodes differ.
type Diff struct {
	What   string  // the property's name
	Values []Value // the one that most nodes have comes first
}

// Value is what some nodes have of a property.
type Value struct {
	Value string
	Nodes []int // places in what was given to Compare
}

// Compare names the properties in which nodes differ, and who has what. Of two
// values that equally many have, the one of the earlier node goes first.
func Compare(facts []Facts, properties []Property) []Diff {
	var diffs []Diff
	for _, p := range properties {
		var values []Value
		for i, f := range facts {
			v := p.Of(f)
			at := slices.IndexFunc(values, func(have Value) bool { return have.Value == v })
			if at < 0 {
				at, values = len(values), append(values, Value{Value: v})
			}
			values[at].Nodes = append(values[at].Nodes, i)
		}
		if len(values) < 2 {
			continue
		}
		slices.SortStableFunc(values, func(a, b Value) int { return cmp.Compare(len(b.Nodes), len(a.Nodes)) })
		diffs = append(diffs, Diff{p.Name, values})
	}
	return diffs
}
