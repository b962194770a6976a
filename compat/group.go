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

// Group finds few wheels that serve all nodes: for each node it resolves a wheel, and asks Fit whether that wheel runs there.
// Values of want hold for each wheel: a version leaves out the nodes that have another one, archs are added to those of
// the nodes.
//
// A wheel is for one Python, one minor of torch and one C++ ABI. A wheel of torch's stable ABI is
// for every Python, every torch from StableTorch on and, with device code, one major of CUDA.
// Among nodes that agree in these, one wheel has the archs of all and the lowest CPU level. Where
// no toolchain makes that wheel, or it does not run on all of them, the nodes are split: each kind of node joins the first
// wheel that can serve it.
func (t *Tables) Group(nodes []Member, want wheel.Spec) Grouping {
	g, bad := t.newGrouper(nodes, want)
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
	return g.Grouping
}

// grouper collects the groups.
type grouper struct {
	*Tables
	Grouping
	nodes []Member
	want  wheel.Spec
	asked *requirements

	families []family // in the order of their first nodes
	members  map[family][]*kind
	found    map[search]*evaluation // results for kinds that are alike
	refused  map[alike]Left         // likewise
	archs    map[node.GPU]string    // compute capabilities that were looked up; "" if unknown
}

// newGrouper returns a grouper, and the values of want that the tables lack.
func (t *Tables) newGrouper(nodes []Member, want wheel.Spec) (*grouper, []Conflict) {
	asked, bad := t.lookUp(want, nil)
	return &grouper{
		Tables: t, nodes: nodes, want: want, asked: asked,
		members: map[family][]*kind{}, found: map[search]*evaluation{}, refused: map[alike]Left{}, archs: map[node.GPU]string{},
	}, bad
}

// family identifies nodes that one wheel can serve as far as Python and torch are concerned.
type family struct {
	abi           wheel.ABI // "" or StableABI
	python, torch string    // X.Y; "" for StableABI
	cuda          string    // X.Y of the release that it is built against; for StableABI the major, "" without device code
}

// kind holds nodes of a family that are alike in all that Fit compares, except for their CPU level.
type kind struct {
	family
	traits
	facts node.Facts // of the first
	nodes []int

	notStable string // AutoABI: why their wheel is not of the stable ABI
}

// traits are facts that Fit compares with a wheel.
type traits struct {
	archs                                                   string // of the GPUs, joined
	hasGPUs                                                 bool
	python, torch, cuda, cxx11ABI, glibc, libstdcxx, driver string
}

// alike holds all that the answer to a node depends on.
type alike struct {
	family
	traits
	cpu, executable string
}

func (g *grouper) traitsOf(f node.Facts) traits {
	abi := ""
	if f.CXX11ABI != nil {
		abi = fmt.Sprint(*f.CXX11ABI)
	}
	return traits{
		archs: strings.Join(g.archsOf(f), " "), hasGPUs: len(f.GPUs) > 0, python: firstTwo(f.Python) + f.Tag,
		torch: f.Torch, cuda: f.TorchCUDA, cxx11ABI: abi, glibc: f.Glibc, libstdcxx: f.Libstdcxx, driver: f.Driver,
	}
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
	f := g.nodes[i].Facts
	if reason, hint := unusable(f); reason != "" {
		g.Left = append(g.Left, Left{i, []string{reason}, hint})
		return
	}
	same := alike{g.familyOf(f, g.want.ABI), g.traitsOf(f), f.CPU, f.Executable}
	if left, known := g.refused[same]; known {
		g.Left = append(g.Left, Left{i, left.Reasons, left.Hint})
		return
	}
	k, reasons := g.kindOf(f)
	if len(reasons) > 0 {
		g.refused[same] = Left{i, reasons, g.remedy(f)}
		g.Left = append(g.Left, g.refused[same])
		return
	}
	kinds := g.members[k.family]
	if kinds == nil {
		g.families = append(g.families, k.family)
	}
	at := slices.IndexFunc(kinds, func(have *kind) bool { return have.traits == k.traits })
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
	own := g.newKind(f, "")
	if g.members[own.family] != nil && len(g.whyUnfit(own)) == 0 {
		return []wheel.ABI{"", wheel.StableABI}
	}
	return []wheel.ABI{wheel.StableABI, ""}
}

// needsDeviceCode reports whether a wheel for a node has device code.
func (g *grouper) needsDeviceCode(f node.Facts) bool {
	return g.asked.wantsDeviceCode() && len(g.want.Archs)+len(g.want.GPUs)+len(g.archsOf(f)) > 0
}

func (g *grouper) newKind(f node.Facts, abi wheel.ABI) *kind {
	return &kind{family: g.familyOf(f, abi), traits: g.traitsOf(f), facts: f}
}

// kindOf returns the kind of a node, or the reasons why no wheel can serve it.
func (g *grouper) kindOf(f node.Facts) (*kind, []string) {
	var reasons []string
	for _, abi := range g.abis(f) {
		k := g.newKind(f, abi)
		why := g.whyUnfit(k)
		if stable := g.whyNotStable(k); len(why) == 0 && stable != "" {
			why = []string{stable}
		}
		if len(why) == 0 {
			k.notStable = strings.Join(reasons, "; ")
			return k, nil
		}
		reasons = appendMissing(reasons, why)
	}
	return nil, reasons
}

// whyUnfit says why there is no wheel for a kind of nodes, or why it does not run on them.
func (g *grouper) whyUnfit(k *kind) []string {
	kinds := []*kind{k}
	if g.evaluationOf(kinds) == nil {
		return g.whyNoWheel(k)
	}
	return g.whyNotRun(kinds)
}

// whyNotRun says why the one wheel of some kinds does not run on their nodes.
func (g *grouper) whyNotRun(kinds []*kind) []string {
	m := g.evaluationOf(kinds).manifest()
	m.CPU = string(cmp.Or(g.want.CPU, wheel.CPULevels()[0])) // chooseCPU takes the level of the oldest CPU
	var out []string
	for _, k := range kinds {
		out = appendMissing(out, g.Fit(m, k.facts).Reasons)
	}
	return out
}

// manifest returns what the manifest of the candidate's wheel will say of its needs.
func (a *evaluation) manifest() wheel.Manifest {
	tc := a.toolchain
	torch, cuda, python := tc.Serves()
	tag := cpythonTag(tc.Python) + "-" + cpythonTag(tc.Python)
	var abi *wheel.TorchABI
	if tc.ABI == wheel.StableABI {
		tag, abi = "py3-none", &wheel.TorchABI{Stable: true, Min: torch}
	}
	platform := "manylinux_" + strings.ReplaceAll(LinkGlibc, ".", "_") + "_" + x86Machine
	return wheel.Manifest{
		Name: fmt.Sprintf("deepspeed-%s-%s-%s.whl", tc.DeepSpeed, tag, platform), Version: tc.DeepSpeed, TorchABI: abi,
		Ops: tc.OpNames(false), Archs: wheel.Capabilities(tc.Archs, false), PTX: wheel.Capabilities(tc.Archs, true), CPU: string(tc.CPU),
		Python: python, Torch: torch, CUDA: cuda, Toolchain: wheel.Toolchain{Toolkit: tc.Toolkit},
		Glibc: LinkGlibc, GLIBCXX: wheel.PlatformFloors(LinkGlibc).GLIBCXX, CXX11ABI: !a.torch.OldABI,
	}
}

// familyOf returns the family of a node that a wheel of this ABI can serve. The wheel is built against the release of the
// node's minor of torch that is for its CUDA, or else the newest.
func (g *grouper) familyOf(f node.Facts, abi wheel.ABI) family {
	if abi == wheel.StableABI {
		own := family{abi: abi, cuda: majorOf(f.TorchCUDA)}
		if !g.needsDeviceCode(f) && g.members[own] == nil {
			own.cuda = ""
		}
		return own
	}
	own := family{python: cmp.Or(g.want.Python, firstTwo(f.Python)), torch: firstTwo(cmp.Or(g.want.Torch, f.Torch))}
	for _, r := range g.Torches {
		if isTorch(own.torch, r) && isCUDA(g.want.CUDA, r.CUDA) && (own.cuda == "" || r.CUDA == firstTwo(f.TorchCUDA)) {
			own.cuda = r.CUDA
		}
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
	var wheels [][]*kind
	for _, k := range kinds {
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
			group.Reasons = append(group.Reasons, g.whyApart(set, kinds))
		}
		g.Groups = append(g.Groups, group)
	}
}

// canServe reports whether one wheel serves all the kinds.
func (g *grouper) canServe(kinds []*kind) bool {
	e := g.evaluationOf(kinds)
	if e == nil || g.want.ABI == wheel.AutoABI && e.toolchain.ABI == wheel.StableABI && e.whyNotRan() != "" {
		return false
	}
	return len(g.whyNotRun(kinds)) == 0
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
		spec.Python, spec.Torch, spec.CUDA = s.python, s.torch, cmp.Or(s.cuda, g.want.CUDA)
		if i := slices.IndexFunc(g.Torches, func(r Torch) bool { return isTorch(s.torch, r) && r.CUDA == s.cuda }); i >= 0 {
			spec.Torch = g.Torches[i].Version
		}
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
	for _, k := range kinds {
		for _, remark := range g.Fit(made.manifest(), k.facts).Remarks {
			if preRelease(k.facts.Torch) && strings.Contains(remark, k.facts.Torch) && !slices.Contains(out.Reasons, remark) {
				r.addReason("%s", remark)
			}
		}
	}
	for _, remark := range made.finishedToolchain().Remarks {
		r.addReason("%s", remark)
	}
	return out
}

// whyApart says why a wheel does not serve the other nodes of its Python and torch.
func (g *grouper) whyApart(set, all []*kind) string {
	others := slices.DeleteFunc(slices.Clone(all), func(k *kind) bool { return slices.Contains(set, k) })
	s, o := g.searchFor(set), g.searchFor(others)
	if g.evaluationOf(all) != nil {
		return "a separate wheel: one for all would not run on some nodes: " + strings.Join(g.whyNotRun(all), "; ")
	}
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
