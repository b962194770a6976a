package node

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Property is one thing that nodes of one job should agree in.
type Property struct {
	Name string
	Of   func(Facts) string // "" where the node has none
	// Must says that nodes that differ in it do not run the same thing. Other
	// properties may differ within a job, and are worth knowing.
	Must bool
	// Unknown says that "" is what could not be found out, not what is not
	// there: such a node is not held to the property.
	Unknown bool

	key func(string) string // what of a value must be equal; nil: all of it
}

// Key is what of a value must be equal for two nodes to agree.
func (p Property) Key(value string) string {
	if p.key == nil {
		return value
	}
	return p.key(value)
}

// Title is what a property is called in a sentence.
func Title(property string) string {
	names := map[string]string{"deepspeed": "DeepSpeed", "cuda": "CUDA", "nccl": "NCCL", "python": "Python", "cxx11abi": "torch's C++11 ABI", "libstdcxx": "libstdc++", "cpu": "CPU", "gpus": "GPUs"}
	return cmp.Or(names[property], property)
}

// Properties are those that Compare looks at, the weightiest first.
func Properties() []Property {
	return []Property{
		{Name: "deepspeed", Must: true, key: sources, Of: func(f Facts) string { return installedOf(f).Version }},
		{Name: "torch", Must: true, Of: func(f Facts) string { return f.Torch }},
		{Name: "cuda", Must: true, Of: func(f Facts) string { return f.TorchCUDA }},
		{Name: "cxx11abi", Must: true, Unknown: true, Of: abi},
		{Name: "nccl", Must: true, Unknown: true, Of: func(f Facts) string { return f.NCCL }},
		// What is compiled and what is pickled depends on X.Y alone.
		{Name: "python", Must: true, key: firstTwo, Of: func(f Facts) string { return f.Python }},
		{Name: "transformers", Must: true, Of: func(f Facts) string { return f.Transformers }},
		// Several wheels may be right: who was given which, only the caller knows.
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

func installedOf(f Facts) Installed {
	if f.DeepSpeed == nil {
		return Installed{}
	}
	return *f.DeepSpeed
}

// ownLocal is a local version of dsbuild's: where the sources came from, where
// that is no release, then what they were compiled for.
var ownLocal = regexp.MustCompile(`^((?:[gs][0-9a-f]{7}\.)*)torch[0-9]`)

// sources is the part of a DeepSpeed version that says which sources it is: two
// wheels of them, for two kinds of GPU, are one DeepSpeed.
func sources(version string) string {
	release, local, _ := strings.Cut(version, "+")
	if m := ownLocal.FindStringSubmatch(local); m != nil {
		local = strings.TrimSuffix(m[1], ".")
	}
	if local == "" {
		return release
	}
	return release + "+" + local
}

func firstTwo(version string) string {
	parts := strings.SplitN(version, ".", 3)
	return strings.Join(parts[:min(len(parts), 2)], ".")
}

func abi(f Facts) string {
	if f.CXX11ABI == nil {
		return ""
	}
	return strconv.FormatBool(*f.CXX11ABI)
}

// Devices are the GPUs in words, equal ones once: "8 × A100-SXM4-80GB (8.0)".
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
	slices.Sort(words) // nvidia-smi's order says nothing
	return strings.Join(words, ", ")
}

// Diff is one property in which nodes differ.
type Diff struct {
	What   string  // the property's name
	Must   bool    // nodes that differ in this way do not run the same thing
	Values []Value // the one that most nodes have comes first
}

// Value is what some nodes have of a property.
type Value struct {
	Value string
	Nodes []int // places in what was given to Compare
}

// Compare names the properties in which nodes differ, and who has what; what is
// not known of a node is no difference. Of two
// values that equally many have, the one of the earlier node goes first.
func Compare(facts []Facts, properties []Property) []Diff {
	var diffs []Diff
	for _, p := range properties {
		values := p.known(group(facts, p.Of))
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

// known are values without what could not be found out.
func (p Property) known(values []Value) []Value {
	return slices.DeleteFunc(values, func(v Value) bool { return p.Unknown && v.Value == "" })
}

// group gathers the nodes by value, most nodes first.
func group(facts []Facts, of func(Facts) string) []Value {
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

// Deviation is one property in which a node is not what most are.
type Deviation struct {
	What  string
	Value string  // what the node has
	Norm  string  // what most have
	Most  int     // how many nodes agree with the norm
	Of    int     // how many were compared
	Tie   []Value // no norm: equally many have the first of these
}

// Deviations says of each node in what it is not what most nodes are, of the
// properties that must be equal.
//
// The norm is one that exists: of the nodes that agree with it in the weightier
// properties, most have it also in the next. Where equally many have this and
// that, there is no norm, and all are told so. votes says which nodes count for
// the norm: those in which nothing else is wrong; with none of them all count.
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
		keys := p.known(group(facts, func(f Facts) string { return p.Key(p.Of(f)) }))
		if len(keys) < 2 {
			continue
		}
		measure(out, normal, facts, p, keys)
	}
	return out
}

// measure adds what deviates in one property, of which nodes have several keys.
func measure(out [][]Deviation, normal []bool, facts []Facts, p Property, keys []Value) {
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
	var alike []Facts
	for _, i := range keys[0].Nodes {
		alike = append(alike, facts[i])
	}
	d.Norm = group(alike, p.Of)[0].Value
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
