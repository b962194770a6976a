package compat

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/wheel"
)

// groupReasons explains a group's wheel and sets the values that depend on all its nodes.
type groupReasons struct {
	*grouper
	Group
	made *evaluation
}

// newGroup returns the wheel for some classes, with its reasons.
func (g *grouper) newGroup(classes []*nodeClass) Group {
	r := &groupReasons{grouper: g, made: g.evaluationOf(classes)}
	r.Request = g.requestFor(classes)
	for _, c := range classes {
		r.Nodes = append(r.Nodes, c.nodes...)
	}
	slices.Sort(r.Nodes)
	r.chooseTorch()
	r.explainArchs()
	r.chooseCPU()
	if v := r.Request.Glibc; v != "" {
		r.addReason("glibc %s as requested, checked by the audit", v)
	}
	for _, c := range classes {
		for _, note := range g.Fit(r.made.manifest(), c.facts).Notes {
			if preRelease(c.facts.Torch) && strings.Contains(note, c.facts.TorchVersion()) {
				r.Reasons = appendMissing(r.Reasons, []string{note})
			}
		}
	}
	r.Reasons = append(r.Reasons, r.made.finishedToolchain().Warnings...)
	r.explainSplit(classes)
	return r.Group
}

func (r *groupReasons) addReason(format string, args ...any) {
	r.Reasons = append(r.Reasons, fmt.Sprintf(format, args...))
}

// namesWhere lists a few of the group's nodes whose facts satisfy is, and counts the rest. It returns "" if none do.
func (r *groupReasons) namesWhere(is func(node.Facts) bool) string {
	const most = 3
	var names []string
	for _, i := range r.Nodes {
		if is(r.nodes[i].Facts) {
			names = append(names, r.nodes[i].Name)
		}
	}
	if n := len(names); n > most+1 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), n-most)
	}
	return lists.And(names)
}

// versions lists the versions of a fact of the group's nodes, each once, oldest first.
func (r *groupReasons) versions(of func(node.Facts) string) []string {
	all := lists.Map(r.Nodes, func(i int) string { return of(r.nodes[i].Facts) })
	return sortedVersions(all)
}

// chooseTorch picks the release that all nodes have if the tables know it, else the newest with
// that minor version.
func (r *groupReasons) chooseTorch() {
	have := r.versions(func(f node.Facts) string { return f.Torch })
	if r.Request.ABI == wheel.StableABI {
		m := r.made.manifest()
		what := fmt.Sprintf("torch's stable ABI: torch %s or newer and Python %s", m.Torch, m.Python)
		if r.made.toolchain.HasDeviceCode() {
			what += ", with CUDA " + lists.And(m.CUDAs())
		}
		torches := r.versions(func(f node.Facts) string { return firstTwo(f.Torch) })
		pythons := r.versions(func(f node.Facts) string { return firstTwo(f.Python) })
		r.addReason("%s: these nodes have torch %s and Python %s", what, lists.And(torches), lists.And(pythons))
		return
	}
	if len(have) == 1 && r.HasTorch(have[0], r.Request.CUDA, r.Request.Python) {
		r.Request.Torch = have[0]
	}
	if asked := r.want.Torch; strings.Count(asked, ".") > 1 {
		r.Request.Torch = asked
	}
	if r.want.ABI == "" {
		if why := r.asked.whyTorchMinor(have[0]); why != "" {
			r.addReason("a single torch and Python version: %s", why)
		}
	}
	what := fmt.Sprintf("Python %s and torch %s for CUDA %s", r.Request.Python, r.Request.Torch, r.Request.CUDA)
	if len(have) == 1 && have[0] == r.Request.Torch {
		r.addReason("%s: as on these nodes", what)
		return
	}
	r.addReason("%s: these nodes have torch %s, and one wheel serves every %s release",
		what, lists.And(have), firstTwo(r.Request.Torch))
}

// archWords lists archs as nvcc and torch take them: "8.0;9.0+PTX".
func archWords(sass, ptx []string) string {
	return strings.Join(lists.Map(sass, func(a string) string {
		if slices.Contains(ptx, a) {
			return a + "+PTX"
		}
		return a
	}), ";")
}

// sortedVersions returns each version once, oldest first.
func sortedVersions(all []string) []string {
	slices.SortFunc(all, func(a, b string) int { return cmp.Or(compareVersions(a, b), cmp.Compare(a, b)) })
	return slices.Compact(all)
}

// explainArchs adds which arch is for which GPU.
func (r *groupReasons) explainArchs() {
	if !r.asked.wantsDeviceCode() {
		r.addReason("no archs: none of these ops has device code")
		return
	}
	names := map[string][]string{} // GPUs by their arch
	var all []string
	for _, i := range r.Nodes {
		for _, gpu := range r.nodes[i].Facts.GPUs {
			arch := r.archOfGPU(gpu)
			names[arch] = appendMissing(names[arch], []string{ShortGPU(gpu.Name)})
			all = appendMissing(all, []string{ShortGPU(gpu.Name)})
		}
	}
	var out []string
	if r.made.toolchain.EveryGPU {
		var code []string
		for _, v := range r.made.manifest().Variants {
			if v.CUDA != "" {
				code = append(code, fmt.Sprintf("CUDA %s: %s", v.CUDA, archWords(v.Archs, v.PTX)))
			}
		}
		text := fmt.Sprintf("code for every GPU (%s)", cmp.Or(strings.Join(code, "; "), wheel.ArchList(r.made.toolchain.Archs)))
		if len(all) > 0 {
			text += ": these nodes have " + lists.And(all)
		}
		out = append(out, text)
	}
	for _, a := range r.Request.Archs {
		if by := names[a.Capability()]; len(by) > 0 {
			out = append(out, a.Capability()+" for "+lists.And(by))
		} else {
			out = append(out, a.String()+" as requested")
		}
	}
	if len(r.Request.GPUs) > 0 {
		out = append(out, lists.And(r.Request.GPUs)+" as requested")
	}
	if len(out) == 0 {
		r.addReason("only ops without device code, %s: these nodes' torch has no CUDA", lists.And(r.Request.Ops))
	} else {
		r.addReason("%s", strings.Join(out, ", "))
	}
	cpuOnly := r.namesWhere(func(f node.Facts) bool { return f.TorchCUDA == "" })
	if cpuOnly != "" && r.Request.ABI == wheel.StableABI {
		r.addReason("torch has no CUDA on %s: only ops without device code are used there", cpuOnly)
	}
	if without := r.namesWhere(func(f node.Facts) bool { return len(f.GPUs) == 0 && f.TorchCUDA != "" }); without != "" && len(out) > 0 {
		r.addReason("no GPU is visible on %s: any arch works there", without)
	}
	strange := r.namesWhere(func(f node.Facts) bool { return len(f.GPUs) > 0 && r.needsDeviceCode(f) && len(r.archsOf(f)) == 0 })
	if strange != "" {
		r.addReason("the GPU of %s is not in dsbuild's tables: if the wheel lacks code for that GPU, pass its compute capability with --arch",
			strange)
	}
}

// chooseCPU chooses the lowest level of the nodes, by default at most the default level. A wheel of the stable ABI
// has several.
func (r *groupReasons) chooseCPU() {
	if r.Request.ABI == wheel.StableABI && r.Request.CPU == "" {
		text, levels := "which every CPU here supports", r.made.manifest().CPUs()
		if len(levels) > 1 {
			text = "of which each node uses the highest that its CPU has"
		}
		r.addReason("%s, %s", lists.And(lists.Map(levels, func(l wheel.CPULevel) string { return string(l) })), text)
		return
	}
	why := "as requested: every CPU here supports it"
	if r.Request.CPU == wheel.CPUArm {
		why = "which every " + wheel.Arm + " CPU supports"
	}
	if r.Request.CPU == "" {
		r.Request.CPU, why = r.made.toolchain.CPU, "the default: every CPU here supports it"
		for _, i := range r.Nodes {
			if level := wheel.CPULevel(r.nodes[i].Facts.CPU); level != "" && !level.Includes(r.Request.CPU) {
				r.Request.CPU = level
			}
		}
	}
	if r.want.CPU == "" && r.Request.CPU != r.made.toolchain.CPU {
		oldest := r.namesWhere(func(f node.Facts) bool { return f.CPU == string(r.Request.CPU) })
		r.addReason("%s: the oldest CPU is on %s", r.Request.CPU, oldest)
		return
	}
	r.addReason("%s, %s", r.Request.CPU, why)
}

// explainSplit adds why a wheel does not serve the other nodes with its Python and torch, if there are any.
func (r *groupReasons) explainSplit(classes []*nodeClass) {
	var others []*nodeClass
	for _, w := range r.wheels {
		if w[0].family == classes[0].family && w[0] != classes[0] {
			others = append(others, w...)
		}
	}
	if len(others) == 0 {
		return
	}
	if all := slices.Concat(classes, others); r.evaluationOf(all) != nil {
		r.addReason("a separate wheel: a common one would not run on some nodes: %s", strings.Join(r.whyNotRun(all), "; "))
		return
	}
	var archs []string
	for _, c := range others {
		archs = append(archs, r.archsOf(c.facts)...)
	}
	more := "the others"
	if len(archs) > 0 {
		more = "archs " + lists.And(sortedVersions(archs))
	}
	what := "of torch's stable ABI"
	if own := classes[0].family; own.torch != "" {
		what = fmt.Sprintf("for Python %s and torch %s", own.python, own.torch)
	}
	r.addReason("a separate wheel: no toolchain %s also supports %s", what, more)
}
