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

// whyUnfit returns the reasons why no wheel of an ABI that could be built serves a node, as far as
// its facts show.
func (g *grouper) whyUnfit(f node.Facts, abi wheel.ABI) (reasons []string, hint string) {
	rules := []func(node.Facts) (string, string){g.machineProblem, g.pythonProblem, g.torchProblem, g.cudaProblem, g.abiProblem, g.libraryProblem, g.cpuProblem, g.driverProblem}
	if abi == wheel.StableABI {
		rules = []func(node.Facts) (string, string){g.machineProblem, g.pythonProblem, g.stableProblem, g.stableCUDAProblem, g.libraryProblem, g.cpuProblem, g.driverProblem}
	}
	for _, rule := range rules {
		reason, try := rule(f)
		if reason == "" {
			continue
		}
		reasons = append(reasons, reason)
		hint = cmp.Or(hint, try)
		if f.Torch == "" || f.ExternallyManaged || g.foreignNode(f) { // the rest is of no use
			break
		}
	}
	return reasons, hint
}

// foreignNode reports whether dsbuild builds no wheels for a node's machine.
func (g *grouper) foreignNode(f node.Facts) bool {
	machine := machineOf(f.Platform)
	return machine != "" && machine != x86Machine
}

func (g *grouper) machineProblem(f node.Facts) (reason, hint string) {
	switch {
	case g.foreignNode(f):
		machine := machineOf(f.Platform)
		return fmt.Sprintf("its CPU is %s; dsbuild builds only %s wheels", machine, x86Machine), nativeBuildHint(machine)
	case f.Python == "":
		return "it has no Python at the interpreter that the inventory names", "set python: in the inventory to the interpreter of the environment (absolute)"
	case f.ExternallyManaged:
		return "its Python is managed by the system (PEP 668) and must not be changed",
			"create an environment there (python3 -m venv, uv venv) and name its python in the inventory"
	case f.Torch == "":
		return "its environment has no torch", "set python: in the inventory to the environment that has torch"
	}
	return "", ""
}

func (g *grouper) pythonProblem(f node.Facts) (reason, hint string) {
	switch {
	case freeThreaded(f.Tag):
		return fmt.Sprintf("its Python %s has no GIL (%s); dsbuild builds only for Pythons with the GIL", f.Python, f.Tag), environmentHint(f)
	case g.want.Python != "" && g.want.Python != firstTwo(f.Python):
		return fmt.Sprintf("it has Python %s, but the request is for %s", f.Python, g.want.Python), "leave --python out: each node gets a wheel for its own Python"
	}
	return "", ""
}

// environmentHint returns the remedy for an environment that dsbuild cannot reproduce.
func environmentHint(f node.Facts) string {
	return "build the wheel on such a node, for its environment: dsbuild wheel --env " + node.PlainPath(f.Executable, "PYTHON")
}

// otherTorch refuses a node that has another torch than the requested one.
func (g *grouper) otherTorch(f node.Facts) (reason, hint string) {
	if g.want.Torch == "" || firstTwo(g.want.Torch) == firstTwo(f.Torch) {
		return "", ""
	}
	return fmt.Sprintf("it has torch %s, but the request is for %s", f.Torch, g.want.Torch), "leave --torch out: each node gets a wheel for its own torch"
}

func (g *grouper) torchProblem(f node.Facts) (reason, hint string) {
	if reason, hint = g.otherTorch(f); reason != "" {
		return reason, hint
	}
	_, known := g.torchOf(f)
	switch all := torchVersions(g.Torches); {
	case !known:
		return fmt.Sprintf("its torch %s is not in the tables of this dsbuild, which knows %s to %s", f.Torch, all[len(all)-1], all[0]), environmentHint(f)
	}
	return "", ""
}

// stableProblem refuses a node whose torch or Python is too old for a wheel of the stable ABI.
func (g *grouper) stableProblem(f node.Facts) (reason, hint string) {
	hint = fmt.Sprintf("install torch %s or newer there", StableTorch)
	if olderMinor(f.Torch, StableTorch) {
		return fmt.Sprintf("its torch %s is older than %s, the first that has all of the stable ABI that dsbuild uses", f.Torch, StableTorch), hint
	}
	if oldest := g.oldestStablePython(); olderMinor(f.Python, oldest) {
		return fmt.Sprintf("its Python %s is older than %s, the oldest that a wheel of the stable ABI serves", f.Python, oldest), hint
	}
	return g.otherTorch(f)
}

// stableCUDAProblem refuses a node whose torch has no CUDA, or another one than requested, if the
// wheel has device code.
func (g *grouper) stableCUDAProblem(f node.Facts) (reason, hint string) {
	switch {
	case !g.asked.wantsDeviceCode():
	case f.TorchCUDA == "":
		return g.noCUDA()
	case !isCUDA(g.want.CUDA, f.TorchCUDA):
		return fmt.Sprintf("its torch %s is for CUDA %s, but the request is for %s", f.Torch, f.TorchCUDA, g.want.CUDA), "leave --cuda out: each node gets a wheel for its own CUDA"
	}
	return "", ""
}

// noCUDA is the problem of a node whose torch has no CUDA.
func (g *grouper) noCUDA() (reason, hint string) {
	return "its torch has no CUDA", "install a torch for CUDA there, or leave out the ops that need one: --ops " + strings.Join(g.unboundOps(), ",")
}

// cudaProblem refuses a node whose torch has another CUDA: a wheel built against the torch of the
// index is for that torch's CUDA.
func (g *grouper) cudaProblem(f node.Facts) (reason, hint string) {
	release, known := g.torchOf(f)
	bound := slices.ContainsFunc(g.asked.ops, func(o Op) bool { return o.boundToCUDA(g.asked.deepspeed.Version) })
	switch {
	case !known:
	case !isCUDA(g.want.CUDA, release.CUDA):
		return fmt.Sprintf("torch %s is built for CUDA %s, but the request is for %s", release.Version, release.CUDA, g.want.CUDA), "leave --cuda out: each node gets a wheel for its own CUDA"
	case !bound || f.TorchCUDA == release.CUDA:
	case f.TorchCUDA == "":
		return g.noCUDA()
	case len(f.GPUs) > 0 || majorOf(f.TorchCUDA) != majorOf(release.CUDA):
		return fmt.Sprintf("its torch %s is for CUDA %s, but the package index has it for %s", f.Torch, f.TorchCUDA, release.CUDA), environmentHint(f)
	}
	return "", ""
}

// unboundOps are those of the default ops that load under any torch.
func (g *grouper) unboundOps() []string {
	return slices.DeleteFunc(wheel.DefaultOps(), func(name string) bool {
		i := slices.IndexFunc(g.Ops, func(o Op) bool { return o.Name == name })
		return i < 0 || g.Ops[i].boundToCUDA(g.asked.deepspeed.Version)
	})
}

func (g *grouper) abiProblem(f node.Facts) (reason, hint string) {
	release, known := g.torchOf(f)
	if !known || f.CXX11ABI == nil || *f.CXX11ABI != release.OldABI {
		return "", ""
	}
	words := map[bool]string{true: "the new std::string (CXX11 ABI)", false: "the old std::string"}
	return fmt.Sprintf("its torch %s is built with %s, but the one on the package index with %s", f.Torch, words[*f.CXX11ABI], words[!*f.CXX11ABI]), environmentHint(f)
}

// libraryProblem refuses a node with older libraries: extensions linked for newer ones do not
// load. An environment's own libstdc++ can be older than its glibc.
func (g *grouper) libraryProblem(f node.Facts) (reason, hint string) {
	if f.Glibc != "" && olderMinor(f.Glibc, LinkGlibc) {
		return fmt.Sprintf("its glibc is %s, but dsbuild links extensions for %s and newer", f.Glibc, LinkGlibc), environmentHint(f)
	}
	if floor := wheel.PlatformFloors(LinkGlibc).GLIBCXX; f.Libstdcxx != "" && compareVersions(f.Libstdcxx, floor) < 0 {
		return fmt.Sprintf("its libstdc++ has GLIBCXX %s, but dsbuild links extensions for %s and newer", f.Libstdcxx, floor), environmentHint(f)
	}
	return "", ""
}

func (g *grouper) cpuProblem(f node.Facts) (reason, hint string) {
	have := wheel.CPULevel(f.CPU)
	switch lowest := wheel.CPULevels()[0]; {
	case have == "":
	case !have.Includes(lowest):
		return fmt.Sprintf("its CPU has %s, but dsbuild builds wheels for %s and higher", shortLevel(have), lowest), "use another machine"
	case g.want.CPU != "" && !have.Includes(g.want.CPU):
		return fmt.Sprintf("its CPU has %s, but the request is for %s", shortLevel(have), g.want.CPU), "leave --cpu out: each wheel gets the level of its oldest CPU"
	}
	return "", ""
}

// driverProblem refuses a node with an older driver: no device code runs without a driver for its
// CUDA.
func (g *grouper) driverProblem(f node.Facts) (reason, hint string) {
	floor := g.cudaRow(f.TorchCUDA).Driver
	if !g.asked.wantsDeviceCode() || len(f.GPUs) == 0 || !olderDriver(f.Driver, floor) {
		return "", ""
	}
	hint = fmt.Sprintf("install driver %s or newer there", floor)
	other := g.want
	other.Torch, other.CUDA, other.Python, other.Driver = "", "", firstTwo(f.Python), f.Driver
	for _, arch := range g.archsOf(f) {
		other.Archs = addArch(other.Archs, archOf(arch))
	}
	if e := g.find(other, nil, true); e != nil {
		hint = fmt.Sprintf("install torch %s for CUDA %s there, which works with driver %s", e.torch.Version, e.torch.CUDA, f.Driver)
	}
	return fmt.Sprintf("its torch is for CUDA %s, which needs driver %s or newer, but it has %s", f.TorchCUDA, floor, f.Driver), hint
}

// explainKind says why no toolchain makes a wheel for a kind of nodes, and gives a hint.
func (g *grouper) explainKind(k *kind) (reasons []string, hint string) {
	s := g.searchFor([]*kind{k})
	spec := g.specFor(s)
	w, bad := g.lookUp(spec, nil)
	for capability, names := range g.gpuNames(k.nodes) {
		w.gpus[capability] = names
	}
	reasons = reasonsOf(append(bad, g.explain(w)...))
	if len(spec.Ops) == 0 && g.asked.wantsDeviceCode() && s.archs == "" && len(g.want.Archs)+len(g.want.GPUs) == 0 {
		return []string{"dsbuild knows no GPU of it, and every requested operator has device code"}, "name its GPU or compute capability: --gpu A100, --arch 8.0"
	}
	return reasons, g.nearestRemedy(spec, k)
}

// nearestRemedy finds a change that gives a node a wheel: another base, another torch on the
// node, fewer ops. The change has been resolved.
func (g *grouper) nearestRemedy(spec wheel.Spec, k *kind) string {
	if a := g.find(spec, g.images, false); a != nil {
		return "build on another base: --base " + a.environment.Ref
	}
	other, plain := spec, spec
	other.Torch, other.CUDA = "", ""
	if a := g.find(other, nil, false); a != nil {
		return fmt.Sprintf("install torch %s there", a.torch.Version)
	}
	if plain.Ops = g.plainOps(spec); len(plain.Ops) > 0 && g.find(plain, nil, false) != nil {
		return "leave out the ops with device code: --ops " + strings.Join(plain.Ops, ",")
	}
	return environmentHint(g.nodes[k.nodes[0]].Facts)
}
