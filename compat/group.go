package compat

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/node"
	"github.com/dsbuild/dsbuild/wheel"
)

// Member is a node that needs a wheel.
type Member struct {
	Name  string
	Facts node.Facts
}

// Group is a wheel to build, and the nodes that it serves.
type Group struct {
	Spec    wheel.Spec
	Nodes   []int    // places in the list of members
	Reasons []string // why each part of the Spec, in words
}

// Left is a node that no wheel can serve.
type Left struct {
	Node    int // place in the list of members
	Reasons []string
	Hint    string
}

// Grouping assigns nodes to wheels. Groups and Left are in the order of their first nodes.
type Grouping struct {
	Groups []Group
	Left   []Left
}

// Group finds few wheels that serve all nodes. Values of want hold for each wheel: a version
// leaves out the nodes that have another one, archs are added to those of the nodes.
//
// A wheel is for one Python, one minor of torch and one C++ ABI. Among nodes that agree in
// these, one wheel has the archs of all and the lowest CPU level. Where no toolchain makes
// that wheel, the nodes are split: each kind of node joins the first wheel that can serve it.
func (t *Tables) Group(nodes []Member, want wheel.Spec) Grouping {
	g := &grouper{Tables: t, nodes: nodes, want: want, found: map[search]*evaluation{}, archs: map[node.GPU]string{}}
	asked, bad := t.lookUp(want, nil)
	if g.asked = asked; len(bad) > 0 {
		return g.refuseAll()
	}
	var families []family
	members := map[family][]*kind{}
	for i := range nodes {
		k, left := g.kindOf(i)
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
		g.addWheels(members[f])
	}
	slices.SortFunc(g.Groups, func(a, b Group) int { return cmp.Compare(a.Nodes[0], b.Nodes[0]) })
	slices.SortFunc(g.Left, func(a, b Left) int { return cmp.Compare(a.Node, b.Node) })
	return g.Grouping
}

// grouper collects the groups.
type grouper struct {
	*Tables
	Grouping
	nodes []Member
	want  wheel.Spec
	asked *requirements
	// Results for nodes that are alike.
	found map[search]*evaluation
	archs map[node.GPU]string
}

// family identifies nodes that one wheel can serve as far as Python and torch are concerned.
type family struct {
	python, torch string // X.Y
	cuda          string // X.Y of the release that it is built against
	oldABI        bool
}

// kind holds nodes of a family that every wheel treats alike, except for its CPU level.
type kind struct {
	family
	archs string // of their GPUs, joined
	nodes []int
}

// search holds the values that determine whether there is a toolchain for some kinds.
type search struct {
	family
	archs string
}

// refuseAll leaves out every node, because the tables lack a value that is asked for.
func (g *grouper) refuseAll() Grouping {
	e := g.conflict(request{spec: g.want, noGPUNeeded: true})
	for i := range g.nodes {
		g.Left = append(g.Left, Left{i, reasonsOf(e.Conflicts), e.Hint()})
	}
	return g.Grouping
}

// kindOf returns the kind of a node, or the reason why no wheel can serve it.
func (g *grouper) kindOf(i int) (*kind, *Left) {
	f := g.nodes[i].Facts
	reasons, hint := g.whyUnfit(f)
	if len(reasons) > 0 {
		return nil, &Left{i, reasons, hint}
	}
	k := &kind{family: family{python: firstTwo(f.Python), torch: firstTwo(f.Torch)}}
	release, _ := g.torchOf(f)
	k.cuda, k.oldABI = release.CUDA, release.OldABI
	k.archs = strings.Join(g.archsOf(f), " ")
	return k, nil
}

// torchOf returns the release of a node's minor that its wheel is built against: the first for
// its CUDA, else the first there is. It reports whether there is one.
func (g *grouper) torchOf(f node.Facts) (found Torch, known bool) {
	minor, cuda := firstTwo(f.Torch), firstTwo(f.TorchCUDA)
	for _, r := range g.Torches {
		if isTorch(minor, r) && (!known || found.CUDA != cuda && r.CUDA == cuda) {
			found, known = r, true
		}
	}
	return found, known
}

// archsOf returns the compute capabilities of a node's GPUs, as far as they are known. Without
// device code it returns none.
func (g *grouper) archsOf(f node.Facts) []string {
	var out []string
	if !g.asked.wantsDeviceCode() {
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

// addWheels adds the wheels for the kinds of nodes of a family.
func (g *grouper) addWheels(kinds []*kind) {
	var served []*kind
	var wheels [][]*kind
	for _, k := range kinds {
		if g.evaluationOf([]*kind{k}) == nil {
			reasons, hint := g.explainKind(k)
			for _, i := range k.nodes {
				g.Left = append(g.Left, Left{i, reasons, hint})
			}
			continue
		}
		served = append(served, k)
		at := slices.IndexFunc(wheels, func(have []*kind) bool { return g.evaluationOf(append(slices.Clone(have), k)) != nil })
		if at < 0 {
			wheels = append(wheels, []*kind{k})
			continue
		}
		wheels[at] = append(wheels[at], k)
	}
	for _, set := range wheels {
		group := g.newGroup(set)
		if len(wheels) > 1 {
			group.Reasons = append(group.Reasons, g.whyApart(set, served))
		}
		g.Groups = append(g.Groups, group)
	}
}

// evaluationOf returns the evaluation of one wheel for all the kinds; nil if there is no such
// wheel.
func (g *grouper) evaluationOf(kinds []*kind) *evaluation {
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

// specFor returns the Spec of a wheel; newGroup adds the CPU level of its nodes.
func (g *grouper) specFor(s search) wheel.Spec {
	spec := g.want
	i := slices.IndexFunc(g.Torches, func(r Torch) bool { return isTorch(s.torch, r) && r.CUDA == s.cuda })
	spec.Python, spec.Torch, spec.CUDA = s.python, g.Torches[i].Version, s.cuda
	spec.Archs = slices.Clone(g.want.Archs)
	for _, capability := range strings.Fields(s.archs) {
		spec.Archs = addArch(spec.Archs, archOf(capability))
	}
	if g.asked.wantsDeviceCode() && len(spec.Archs)+len(spec.GPUs) == 0 {
		spec.Ops = g.plainOps(spec)
	}
	return spec
}

// plainOps returns the requested ops without device code, for nodes whose GPUs are not known.
// With --ops all it returns only those that can be built.
func (g *grouper) plainOps(spec wheel.Spec) []string {
	var out []string
	var can *evaluation
	if g.asked.allOps {
		can = g.find(spec, nil, true)
	}
	for i, op := range g.asked.ops {
		switch {
		case op.DeviceCode || !g.asked.byName[i] && !g.asked.allOps:
		case can != nil && !slices.Contains(can.toolchain.OpNames(false), op.Name):
		default:
			out = append(out, op.Name)
		}
	}
	return out
}

// newGroup returns the wheel for some kinds, with its reasons.
func (g *grouper) newGroup(kinds []*kind) Group {
	s := g.searchFor(kinds)
	made := g.evaluationOf(kinds)
	var out Group
	for _, k := range kinds {
		out.Nodes = append(out.Nodes, k.nodes...)
	}
	slices.Sort(out.Nodes)
	out.Spec = g.specFor(s)
	r := &groupReasons{grouper: g, group: &out, made: made}
	r.chooseTorch()
	r.explainArchs()
	r.chooseCPU()
	r.explainGlibc()
	for _, remark := range made.finishedToolchain().Remarks {
		r.addReason("%s", remark)
	}
	return out
}

// whyApart says why a wheel does not serve the other nodes of its Python and torch.
func (g *grouper) whyApart(set, all []*kind) string {
	others := slices.DeleteFunc(slices.Clone(all), func(k *kind) bool { return slices.Contains(set, k) })
	s, o := g.searchFor(set), g.searchFor(others)
	more := "the others"
	if o.archs != "" {
		more = "archs " + joinWords(strings.Fields(o.archs))
	}
	return fmt.Sprintf("a separate wheel: no toolchain for Python %s and torch %s also supports %s", s.python, s.torch, more)
}
