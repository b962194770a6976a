package compat

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/node"
	"github.com/dsbuild/dsbuild/wheel"
)

// reasons says why a group's wheel is as it is, and sets what is known only of
// all its nodes.
type reasons struct {
	*grouper
	made  *attempt
	group *Group
}

func (r *reasons) say(format string, args ...any) {
	r.group.Reasons = append(r.group.Reasons, fmt.Sprintf(format, args...))
}

// having lists the nodes of the group of which something holds.
func (r *reasons) having(is func(node.Facts) bool) []string {
	var names []string
	for _, i := range r.group.Nodes {
		if is(r.nodes[i].Facts) {
			names = append(names, r.nodes[i].Name)
		}
	}
	return names
}

// several names a few nodes and counts the rest.
func several(names []string) string {
	const most = 3
	if n := len(names); n > most+1 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), n-most)
	}
	return listed(names)
}

// torch picks the release: the one that all have if the tables know it, else the
// newest of that minor.
func (r *reasons) torch() {
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
		r.say("%s: what these nodes have", what)
		return
	}
	r.say("%s: these nodes have torch %s, and one wheel serves every %s", what, listed(have), firstTwo(spec.Torch))
}

// archs says which arch is for which GPU.
func (r *reasons) archs() {
	if !r.asked.device() {
		r.say("no archs: none of these operators has device code")
		return
	}
	names := r.gpuNames(r.group.Nodes)
	var out []string
	for _, a := range r.group.Spec.Archs {
		if by := names[a.Capability()]; len(by) > 0 {
			out = append(out, a.Capability()+" for "+listed(by))
		} else {
			out = append(out, a.String()+" as asked for")
		}
	}
	if len(r.group.Spec.GPUs) > 0 {
		out = append(out, listed(r.group.Spec.GPUs)+" as asked for")
	}
	without := r.having(func(f node.Facts) bool { return len(f.GPUs) == 0 })
	strange := r.having(func(f node.Facts) bool { return len(f.GPUs) > 0 && len(r.archsOf(f)) == 0 })
	switch {
	case len(out) > 0:
		r.say("%s", strings.Join(out, ", "))
	default:
		r.say("operators without device code alone, %s: no GPU of these nodes is known; --gpu or --arch gives one", listed(r.group.Spec.Ops))
	}
	if len(without) > 0 && len(out) > 0 {
		r.say("no GPU is seen on %s: any arch does there", several(without))
	}
	if len(strange) > 0 {
		r.say("the GPU of %s is not in the tables: --arch adds its compute capability", several(strange))
	}
}

// gpuNames are the GPUs of some nodes by their arch, each once.
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

// cpu takes the lowest level, and none above the default that nobody asked for.
func (r *reasons) cpu() {
	spec := &r.group.Spec
	if spec.CPU != "" {
		r.say("%s, as asked for: every CPU here has it", spec.CPU)
		return
	}
	spec.CPU = wheel.CPUv3
	for _, i := range r.group.Nodes {
		if level := wheel.CPULevel(r.nodes[i].Facts.CPU); level != "" && !level.Includes(spec.CPU) {
			spec.CPU = level
		}
	}
	if spec.CPU == wheel.CPUv3 {
		r.say("%s, the default: every CPU here has it", spec.CPU)
		return
	}
	r.say("%s: the oldest CPU is that of %s", spec.CPU, several(r.having(func(f node.Facts) bool { return f.CPU == string(spec.CPU) })))
}

// glibc is checked where it was asked for.
func (r *reasons) glibc() {
	if v := r.group.Spec.Glibc; v != "" {
		r.say("glibc %s, as asked for: the audit checks it", v)
	}
}

// unfit says why no wheel that could be built serves a node, as far as one look
// at its facts tells.
func (g *grouper) unfit(f node.Facts) (reasons []string, hint string) {
	for _, rule := range []func(node.Facts) (string, string){g.unusable, g.otherPython, g.otherTorch, g.otherCUDA, g.otherABI, g.otherLibraries, g.otherCPU, g.otherDriver} {
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

// foreignNode reports whether a node's machine is none that wheels are built for.
func (g *grouper) foreignNode(f node.Facts) bool {
	machine := machineOf(f.Platform)
	return machine != "" && machine != x86
}

func (g *grouper) unusable(f node.Facts) (reason, hint string) {
	switch {
	case g.foreignNode(f):
		machine := machineOf(f.Platform)
		return fmt.Sprintf("it is %s, and dsbuild builds %s wheels alone", machine, x86), buildThere(machine)
	case f.Python == "":
		return "it has no Python at the interpreter the inventory names", "set python: in the inventory to the interpreter of the environment (absolute)"
	case f.ExternallyManaged:
		return "its Python is managed by the system (PEP 668) and must not be changed",
			"make an environment there (python3 -m venv, uv venv) and name its python in the inventory"
	case f.Torch == "":
		return "its environment has no torch", "set python: in the inventory to the environment that has torch"
	}
	return "", ""
}

func (g *grouper) otherPython(f node.Facts) (reason, hint string) {
	switch {
	case freeThreaded(f.Tag):
		return fmt.Sprintf("its Python %s is without the global lock (%s), and dsbuild builds for the other kind alone", f.Python, f.Tag), ownHint(f)
	case g.want.Python != "" && g.want.Python != firstTwo(f.Python):
		return fmt.Sprintf("it has Python %s, %s is asked for", f.Python, g.want.Python), "leave --python out: each node gets a wheel for its own"
	}
	return "", ""
}

// ownHint says what remains for an environment that dsbuild makes no like of.
func ownHint(f node.Facts) string {
	return "build the wheel on such a node, for the environment it has: dsbuild wheel --env " + node.PlainPath(f.Executable, "PYTHON")
}

func (g *grouper) otherTorch(f node.Facts) (reason, hint string) {
	_, known := g.torchOf(f)
	switch all := g.torchVersions(); {
	case g.want.Torch != "" && firstTwo(g.want.Torch) != firstTwo(f.Torch):
		return fmt.Sprintf("it has torch %s, %s is asked for", f.Torch, g.want.Torch), "leave --torch out: each node gets a wheel for its own"
	case !known:
		return fmt.Sprintf("its torch %s is not in the tables of this dsbuild, which knows %s to %s", f.Torch, all[len(all)-1], all[0]), ownHint(f)
	}
	return "", ""
}

// otherCUDA: what is built against the torch of the index is for that one's CUDA.
func (g *grouper) otherCUDA(f node.Facts) (reason, hint string) {
	release, known := g.torchOf(f)
	bound := slices.ContainsFunc(g.asked.ops, func(o Op) bool { return o.bound(g.asked.deepspeed.Version) })
	switch {
	case !known:
	case !isCUDA(g.want.CUDA, release.CUDA):
		return fmt.Sprintf("torch %s is built for CUDA %s, %s is asked for", release.Version, release.CUDA, g.want.CUDA), "leave --cuda out: each node gets a wheel for its own"
	case !bound || f.TorchCUDA == release.CUDA:
	case f.TorchCUDA == "":
		return "its torch has no CUDA", "install a torch for CUDA there, or leave out what needs one: --ops " + strings.Join(g.unboundOps(), ",")
	case len(f.GPUs) > 0 || major(f.TorchCUDA) != major(release.CUDA):
		return fmt.Sprintf("its torch %s is for CUDA %s, that of the package index for %s", f.Torch, f.TorchCUDA, release.CUDA), ownHint(f)
	}
	return "", ""
}

// unboundOps are those of the default ops that load under any torch.
func (g *grouper) unboundOps() []string {
	return slices.DeleteFunc(wheel.DefaultOps(), func(name string) bool {
		i := slices.IndexFunc(g.Ops, func(o Op) bool { return o.Name == name })
		return i < 0 || g.Ops[i].bound(g.asked.deepspeed.Version)
	})
}

func (g *grouper) otherABI(f node.Facts) (reason, hint string) {
	release, known := g.torchOf(f)
	if !known || f.CXX11ABI == nil || *f.CXX11ABI != release.OldABI {
		return "", ""
	}
	words := map[bool]string{true: "the new std::string (CXX11 ABI)", false: "the old std::string"}
	return fmt.Sprintf("its torch %s is built with %s, that of the package index with %s", f.Torch, words[*f.CXX11ABI], words[!*f.CXX11ABI]), ownHint(f)
}

// otherLibraries: what is linked for newer libraries is not loaded. An
// environment's own libstdc++ can be older than its glibc.
func (g *grouper) otherLibraries(f node.Facts) (reason, hint string) {
	if f.Glibc != "" && older(f.Glibc, LinkGlibc) {
		return fmt.Sprintf("its glibc is %s, and extensions are linked for %s and newer", f.Glibc, LinkGlibc), ownHint(f)
	}
	if floor := wheel.PlatformFloors(LinkGlibc).GLIBCXX; f.Libstdcxx != "" && compareVersions(f.Libstdcxx, floor) < 0 {
		return fmt.Sprintf("its libstdc++ has GLIBCXX %s, and extensions are linked for %s and newer", f.Libstdcxx, floor), ownHint(f)
	}
	return "", ""
}

func (g *grouper) otherCPU(f node.Facts) (reason, hint string) {
	have := wheel.CPULevel(f.CPU)
	switch lowest := wheel.CPULevels()[0]; {
	case have == "":
	case !have.Includes(lowest):
		return fmt.Sprintf("its CPU has %s, and wheels are built for %s and higher", shortLevel(have), lowest), "it takes another machine"
	case g.want.CPU != "" && !have.Includes(g.want.CPU):
		return fmt.Sprintf("its CPU has %s, %s is asked for", shortLevel(have), g.want.CPU), "leave --cpu out: each wheel gets the level of its oldest CPU"
	}
	return "", ""
}

// otherDriver: without a driver for it no device code runs.
func (g *grouper) otherDriver(f node.Facts) (reason, hint string) {
	floor := g.release(f.TorchCUDA)
	if !g.asked.device() || len(f.GPUs) == 0 || !olderDriver(f.Driver, floor.Driver) {
		return "", ""
	}
	return fmt.Sprintf("its torch is for CUDA %s, which takes driver %s or newer, and it has %s", f.TorchCUDA, floor.Driver, f.Driver), g.driverHint(f, floor.Driver)
}

// driverHint says how to get a CUDA to run.
func (g *grouper) driverHint(f node.Facts, floor string) string {
	older := "a torch for an older CUDA"
	if a := g.find(wheel.Spec{Ops: g.unboundOps(), Python: firstTwo(f.Python), Driver: f.Driver}, nil, true); a != nil {
		older = fmt.Sprintf("torch %s for CUDA %s, which driver %s runs", a.torch.Version, a.torch.CUDA, f.Driver)
	}
	return fmt.Sprintf("install driver %s or newer there, or %s; on data centre GPUs NVIDIA's package cuda-compat-%s does too, but then nvidia-smi still names the old driver", floor, older, strings.ReplaceAll(firstTwo(f.TorchCUDA), ".", "-"))
}

// whyNot says why no toolchain makes a wheel for a kind of nodes, and what does.
func (g *grouper) whyNot(k *kind) (reasons []string, hint string) {
	s := g.searchFor([]*kind{k})
	spec := g.specFor(s)
	w, bad := g.read(spec, nil)
	for capability, names := range g.gpuNames(k.nodes) {
		w.gpus[capability] = names
	}
	for _, f := range bad {
		reasons = append(reasons, f.what)
	}
	for _, c := range g.explain(w) {
		reasons = append(reasons, c.What)
	}
	if len(spec.Ops) == 0 && g.asked.device() && s.archs == "" && len(g.want.Archs)+len(g.want.GPUs) == 0 {
		return []string{"no GPU of it is known, and every operator asked for has device code"}, "name the GPU or the compute capability that the wheel is for: --gpu A100, --arch 8.0"
	}
	return reasons, g.remedy(spec, k)
}

// remedy is the nearest change with which there is a wheel for a node, after it was
// tried: another base, another torch on the node, fewer ops.
func (g *grouper) remedy(spec wheel.Spec, k *kind) string {
	if a := g.find(spec, g.images, false); a != nil {
		return "build on another base: --base " + a.ground.Ref
	}
	other, plain := spec, spec
	other.Torch, other.CUDA = "", ""
	if a := g.find(other, nil, false); a != nil {
		return fmt.Sprintf("install torch %s there", a.torch.Version)
	}
	if plain.Ops = g.plainOps(spec); len(plain.Ops) > 0 && g.find(plain, nil, false) != nil {
		return "leave out what has device code: --ops " + strings.Join(plain.Ops, ",")
	}
	return ownHint(g.nodes[k.nodes[0]].Facts)
}
