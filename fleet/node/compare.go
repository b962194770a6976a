package node

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/wheel"
)

// Property is a property in which the nodes of one job should agree.
type Property struct {
	Name string
	Of   func(Facts) string // "" if the node has no value
	// Must marks a property in which the nodes of a job must agree to run the same software.
	// Other properties may differ within a job; dsbuild only reports the difference.
	Must bool
	// Unknown means that dsbuild could not determine a value of "". It does not compare such a
	// node in this property.
	Unknown bool

	key func(string) string // the part of a value that must be equal, by default all of it
}

// Key returns the part of a value that must be equal for two nodes to agree.
func (p Property) Key(value string) string {
	if p.key == nil {
		return value
	}
	return p.key(value)
}

// Title is the name of a property in a sentence.
func Title(property string) string {
	names := map[string]string{
		"deepspeed": "DeepSpeed", "cuda": "CUDA", "nccl": "NCCL", "python": "Python",
		"cxx11abi": "torch's C++11 ABI", "libstdcxx": "libstdc++", "cpu": "CPU", "gpus": "GPUs",
	}
	return cmp.Or(names[property], property)
}

// Properties returns the properties that Compare compares, the weightiest first.
func Properties() []Property {
	return []Property{
		{Name: "deepspeed", Must: true, key: wheel.SourceVersion, Of: func(f Facts) string { return installedOf(f).Version }},
		{Name: "torch", Must: true, Of: torchToCompare},
		{Name: "cuda", Must: true, Of: func(f Facts) string { return f.TorchCUDA }},
		{Name: "cxx11abi", Must: true, Unknown: true, Of: abiName},
		{Name: "nccl", Must: true, Unknown: true, Of: func(f Facts) string { return f.NCCL }},
		// Compiled and pickled files depend only on X.Y.
		{Name: "python", Must: true, key: pythonABI, Of: pythonVersion},
		{Name: "transformers", Must: true, Of: func(f Facts) string { return f.Transformers }},
		// Several wheels may be right: only the caller knows the wheel of each node.
		{Name: "wheel", Unknown: true, Of: func(f Facts) string { return installedOf(f).SHA256 }},
		{Name: "gpus", Of: Facts.Devices},
		{Name: "driver", Of: func(f Facts) string { return f.Driver }},
		{Name: "cpu", Of: func(f Facts) string { return f.CPU }},
		{Name: "glibc", Of: func(f Facts) string { return f.Glibc }},
		{Name: "libstdcxx", Unknown: true, Of: func(f Facts) string { return f.Libstdcxx }},
		{Name: "container", Of: func(f Facts) string { return f.Container }},
		{Name: "environment", Unknown: true, Of: func(f Facts) string { return f.Environment }},
	}
}

// usualBuild matches the local versions of the builds of torch that differ only in their CUDA, which is another property.
var usualBuild = regexp.MustCompile(`^(cu\d+|cpu|)$`)

// torchToCompare is X.Y.Z, and the build if it is not a usual one: +rocm6.4, +git1a2b, +1a2b.nv25.09.
func torchToCompare(f Facts) string {
	if usualBuild.MatchString(f.TorchBuild) {
		return f.Torch
	}
	return f.TorchVersion()
}

// pythonVersion is X.Y.Z, or X.Y.Zt for a free-threaded Python, which loads other extension modules.
func pythonVersion(f Facts) string {
	if wheel.FreeThreaded(f.Tag) {
		return f.Python + "t"
	}
	return f.Python
}

func pythonABI(version string) string {
	if strings.HasSuffix(version, "t") {
		return wheel.Minor(version) + "t"
	}
	return wheel.Minor(version)
}

func installedOf(f Facts) Installed {
	if f.DeepSpeed == nil {
		return Installed{}
	}
	return *f.DeepSpeed
}

func abiName(f Facts) string {
	if f.CXX11ABI == nil {
		return ""
	}
	return strconv.FormatBool(*f.CXX11ABI)
}

// Devices describes the GPUs, with equal ones counted: "8 × A100-SXM4-80GB (8.0)".
func (f Facts) Devices() string {
	count := map[GPU]int{}
	var kinds []GPU
	for _, g := range f.GPUs {
		if count[g]++; count[g] == 1 {
			kinds = append(kinds, g)
		}
	}
	words := make([]string, len(kinds))
	for i, g := range kinds {
		words[i] = fmt.Sprintf("%d × %s (%s)", count[g], strings.TrimPrefix(g.Name, "NVIDIA "), cmp.Or(g.Arch, "?"))
	}
	slices.Sort(words) // nvidia-smi's order has no meaning
	return strings.Join(words, ", ")
}

// Diff is one property in which nodes differ.
type Diff struct {
	What   string  // the property's name
	Must   bool    // nodes that differ in it do not run the same software
	Values []Value // the value of most nodes comes first
}

// Value is a value of a property, with the nodes that have it.
type Value struct {
	Value string
	Nodes []int // indexes into the facts given to Compare
}

// Compare returns the properties in which nodes differ, and the nodes with each value. An unknown
// value is not a difference. Of two values that equally many nodes have, the value of the earlier
// node comes first.
func Compare(facts []Facts, properties []Property) []Diff {
	var diffs []Diff
	for _, p := range properties {
		values := p.knownValues(groupByValue(facts, p.Of))
		if len(values) < 2 {
			continue
		}
		d := Diff{What: p.Name, Values: values}
		keys := map[string]bool{}
		for _, v := range values {
			keys[p.Key(v.Value)] = true
		}
		d.Must = p.Must && len(keys) > 1
		diffs = append(diffs, d)
	}
	return diffs
}

// knownValues returns the values without the unknown one.
func (p Property) knownValues(values []Value) []Value {
	return slices.DeleteFunc(values, func(v Value) bool { return p.Unknown && v.Value == "" })
}

// groupByValue groups the nodes by value, the largest group first.
func groupByValue(facts []Facts, of func(Facts) string) []Value {
	var values []Value
	place := map[string]int{}
	for i, f := range facts {
		v := of(f)
		at, ok := place[v]
		if !ok {
			at, values = len(values), append(values, Value{Value: v})
			place[v] = at
		}
		values[at].Nodes = append(values[at].Nodes, i)
	}
	slices.SortStableFunc(values, func(a, b Value) int { return cmp.Compare(len(b.Nodes), len(a.Nodes)) })
	return values
}

// Deviation is one property in which a node differs from most.
type Deviation struct {
	What  string
	Value string  // the node's value
	Norm  string  // the value of most nodes
	Most  int     // how many nodes agree with the norm
	Of    int     // how many nodes dsbuild compared
	Tie   []Value // without a norm: the values that compete; equally many nodes have the first ones
}

// maxSides is how many sides of a tie a sentence names.
const maxSides = 4

// Describe describes the deviation: the node's value, and the majority's or, in a tie, each side's. names are the names of
// the compared nodes.
func (d Deviation) Describe(names []string) string {
	what := Title(d.What)
	if d.Tie == nil {
		has := what + " " + d.Value
		if d.Value == "" {
			has = "no " + what
		}
		return fmt.Sprintf("%s, but %d of %s have %s", has, d.Most, ui.Count(d.Of, "node"), cmp.Or(d.Norm, "none"))
	}
	sides := lists.Map(d.Tie[:min(len(d.Tie), maxSides)], func(side Value) string {
		with := lists.Map(side.Nodes, func(at int) string { return names[at] })
		return fmt.Sprintf("%s on %s", cmp.Or(side.Value, "none"), ui.FoldShort(with))
	})
	if more := len(d.Tie) - maxSides; more > 0 {
		sides = append(sides, fmt.Sprintf("%d others", more))
	}
	return fmt.Sprintf("%s: no majority: %s", what, strings.Join(sides, ", "))
}

// Deviations returns for each node the properties with Must in which it differs from the norm.
//
// The norm is a combination that exists. Of the nodes that agree with it in the weightier
// properties, most also agree with it in the next one. If equally many nodes have either of two
// values, there is no norm, and every node gets a Deviation with Tie. votes selects the nodes
// that define the norm: those without other problems. If votes selects none, all nodes count.
func Deviations(facts []Facts, properties []Property, votes []bool) [][]Deviation {
	out := make([][]Deviation, len(facts))
	normal := slices.Clone(votes) // agrees with the norm so far
	if !slices.Contains(votes, true) {
		normal = slices.Repeat([]bool{true}, len(facts))
	}
	for _, p := range properties {
		if !p.Must {
			continue
		}
		keys := p.knownValues(groupByValue(facts, func(f Facts) string { return p.Key(p.Of(f)) }))
		if len(keys) < 2 {
			continue
		}
		addDeviations(out, normal, facts, p, keys)
	}
	return out
}

// addDeviations adds the deviations in one property for which the nodes have several keys.
func addDeviations(out [][]Deviation, normal []bool, facts []Facts, p Property, keys []Value) {
	votes := func(v Value) int {
		n := 0
		for _, i := range v.Nodes {
			if normal[i] {
				n++
			}
		}
		return n
	}
	slices.SortStableFunc(keys, func(a, b Value) int { return cmp.Compare(votes(b), votes(a)) })
	compared := 0
	for _, k := range keys {
		compared += len(k.Nodes)
	}
	d := Deviation{What: p.Name, Of: compared, Most: len(keys[0].Nodes)}
	if votes(keys[0]) == votes(keys[1]) {
		d.Tie = keys
	}
	alike := lists.Map(keys[0].Nodes, func(i int) Facts { return facts[i] })
	d.Norm = groupByValue(alike, p.Of)[0].Value
	for at, k := range keys {
		for _, i := range k.Nodes {
			if at == 0 && d.Tie == nil {
				continue
			}
			d.Value = p.Of(facts[i])
			out[i] = append(out[i], d)
			normal[i] = normal[i] && d.Tie != nil
		}
	}
}
