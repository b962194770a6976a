package compat

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/node"
	"github.com/dsbuild/dsbuild/wheel"
)

// groupReasons explains a group's wheel and sets the values that depend on all its nodes.
type groupReasons struct {
	*grouper
	made  *evaluation
	group *Group
}

func (r *groupReasons) addReason(format string, args ...any) {
	r.group.Reasons = append(r.group.Reasons, fmt.Sprintf(format, args...))
}

// namesWhere lists the nodes of the group whose facts satisfy is.
func (r *groupReasons) namesWhere(is func(node.Facts) bool) []string {
	var names []string
	for _, i := range r.group.Nodes {
		if is(r.nodes[i].Facts) {
			names = append(names, r.nodes[i].Name)
		}
	}
	return names
}

// summarizeNames names a few nodes and counts the rest.
func summarizeNames(names []string) string {
	const most = 3
	if n := len(names); n > most+1 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), n-most)
	}
	return joinWords(names)
}

// chooseTorch picks the release: the one that all nodes have if the tables know it, else the
// newest of that minor.
func (r *groupReasons) chooseTorch() {
	spec := &r.group.Spec
	var have []string
	for _, i := range r.group.Nodes {
		v, _, _ := strings.Cut(r.nodes[i].Facts.Torch, "+")
		if !slices.Contains(have, v) {
			have = append(have, v)
		}
	}
	slices.SortFunc(have, func(a, b string) int { return cmp.Or(compareVersions(a, b), cmp.Compare(a, b)) })
	if len(have) == 1 && r.HasTorch(have[0], spec.CUDA, spec.Python) {
		spec.Torch = have[0]
	}
	if asked := r.want.Torch; strings.Count(asked, ".") > 1 {
		spec.Torch = asked
	}
	what := fmt.Sprintf("Python %s and torch %s for CUDA %s", spec.Python, spec.Torch, spec.CUDA)
	if len(have) == 1 && have[0] == spec.Torch {
		r.addReason("%s: as on these nodes", what)
		return
	}
	r.addReason("%s: these nodes have torch %s, and one wheel serves every %s", what, joinWords(have), firstTwo(spec.Torch))
}

// explainStable says for which of the nodes' torches and Pythons a wheel of the stable ABI is.
func (r *groupReasons) explainStable() {
	var torches, pythons []string
	for _, i := range r.group.Nodes {
		f := r.nodes[i].Facts
		torches, pythons = append(torches, firstTwo(f.Torch)), append(pythons, firstTwo(f.Python))
	}
	torch, cuda, python := r.made.toolchain.Serves()
	what := fmt.Sprintf("torch's stable ABI: for torch %s and newer and Python %s", torch, python)
	if r.made.toolchain.HasDeviceCode() {
		what += ", with CUDA " + cuda
	}
	r.addReason("%s: these nodes have torch %s and Python %s", what, joinWords(sortedVersions(torches)), joinWords(sortedVersions(pythons)))
}

// explainNotStable says why AutoABI did not choose the stable ABI.
func (r *groupReasons) explainNotStable(kinds []*kind) {
	var why []string
	for _, k := range kinds {
		if k.notStable != "" {
			why = appendMissing(why, []string{k.notStable})
		}
	}
	if len(why) > 0 {
		r.addReason("for this torch alone: %s", strings.Join(why, "; "))
	}
}

// sortedVersions returns each version once, oldest first.
func sortedVersions(all []string) []string {
	slices.SortFunc(all, compareVersions)
	return slices.Compact(all)
}

// explainArchs says which arch is for which GPU.
func (r *groupReasons) explainArchs() {
	if !r.asked.wantsDeviceCode() {
		r.addReason("no archs: none of these operators has device code")
		return
	}
	names := r.gpuNames(r.group.Nodes)
	var out []string
	for _, a := range r.group.Spec.Archs {
		if by := names[a.Capability()]; len(by) > 0 {
			out = append(out, a.Capability()+" for "+joinWords(by))
		} else {
			out = append(out, a.String()+" as requested")
		}
	}
	if len(r.group.Spec.GPUs) > 0 {
		out = append(out, joinWords(r.group.Spec.GPUs)+" as requested")
	}
	without := r.namesWhere(func(f node.Facts) bool { return len(f.GPUs) == 0 })
	strange := r.namesWhere(func(f node.Facts) bool { return len(f.GPUs) > 0 && len(r.archsOf(f)) == 0 })
	switch {
	case len(out) > 0:
		r.addReason("%s", strings.Join(out, ", "))
	default:
		r.addReason("only operators without device code, %s: dsbuild knows no GPU of these nodes; give one with --gpu or --arch", joinWords(r.group.Spec.Ops))
	}
	if len(without) > 0 && len(out) > 0 {
		r.addReason("no GPU is visible on %s: any arch works there", summarizeNames(without))
	}
	if len(strange) > 0 {
		r.addReason("the GPU of %s is not in the tables: add its compute capability with --arch", summarizeNames(strange))
	}
}

// gpuNames returns the GPUs of some nodes by their arch, each once.
func (g *grouper) gpuNames(nodes []int) map[string][]string {
	names := map[string][]string{}
	seen := map[node.GPU]bool{}
	for _, i := range nodes {
		for _, gpu := range g.nodes[i].Facts.GPUs {
			if seen[gpu] {
				continue
			}
			seen[gpu] = true
			arch, name := g.archOfGPU(gpu), ShortGPU(gpu.Name)
			if !slices.Contains(names[arch], name) {
				names[arch] = append(names[arch], name)
			}
		}
	}
	return names
}

// chooseCPU takes the lowest level, and none above the default that nobody asked for.
func (r *groupReasons) chooseCPU() {
	spec := &r.group.Spec
	if spec.CPU != "" {
		r.addReason("%s, as requested: every CPU here has it", spec.CPU)
		return
	}
	spec.CPU = wheel.CPUv3
	for _, i := range r.group.Nodes {
		if level := wheel.CPULevel(r.nodes[i].Facts.CPU); level != "" && !level.Includes(spec.CPU) {
			spec.CPU = level
		}
	}
	if spec.CPU == wheel.CPUv3 {
		r.addReason("%s, the default: every CPU here has it", spec.CPU)
		return
	}
	r.addReason("%s: the oldest CPU is that of %s", spec.CPU, summarizeNames(r.namesWhere(func(f node.Facts) bool { return f.CPU == string(spec.CPU) })))
}

// explainGlibc adds a reason if the user requested a glibc.
func (r *groupReasons) explainGlibc() {
	if v := r.group.Spec.Glibc; v != "" {
		r.addReason("glibc %s, as requested: the audit checks it", v)
	}
}
