package compat

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/wheel"
)

// Member is a node that needs a wheel.
type Member struct {
	Name  string
	Facts node.Facts
}

// Group is a wheel to build, and the nodes that it serves.
type Group struct {
	Request wheel.Request
	Nodes   []int    // places in the list of members
	Reasons []string // why each part of the request, in words
}

// Unserved is a node that no wheel can serve.
type Unserved struct {
	Node    int // place in the list of members
	Reasons []string
	Hint    string
}

// Grouping assigns nodes to wheels. Groups and Unserved are in the order of their first nodes.
type Grouping struct {
	Groups   []Group
	Unserved []Unserved
}

// Group computes a small set of wheels that covers all nodes: it resolves a wheel for each node, and
// checks by Fit that it runs there. The values of want apply to each wheel: a version excludes nodes with
// a different version, and archs are added to the nodes' archs.
//
// A wheel is for one machine. A wheel of torch's stable ABI is for every Python, StableTorch and every newer
// torch, every CUDA and every CPU level; it is for every GPU, if that includes the nodes'. Another wheel is
// for one Python, one torch minor version and one C++ ABI. Among nodes that agree in these, one wheel has the
// archs of all and the lowest CPU level. If no toolchain makes that wheel, or it does not run on all of them,
// the nodes are split: each class of nodes joins the first wheel that can serve it.
func (t *Tables) Group(nodes []Member, want wheel.Request) Grouping {
	return t.group(nodes, attempt{Request: want})
}

func (t *Tables) group(nodes []Member, want attempt) Grouping {
	g, bad := t.newGrouper(nodes, want)
	if len(bad) > 0 {
		e := g.conflict(want)
		for i := range nodes {
			g.Unserved = append(g.Unserved, Unserved{i, reasonsOf(e.Conflicts), e.Hint()})
		}
		return g.Grouping
	}
	for _, c := range g.classes() {
		g.place(c)
	}
	for _, classes := range g.wheels {
		g.Groups = append(g.Groups, g.newGroup(classes))
	}
	slices.SortFunc(g.Groups, func(a, b Group) int { return cmp.Compare(a.Nodes[0], b.Nodes[0]) })
	slices.SortFunc(g.Unserved, func(a, b Unserved) int { return cmp.Compare(a.Node, b.Node) })
	return g.Grouping
}

// grouper collects the groups.
type grouper struct {
	*Tables
	Grouping
	nodes  []Member
	want   attempt
	asked  *requirements
	wheels [][]*nodeClass         // the classes of nodes that each serves
	found  map[string]*evaluation // by the request
	archs  map[node.GPU]string    // compute capabilities, once looked up, or "" if unknown
}

// newGrouper returns a grouper, and the values of want that the tables lack.
func (t *Tables) newGrouper(nodes []Member, want attempt) (*grouper, []Conflict) {
	asked, bad := t.lookUp(want)
	return &grouper{
		Tables: t, nodes: nodes, want: want, asked: asked,
		found: map[string]*evaluation{}, archs: map[node.GPU]string{},
	}, bad
}

// nodeClass holds nodes that are alike in all that a wheel for them depends on.
type nodeClass struct {
	family
	facts node.Facts
	nodes []int
}

// family identifies nodes that one wheel can serve as far as the machine, Python and torch are concerned.
type family struct {
	machine string
	abi     wheel.ABI
	// X.Y, and empty for StableABI. The wheel is built against a release of torch for this CUDA.
	python, torch, cuda string
}

// classes puts nodes that are alike together.
func (g *grouper) classes() []*nodeClass {
	var out []*nodeClass
	known := map[string]*nodeClass{}
	for i, n := range g.nodes {
		f, abi := n.Facts, ""
		if f.CXX11ABI != nil {
			abi = fmt.Sprint(*f.CXX11ABI)
		}
		key := fmt.Sprintf("%q %t %q", []string{
			firstTwo(f.Python), f.Tag, f.Platform, f.Executable, f.Torch, f.TorchCUDA, abi,
			f.Glibc, f.Libstdcxx, f.CPU, f.Driver,
		}, f.ExternallyManaged, f.GPUs)
		if known[key] == nil {
			known[key] = &nodeClass{facts: f}
			out = append(out, known[key])
		}
		known[key].nodes = append(known[key].nodes, i)
	}
	return out
}

// place adds a class of nodes to the first wheel that can serve it and its own classes, or
// to the nodes that no wheel can serve.
func (g *grouper) place(c *nodeClass) {
	reason, hint := unusable(c.facts)
	reasons := []string{reason}
	if reason == "" {
		if reasons = g.chooseFamily(c); len(reasons) > 0 {
			serve := func(a attempt) *evaluation { return g.serve(c.facts, a) }
			hint = cmp.Or(g.dropOne(g.want, serve), g.nodeHint(c.facts))
		}
	}
	if len(reasons) > 0 {
		for _, i := range c.nodes {
			g.Unserved = append(g.Unserved, Unserved{i, reasons, hint})
		}
		return
	}
	for i, have := range g.wheels {
		all := append(slices.Clone(have), c)
		// One wheel serves them all.
		if have[0].family == c.family && g.evaluationOf(all) != nil && len(g.whyNotRun(all)) == 0 {
			g.wheels[i] = all
			return
		}
	}
	g.wheels = append(g.wheels, []*nodeClass{c})
}

// archsOf returns the known compute capabilities of a node's GPUs, or none if its wheel needs no device code.
func (g *grouper) archsOf(f node.Facts) []string {
	var out []string
	if !g.needsDeviceCode(f) {
		return nil
	}
	for _, gpu := range f.GPUs {
		if arch := g.archOfGPU(gpu); arch != "" {
			out = append(out, arch)
		}
	}
	return sortedVersions(out)
}

// archOfGPU looks each GPU up once.
func (g *grouper) archOfGPU(gpu node.GPU) string {
	arch, known := g.archs[gpu]
	if !known {
		arch = g.Tables.archOfGPU(gpu)
		g.archs[gpu] = arch
	}
	return arch
}

// needsDeviceCode reports whether a wheel for a node's own torch has device code: nodes without a visible GPU get
// it too, but a torch without CUDA cannot load it.
func (g *grouper) needsDeviceCode(f node.Facts) bool {
	return g.asked.wantsDeviceCode() && (f.TorchCUDA != "" || len(g.want.Archs)+len(g.want.GPUs) > 0)
}

// chooseFamily sets the family of a class of nodes, or returns why no wheel serves them. The default ABI is
// the stable ABI, if a wheel of it serves them.
func (g *grouper) chooseFamily(c *nodeClass) (reasons []string) {
	if g.want.ABI == "" && g.asked.whyTorchMinor(c.facts.Torch) == "" {
		if c.family = g.familyOf(c.facts, wheel.StableABI); len(g.whyUnfit(c)) == 0 {
			return nil
		}
	}
	c.family = g.familyOf(c.facts, cmp.Or(g.want.ABI, wheel.TorchMinor))
	return g.whyUnfit(c)
}

// familyOf returns the family of a node that a wheel of this ABI can serve. The wheel is built against
// the release of the node's torch minor version that is for its CUDA, or else the newest.
func (g *grouper) familyOf(f node.Facts, abi wheel.ABI) family {
	machine := cmp.Or(machineOf(f.Platform), wheel.X86)
	if abi == wheel.StableABI {
		return family{machine: machine, abi: abi}
	}
	own := family{
		machine: machine,
		abi:     abi,
		python:  cmp.Or(g.want.Python, firstTwo(f.Python)),
		torch:   firstTwo(cmp.Or(g.want.Torch, f.Torch)),
	}
	for _, r := range g.Torches {
		if isTorch(own.torch, r) && isCUDA(g.want.CUDA, r.CUDA) && (own.cuda == "" || r.CUDA == firstTwo(f.TorchCUDA)) {
			own.cuda = r.CUDA
		}
	}
	return own
}

// whyUnfit returns why there is no wheel for a class of nodes, or why it does not run on them.
func (g *grouper) whyUnfit(c *nodeClass) []string {
	classes := []*nodeClass{c}
	request := g.requestFor(classes)
	if g.evaluationFor(request) != nil {
		return g.whyNotRun(classes)
	}
	if len(request.Ops) == 0 && g.asked.wantsDeviceCode() && !g.needsDeviceCode(c.facts) {
		return []string{fmt.Sprintf("torch %s has no CUDA, and every requested op has device code", c.facts.Torch)}
	}
	if why := olderThanStable(c.facts.Torch); request.ABI == wheel.StableABI && why != "" {
		return []string{why}
	}
	w, bad := g.lookUp(attempt{request, g.want.hosts})
	for _, gpu := range c.facts.GPUs {
		arch := g.archOfGPU(gpu)
		w.gpus[arch] = appendMissing(w.gpus[arch], []string{ShortGPU(gpu.Name)})
	}
	return reasonsOf(append(bad, g.explain(w)...))
}

// whyNotRun returns why the common wheel of some classes does not run on their nodes.
func (g *grouper) whyNotRun(classes []*nodeClass) []string {
	m := g.evaluationOf(classes).manifest()
	m.CPU = string(cmp.Or(g.want.CPU, wheel.CPULevels(classes[0].machine)[0])) // chooseCPU takes the level of the oldest CPU
	var out []string
	for _, c := range classes {
		out = appendMissing(out, g.Fit(m, c.facts).Reasons)
	}
	return out
}

// evaluationOf returns the evaluation of one wheel for all the classes, or nil.
func (g *grouper) evaluationOf(classes []*nodeClass) *evaluation {
	return g.evaluationFor(g.requestFor(classes))
}

func (g *grouper) evaluationFor(request wheel.Request) *evaluation {
	key := fmt.Sprint(request)
	if _, done := g.found[key]; !done {
		g.found[key] = g.find(attempt{request, g.want.hosts})
	}
	return g.found[key]
}

// requestFor returns the request for one wheel for classes of a family; newGroup adds the CPU level of a wheel for
// one torch and x86_64. A wheel of the stable ABI is for every GPU (no arch is in its request) if that wheel has
// machine code for theirs, or if no toolchain makes all of theirs.
func (g *grouper) requestFor(classes []*nodeClass) wheel.Request {
	request, f := g.want.Request, classes[0].family
	if request.CPU == "" {
		if request.Machine = cmp.Or(request.Machine, f.machine); request.Machine == wheel.Arm {
			request.CPU = wheel.CPUArm
		}
	}
	if request.ABI = f.abi; request.ABI != wheel.StableABI {
		request.Python, request.Torch, request.CUDA = f.python, f.torch, cmp.Or(f.cuda, g.want.CUDA)
		if i := slices.IndexFunc(g.Torches, func(r Torch) bool { return isTorch(f.torch, r) && r.CUDA == f.cuda }); i >= 0 {
			request.Torch = g.Torches[i].Version
		}
	}
	request.Archs = slices.Clone(g.want.Archs)
	everyGPU := request
	for _, c := range classes {
		for _, capability := range g.archsOf(c.facts) {
			request.Archs = addArch(request.Archs, archOf(capability))
		}
	}
	if request.ABI == wheel.StableABI {
		if len(everyGPU.Archs)+len(request.GPUs) > 0 {
			return request
		}
		e := g.evaluationFor(everyGPU)
		lacking := func(c *nodeClass) bool { return g.lacksCode(e, c.facts) }
		if e == nil || slices.ContainsFunc(classes, lacking) && g.evaluationFor(request) != nil {
			return request
		}
		return everyGPU
	}
	if g.asked.wantsDeviceCode() && !slices.ContainsFunc(classes, func(c *nodeClass) bool { return g.needsDeviceCode(c.facts) }) {
		request.Ops = g.plainOps(request)
	}
	return request
}

// lacksCode reports whether a wheel lacks machine code for a GPU of a node, for the CUDA of its torch.
func (g *grouper) lacksCode(e *evaluation, f node.Facts) bool {
	m, _ := e.manifest().ForCUDA(f.TorchCUDA)
	return slices.ContainsFunc(g.archsOf(f), func(arch string) bool { return !g.hasSASS(m.Archs, arch) })
}

// plainOps returns the requested ops without device code, for nodes whose torch has no CUDA.
// With --ops all it returns only those that can be built.
func (g *grouper) plainOps(request wheel.Request) []string {
	var out []string
	var can *evaluation
	if g.asked.allOps {
		can = g.find(attempt{request, g.want.hosts})
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

// manifest returns what the manifest of the candidate's wheel will say of its needs.
func (a *evaluation) manifest() wheel.Manifest {
	if a.made != nil {
		return *a.made
	}
	tc := a.toolchain
	torch, cuda, python := tc.Serves()
	tag := cpythonTag(tc.Python) + "-" + cpythonTag(tc.Python)
	var abi *wheel.TorchABI
	if tc.ABI == wheel.StableABI {
		tag, abi = "py3-none", &wheel.TorchABI{Stable: true, Min: torch}
	}
	platform := "manylinux_" + strings.ReplaceAll(LinkGlibc, ".", "_") + "_" + tc.CPU.Machine()
	m := wheel.Manifest{
		Name:    fmt.Sprintf("deepspeed-%s-%s-%s.whl", tc.DeepSpeed, tag, platform),
		Version: tc.DeepSpeed, TorchABI: abi,
		Ops:   tc.OpNames(false),
		Archs: wheel.Capabilities(tc.Archs, false), PTX: wheel.Capabilities(tc.Archs, true),
		CPU:    string(tc.CPU),
		Python: python, Torch: torch, CUDA: cuda, Toolchain: wheel.Toolchain{Toolkit: tc.Toolkit},
		Glibc: LinkGlibc, GLIBCXX: wheel.PlatformFloors(LinkGlibc, tc.CPU.Machine()).GLIBCXX,
		CXX11ABI: !a.torch.OldABI,
	}
	m.Variants = VariantsOf(append([]Toolchain{tc}, a.Variants(a.request, tc)...))
	for _, v := range m.Variants {
		m.Archs, m.PTX = appendMissing(m.Archs, v.Archs), appendMissing(m.PTX, v.PTX)
	}
	m.Archs, m.PTX = sortedVersions(m.Archs), sortedVersions(m.PTX)
	if len(m.CUDAs()) > 1 {
		m.CUDA = ""
	}
	a.made = &m
	return m
}
