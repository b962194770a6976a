package report

import (
	"maps"
	"slices"

	"github.com/dsbuild/dsbuild/fleet/node"
)

// ProbedNode is a node that answered, as Compare needs it.
type ProbedNode struct {
	Name  string
	Facts node.Facts // after the changes that dsbuild made
	Kind  string     // equal for nodes that should be alike, such as the nodes of one wheel, or ""
}

// Compare returns the properties in which nodes differ. It skips nodes without a usable Python, because they would
// differ in every property that Python reports. In a fleet with mixed wheels, nodes of different kinds may differ in
// everything but DeepSpeed.
func Compare(all []ProbedNode, mixed bool) []Difference {
	var facts []node.Facts
	var names, kinds []string
	for _, n := range all {
		if n.Facts.MissingPython() == "" {
			facts, names, kinds = append(facts, n.Facts), append(names, n.Name), append(kinds, n.Kind)
		}
	}
	diffs, properties := []Difference{}, append(node.Properties(), companions(facts)...)
	var within map[string]bool
	if mixed {
		within = mustWithinKinds(facts, kinds, properties)
	}
	for _, d := range node.Compare(facts, properties) {
		diff := Difference{What: d.What, Must: d.Must && (!mixed || d.What == "deepspeed" || within[d.What])}
		for _, v := range d.Values {
			value := DifferenceValue{Value: v.Value}
			for _, i := range v.Nodes {
				value.Nodes = append(value.Nodes, names[i])
			}
			diff.Values = append(diff.Values, value)
		}
		diffs = append(diffs, diff)
	}
	return diffs
}

// mustWithinKinds returns the properties in which nodes of one kind differ, but must agree.
func mustWithinKinds(facts []node.Facts, kinds []string, properties []node.Property) map[string]bool {
	byKind := map[string][]node.Facts{}
	for i, kind := range kinds {
		if kind != "" {
			byKind[kind] = append(byKind[kind], facts[i])
		}
	}
	must := map[string]bool{}
	for _, alike := range byKind {
		for _, d := range node.Compare(alike, properties) {
			must[d.What] = must[d.What] || d.Must
		}
	}
	return must
}

// companions returns, as properties, the versions of the packages that dsbuild installed with
// DeepSpeed on any node. They may differ, because dsbuild gives a node only the packages that it
// lacks.
func companions(facts []node.Facts) []node.Property {
	names := map[string]bool{}
	for _, f := range facts {
		for name := range f.ExtraWheels {
			names[name] = true
		}
	}
	delete(names, "transformers") // is among node.Properties
	var properties []node.Property
	for _, name := range slices.Sorted(maps.Keys(names)) {
		properties = append(properties, node.Property{Name: name, Of: func(f node.Facts) string { return f.Dists[name] }})
	}
	return properties
}
