package compat

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/node"
	"github.com/dsbuild/dsbuild/wheel"
)

// Member is a node that is to get a wheel.
type Member struct {
	Name  string
	Facts node.Facts
}

// Group is a wheel to build, and the nodes that it serves.
type Group struct {
	Spec    wheel.Spec
	Nodes   []int    // places in what was given
	Reasons []string // why each part of the Spec, in words
}

// Left is a node that no wheel can serve.
type Left struct {
	Node    int // place in what was given
	Reasons []string
	Hint    string
}

// Grouping says which wheels serve which nodes. Groups and what is left are in
// the order of their first nodes.
type Grouping struct {
	Groups []Group
	Left   []Left
}

// Group finds the fewest wheels that serve all nodes. What is wanted holds for
// each: a version given leaves nodes of another one out, and archs given are in
// every wheel beside those of its nodes.
//
// A wheel is for one Python, one minor of torch and one C++ ABI. Among nodes that
// agree in these it has the archs of all and the lowest CPU level, if there is a
// toolchain for that; else they are split. Their glibc divides none: a wheel runs
// wherever its torch does. Up to maxExact
// kinds of nodes that is the fewest there can be, beyond it may not be.
func (t *Tables) Group(nodes []Member, want wheel.Spec) Grouping {
	g := &grouper{Tables: t, nodes: nodes, want: want, found: map[search]*attempt{}, archs: map[node.GPU]string{}}
	var bad []fault
	if g.asked, bad = t.read(want, nil); len(bad) > 0 {
		return g.none(bad)
	}
	var families []family
	members := map[family][]*kind{}
	for i := range nodes {
		k, left := g.kind(i)
		if left != nil {
			g.Left = append(g.Left, *left)
			continue
		}
		if members[k.family] == nil {
			families = append(families, k.family)
		}
		at := slices.IndexFunc(members[k.family], func(have *kind) bool { return have.archs == k.archs })
		if at < 0 {
			at = len(members[k.family])
			members[k.family] = append(members[k.family], k)
		}
		have := members[k.family][at]
		have.nodes = append(have.nodes, i)
	}
	for _, f := range families {
		g.split(f, members[f])
	}
	slices.SortFunc(g.Groups, func(a, b Group) int { return cmp.Compare(a.Nodes[0], b.Nodes[0]) })
	slices.SortFunc(g.Left, func(a, b Left) int { return cmp.Compare(a.Node, b.Node) })
	return g.Grouping
}

// grouper is a Group being found.
type grouper struct {
	*Tables
	Grouping
	nodes []Member
	want  wheel.Spec
	asked *want
	// What was found out before, for many nodes are alike.
	found map[search]*attempt
	archs map[node.GPU]string
}

// family are nodes that one wheel may serve as far as Python and torch go.
type family struct {
	python, torch string // X.Y
	cuda          string // X.Y of the release that it is built against
	oldABI        bool
}

// kind are nodes of a family that every wheel treats alike, but for its CPU level.
type kind struct {
	family
	archs string // of their GPUs, joined
	nodes []int
}

// search is what decides whether there is a toolchain for some kinds.
type search struct {
	family
	archs string
}

// none leaves every node, because of what was asked.
func (g *grouper) none(bad []fault) Grouping {
	var reasons, hints []string
	for _, f := range bad {
		reasons = append(reasons, f.what)
		hints = append(hints, f.advice...)
		if len(f.instead) > 0 {
			hints = append(hints, "say "+f.instead[0].text)
		}
	}
	for i := range g.nodes {
		g.Left = append(g.Left, Left{i, reasons, strings.Join(hints, "; ")})
	}
	return g.Grouping
}

// kind reads a node's facts; or says why no wheel can serve it.
func (g *grouper) kind(i int) (*kind, *Left) {
	f := g.nodes[i].Facts
	reasons, hint := g.unfit(f)
	if len(reasons) > 0 {
		return nil, &Left{i, reasons, hint}
	}
	k := &kind{family: family{python: firstTwo(f.Python), torch: firstTwo(f.Torch)}}
	release, _ := g.torchOf(f)
	k.cuda, k.oldABI = release.CUDA, release.OldABI
	k.archs = strings.Join(g.archsOf(f), " ")
	return k, nil
}

// torchOf is the release of a node's minor that a wheel for it is built against: the
// first for its CUDA, else the first there is. It reports whether there is one.
func (t *Tables) torchOf(f node.Facts) (found Torch, known bool) {
	minor, cuda := firstTwo(f.Torch), firstTwo(f.TorchCUDA)
	for _, r := range t.Torches {
		if isTorch(minor, r) && (!known || found.CUDA != cuda && r.CUDA == cuda) {
			found, known = r, true
		}
	}
	return found, known
}

// archsOf are the compute capabilities of a node's GPUs, as far as they are
// known and matter: without device code none does.
func (g *grouper) archsOf(f node.Facts) []string {
	var out []string
	if !g.asked.device() {
		return nil
	}
	for _, gpu := range f.GPUs {
		arch, known := g.archs[gpu]
		if !known {
			arch = g.archOfGPU(gpu)
			g.archs[gpu] = arch
		}
		if arch != "" && !slices.Contains(out, arch) {
			out = append(out, arch)
		}
	}
	slices.SortFunc(out, compareVersions)
	return out
}

// split finds the fewest groups of a family's kinds.
func (g *grouper) split(f family, kinds []*kind) {
	var served []*kind
	for _, k := range kinds {
		if g.serves([]*kind{k}) {
			served = append(served, k)
			continue
		}
		reasons, hint := g.whyNot(k)
		for _, i := range k.nodes {
			g.Left = append(g.Left, Left{i, reasons, hint})
		}
	}
	if len(served) == 0 {
		return
	}
	sets := [][]*kind{served}
	exact := true
	if !g.serves(served) {
		if exact = len(served) <= maxExact; exact {
			sets = g.fewest(served)
		} else {
			sets = g.greedy(served)
		}
	}
	for _, set := range sets {
		group := g.group(set)
		if len(sets) > 1 {
			group.Reasons = append(group.Reasons, g.apart(set, served, exact))
		}
		g.Groups = append(g.Groups, group)
	}
}

// maxExact bounds the kinds of nodes of one Python and torch among which every
// way to split them is looked at.
const maxExact = 10

// serves reports whether there is a toolchain for one wheel for all the kinds.
func (g *grouper) serves(kinds []*kind) bool { return g.toolchain(kinds) != nil }

// fewest looks at every way to split the kinds, and takes the first of those
// with the fewest groups.
func (g *grouper) fewest(kinds []*kind) [][]*kind {
	all := uint(1)<<len(kinds) - 1
	of := func(mask uint) []*kind {
		var set []*kind
		for i, k := range kinds {
			if mask&(1<<i) != 0 {
				set = append(set, k)
			}
		}
		return set
	}
	// best[left] is how many groups what is left takes, and take[left] the one
	// of them that holds its first kind.
	best, take := make([]int, all+1), make([]uint, all+1)
	for left := uint(1); left <= all; left++ {
		first := uint(1) << bits.TrailingZeros(left)
		best[left] = len(kinds) + 1
		// The largest part goes first, and stays unless a smaller is better.
		for part := left; part > 0; part = (part - 1) & left {
			if part&first != 0 && best[left&^part]+1 < best[left] && g.serves(of(part)) {
				best[left], take[left] = best[left&^part]+1, part
			}
		}
	}
	var sets [][]*kind
	for left := all; left > 0; left &^= take[left] {
		sets = append(sets, of(take[left]))
	}
	return sets
}

// greedy puts each kind into the first group that can take it.
func (g *grouper) greedy(kinds []*kind) [][]*kind {
	var sets [][]*kind
	for _, k := range kinds {
		at := slices.IndexFunc(sets, func(set []*kind) bool { return g.serves(append(slices.Clone(set), k)) })
		if at < 0 {
			sets = append(sets, []*kind{k})
			continue
		}
		sets[at] = append(sets[at], k)
	}
	return sets
}

// toolchain is that of one wheel for all the kinds; nil where there is none.
func (g *grouper) toolchain(kinds []*kind) *attempt {
	s := g.searchFor(kinds)
	a, done := g.found[s]
	if !done {
		a = g.find(g.specFor(s), nil, false)
		g.found[s] = a
	}
	return a
}

func (g *grouper) searchFor(kinds []*kind) search {
	s := search{family: kinds[0].family}
	var archs []string
	for _, k := range kinds {
		archs = append(archs, strings.Fields(k.archs)...)
	}
	slices.SortFunc(archs, compareVersions)
	s.archs = strings.Join(slices.Compact(archs), " ")
	return s
}

// specFor is what to ask for; the CPU level is added for the nodes of a group.
func (g *grouper) specFor(s search) wheel.Spec {
	spec := g.want
	i := slices.IndexFunc(g.Torches, func(r Torch) bool { return isTorch(s.torch, r) && r.CUDA == s.cuda })
	spec.Python, spec.Torch, spec.CUDA = s.python, g.Torches[i].Version, s.cuda
	spec.Archs = slices.Clone(g.want.Archs)
	for _, capability := range strings.Fields(s.archs) {
		spec.Archs = addArch(spec.Archs, archOf(capability))
	}
	if g.asked.device() && len(spec.Archs)+len(spec.GPUs) == 0 {
		spec.Ops = g.plainOps(spec)
	}
	return spec
}

// plainOps are those of the ops asked for that have no device code, for nodes
// of which no GPU is known. Of --ops all it is those that can be built.
func (g *grouper) plainOps(spec wheel.Spec) []string {
	var out []string
	var can *attempt
	if g.asked.all {
		can = g.find(spec, nil, true)
	}
	for i, op := range g.asked.ops {
		switch {
		case op.DeviceCode || !g.asked.byName[i] && !g.asked.all:
		case can != nil && !slices.Contains(can.tc.OpNames(false), op.Name):
		default:
			out = append(out, op.Name)
		}
	}
	return out
}

// group is the wheel for some kinds, with its reasons.
func (g *grouper) group(kinds []*kind) Group {
	s := g.searchFor(kinds)
	made := g.toolchain(kinds)
	var out Group
	for _, k := range kinds {
		out.Nodes = append(out.Nodes, k.nodes...)
	}
	slices.Sort(out.Nodes)
	out.Spec = g.specFor(s)
	r := &reasons{grouper: g, group: &out, made: made}
	r.torch()
	r.archs()
	r.cpu()
	r.glibc()
	for _, remark := range made.toolchain().Remarks {
		r.say("%s", remark)
	}
	return out
}

// apart says why a wheel is not one with the others of its Python and torch.
func (g *grouper) apart(set, all []*kind, exact bool) string {
	var others []*kind
	for _, k := range all {
		if !slices.Contains(set, k) {
			others = append(others, k)
		}
	}
	s, o := g.searchFor(set), g.searchFor(others)
	why := fmt.Sprintf("a wheel of its own: no toolchain for Python %s and torch %s makes one for %s too", s.python, s.torch, inWords(o))
	if !exact {
		why += fmt.Sprintf("; with more than %d kinds of nodes there may be a way with fewer wheels", maxExact)
	}
	return why
}

func inWords(s search) string {
	if s.archs == "" {
		return "the others"
	}
	return "archs " + listed(strings.Fields(s.archs))
}
