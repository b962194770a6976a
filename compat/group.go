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
// A wheel is for one Python, one minor of torch and one C++ ABI. A wheel of torch's stable ABI is
// for every Python, every torch from StableTorch on and, with device code, one major of CUDA.
// Among nodes that agree in these, one wheel has the archs of all and the lowest CPU level. Where
// no toolchain makes that wheel, the nodes are split: each kind of node joins the first wheel that
// can serve it.
func (t *Tables) Group(nodes []Member, want wheel.Spec) Grouping {
	asked, bad := t.lookUp(want, nil)
	rules := &nodeRules{Tables: t, want: want, asked: asked, archs: map[node.GPU]string{}}
	g := &grouper{nodeRules: rules, nodes: nodes, members: map[family][]*kind{}, found: map[search]*evaluation{}}
	if len(bad) > 0 {
		return g.refuseAll()
	}
	var withoutCode []int // nodes that need no device code join a wheel that has some, if it serves them
	for i := range nodes {
		if g.needsDeviceCode(nodes[i].Facts) {
			g.addNode(i)
		} else {
			withoutCode = append(withoutCode, i)
		}
	}
	for _, i := range withoutCode {
		g.addNode(i)
	}
	for _, f := range g.families {
		g.addWheels(g.members[f])
	}
	slices.SortFunc(g.Groups, func(a, b Group) int { return cmp.Compare(a.Nodes[0], b.Nodes[0]) })
	slices.SortFunc(g.Left, func(a, b Left) int { return cmp.Compare(a.Node, b.Node) })
	g.offerAuto()
	return g.Grouping
}

// grouper collects the groups.
type grouper struct {
	*nodeRules
	Grouping
	nodes []Member

	families []family // in the order of their first nodes
	members  map[family][]*kind
	found    map[search]*evaluation // results for kinds that are alike
}

// family identifies nodes that one wheel can serve as far as Python and torch are concerned.
type family struct {
	abi           wheel.ABI // "" or StableABI
	python, torch string    // X.Y; "" for StableABI
	cuda          string    // X.Y of the release that it is built against; for StableABI the major, "" without device code
	oldABI        bool
}

// kind holds nodes of a family that every wheel treats alike, except for its CPU level.
type kind struct {
	family
	archs string // of their GPUs, joined
	nodes []int

	notStable string // AutoABI: why their wheel is not of the stable ABI
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

// addNode adds a node to its kind, or to the nodes that no wheel can serve.
func (g *grouper) addNode(i int) {
	k, left := g.kindOf(i)
	if left != nil {
		g.Left = append(g.Left, *left)
		return
	}
	kinds := g.members[k.family]
	if kinds == nil {
		g.families = append(g.families, k.family)
	}
	at := slices.IndexFunc(kinds, func(have *kind) bool { return have.archs == k.archs })
	if at < 0 {
		at, kinds = len(kinds), append(kinds, k)
		g.members[k.family] = kinds
	}
	kinds[at].nodes = append(kinds[at].nodes, i)
}

// abis lists the ABIs that the wheel of a node may have, best first. A wheel that others of its
// torch and Python need in any case is better than one more.
func (g *grouper) abis(f node.Facts) []wheel.ABI {
	if g.want.ABI != wheel.AutoABI {
		return []wheel.ABI{g.want.ABI}
	}
	own := &kind{family: g.familyOf(f, ""), archs: strings.Join(g.archsOf(f), " ")}
	if g.members[own.family] != nil && g.canServe([]*kind{own}) {
		return []wheel.ABI{"", wheel.StableABI}
	}
	return []wheel.ABI{wheel.StableABI, ""}
}

// needsDeviceCode reports whether a wheel for a node has device code.
func (g *grouper) needsDeviceCode(f node.Facts) bool {
	return g.asked.wantsDeviceCode() && len(g.want.Archs)+len(g.want.GPUs)+len(g.archsOf(f)) > 0
}

// kindOf returns the kind of a node, or the reason why no wheel can serve it.
func (g *grouper) kindOf(i int) (*kind, *Left) {
	f := g.nodes[i].Facts
	k := &kind{archs: strings.Join(g.archsOf(f), " ")}
	left := &Left{Node: i}
	for _, abi := range g.abis(f) {
		reasons, hint := g.whyUnfit(f, abi)
		if len(reasons) == 0 {
			k.family = g.familyOf(f, abi)
			why := g.whyNotStable(k)
			if why == "" {
				k.notStable = strings.Join(left.Reasons, "; ")
				return k, nil
			}
			reasons = []string{why}
		}
		left.Reasons, left.Hint = appendMissing(left.Reasons, reasons), cmp.Or(hint, left.Hint)
	}
	return nil, left
}

// familyOf returns the family of a node that a wheel of this ABI can serve.
func (g *grouper) familyOf(f node.Facts, abi wheel.ABI) family {
	if abi != wheel.StableABI {
		release, _ := g.torchOf(f)
		return family{python: firstTwo(f.Python), torch: firstTwo(f.Torch), cuda: release.CUDA, oldABI: release.OldABI}
	}
	own := family{abi: abi, cuda: majorOf(f.TorchCUDA)}
	if !g.needsDeviceCode(f) && g.members[own] == nil {
		own.cuda = ""
	}
	return own
}

// whyNotStable says why AutoABI makes no wheel of the stable ABI for a kind of nodes; "" if it
// does, and for the other ABIs.
func (g *grouper) whyNotStable(k *kind) string {
	if g.want.ABI != wheel.AutoABI || k.abi != wheel.StableABI {
		return ""
	}
	if e := g.evaluationOf([]*kind{k}); e != nil {
		return e.whyNotRan()
	}
	return "no toolchain makes a wheel of torch's stable ABI for it"
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
		at := slices.IndexFunc(wheels, func(have []*kind) bool { return g.canServe(append(slices.Clone(have), k)) })
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

// canServe reports whether one wheel serves all the kinds.
func (g *grouper) canServe(kinds []*kind) bool {
	e := g.evaluationOf(kinds)
	return e != nil && (g.want.ABI != wheel.AutoABI || e.toolchain.ABI != wheel.StableABI || e.whyNotRan() == "")
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
	if spec.ABI = s.abi; s.abi == wheel.StableABI {
		spec.CUDA = cmp.Or(spec.CUDA, s.cuda)
	} else {
		i := slices.IndexFunc(g.Torches, func(r Torch) bool { return isTorch(s.torch, r) && r.CUDA == s.cuda })
		spec.Python, spec.Torch, spec.CUDA = s.python, g.Torches[i].Version, s.cuda
	}
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
	if s.abi == wheel.StableABI {
		r.explainStable()
	} else {
		r.chooseTorch()
		r.explainNotStable(kinds)
	}
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
	what := fmt.Sprintf("for Python %s and torch %s", s.python, s.torch)
	if s.abi == wheel.StableABI {
		what = "of torch's stable ABI"
	}
	return fmt.Sprintf("a separate wheel: no toolchain %s also supports %s", what, more)
}

// offerAuto changes the hints of nodes that no wheel of the stable ABI serves, where AutoABI gives
// them a wheel for their own torch.
func (g *grouper) offerAuto() {
	if g.want.ABI != wheel.StableABI || len(g.Left) == 0 {
		return
	}
	var nodes []Member
	for _, l := range g.Left {
		nodes = append(nodes, g.nodes[l.Node])
	}
	want := g.want
	want.ABI = wheel.AutoABI
	for _, group := range g.Tables.Group(nodes, want).Groups {
		for _, i := range group.Nodes {
			g.Left[i].Hint = "use --abi auto: it gets a wheel for its own torch"
		}
	}
}
