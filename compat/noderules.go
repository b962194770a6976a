package compat

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/node"
	"github.com/dsbuild/dsbuild/wheel"
)

// nodeRules compares single nodes with a request for wheels.
type nodeRules struct {
	*Tables
	want  wheel.Spec
	asked *requirements
	archs map[node.GPU]string // compute capabilities that were looked up; "" if unknown
}

// torchOf returns the release of a node's minor that its wheel is built against: the first for
// its CUDA, else the first there is. It reports whether there is one.
func (n *nodeRules) torchOf(f node.Facts) (found Torch, known bool) {
	minor, cuda := firstTwo(f.Torch), firstTwo(f.TorchCUDA)
	for _, r := range n.Torches {
		if isTorch(minor, r) && (!known || found.CUDA != cuda && r.CUDA == cuda) {
			found, known = r, true
		}
	}
	return found, known
}

// archsOf returns the compute capabilities of a node's GPUs, as far as they are known. Without
// device code it returns none.
func (n *nodeRules) archsOf(f node.Facts) []string {
	var out []string
	if !n.asked.wantsDeviceCode() {
		return nil
	}
	for _, gpu := range f.GPUs {
		arch, known := n.archs[gpu]
		if !known {
			arch = n.archOfGPU(gpu)
			n.archs[gpu] = arch
		}
		if arch != "" && !slices.Contains(out, arch) {
			out = append(out, arch)
		}
	}
	slices.SortFunc(out, compareVersions)
	return out
}

// whyUnfit returns the reasons in a node's facts why no wheel of this ABI can serve it.
func (n *nodeRules) whyUnfit(f node.Facts, abi wheel.ABI) (reasons []string, hint string) {
	rules := []func(node.Facts) (string, string){n.machineProblem, n.pythonProblem, n.torchProblem, n.cudaProblem, n.abiProblem, n.libraryProblem, n.cpuProblem, n.driverProblem}
	if abi == wheel.StableABI {
		rules = []func(node.Facts) (string, string){n.machineProblem, n.pythonProblem, n.stableProblem, n.stableCUDAProblem, n.libraryProblem, n.cpuProblem, n.driverProblem}
	}
	for _, rule := range rules {
		reason, try := rule(f)
		if reason == "" {
			continue
		}
		reasons = append(reasons, reason)
		hint = cmp.Or(hint, try)
		if f.Torch == "" || f.ExternallyManaged || n.foreignNode(f) { // the rest is of no use
			break
		}
	}
	return reasons, hint
}

// foreignNode reports whether dsbuild builds no wheels for a node's machine.
func (n *nodeRules) foreignNode(f node.Facts) bool {
	machine := machineOf(f.Platform)
	return machine != "" && machine != x86Machine
}

func (n *nodeRules) machineProblem(f node.Facts) (reason, hint string) {
	switch {
	case n.foreignNode(f):
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

func (n *nodeRules) pythonProblem(f node.Facts) (reason, hint string) {
	switch {
	case freeThreaded(f.Tag):
		return fmt.Sprintf("its Python %s has no GIL (%s); dsbuild builds only for Pythons with the GIL", f.Python, f.Tag), environmentHint(f)
	case n.want.Python != "" && n.want.Python != firstTwo(f.Python):
		return fmt.Sprintf("it has Python %s, but the request is for %s", f.Python, n.want.Python), "leave --python out: each node gets a wheel for its own Python"
	}
	return "", ""
}

// environmentHint returns the remedy for an environment that dsbuild cannot reproduce.
func environmentHint(f node.Facts) string {
	return "build the wheel on such a node, for its environment: dsbuild wheel --env " + node.PlainPath(f.Executable, "PYTHON")
}

// otherTorch refuses a node that has another torch than the requested one.
func (n *nodeRules) otherTorch(f node.Facts) (reason, hint string) {
	if n.want.Torch == "" || firstTwo(n.want.Torch) == firstTwo(f.Torch) {
		return "", ""
	}
	return fmt.Sprintf("it has torch %s, but the request is for %s", f.Torch, n.want.Torch), "leave --torch out: each node gets a wheel for its own torch"
}

func (n *nodeRules) torchProblem(f node.Facts) (reason, hint string) {
	if reason, hint = n.otherTorch(f); reason != "" {
		return reason, hint
	}
	_, known := n.torchOf(f)
	switch all := torchVersions(n.Torches); {
	case !known:
		return fmt.Sprintf("its torch %s is not in the tables of this dsbuild, which knows %s to %s", f.Torch, all[len(all)-1], all[0]), environmentHint(f)
	}
	return "", ""
}

// stableProblem refuses a node whose torch or Python is too old for a wheel of the stable ABI.
func (n *nodeRules) stableProblem(f node.Facts) (reason, hint string) {
	hint = fmt.Sprintf("install torch %s or newer there", StableTorch)
	if olderMinor(f.Torch, StableTorch) {
		return fmt.Sprintf("its torch %s is older than %s, the first that has all of the stable ABI that dsbuild uses", f.Torch, StableTorch), hint
	}
	if oldest := n.oldestStablePython(); olderMinor(f.Python, oldest) {
		return fmt.Sprintf("its Python %s is older than %s, the oldest that a wheel of the stable ABI serves", f.Python, oldest), hint
	}
	return n.otherTorch(f)
}

// stableCUDAProblem refuses a node whose torch has no CUDA, or another one than requested, if the
// wheel has device code.
func (n *nodeRules) stableCUDAProblem(f node.Facts) (reason, hint string) {
	switch {
	case !n.asked.wantsDeviceCode():
	case f.TorchCUDA == "":
		return n.noCUDA()
	case !isCUDA(n.want.CUDA, f.TorchCUDA):
		return fmt.Sprintf("its torch %s is for CUDA %s, but the request is for %s", f.Torch, f.TorchCUDA, n.want.CUDA), "leave --cuda out: each node gets a wheel for its own CUDA"
	}
	return "", ""
}

// noCUDA is the problem of a node whose torch has no CUDA.
func (n *nodeRules) noCUDA() (reason, hint string) {
	return "its torch has no CUDA", "install a torch for CUDA there, or leave out the ops that need one: --ops " + strings.Join(n.unboundOps(), ",")
}

// cudaProblem refuses a node whose torch has another CUDA: a wheel built against the torch of the
// index is for that torch's CUDA.
func (n *nodeRules) cudaProblem(f node.Facts) (reason, hint string) {
	release, known := n.torchOf(f)
	bound := slices.ContainsFunc(n.asked.ops, func(o Op) bool { return o.boundToCUDA(n.asked.deepspeed.Version) })
	switch {
	case !known:
	case !isCUDA(n.want.CUDA, release.CUDA):
		return fmt.Sprintf("torch %s is built for CUDA %s, but the request is for %s", release.Version, release.CUDA, n.want.CUDA), "leave --cuda out: each node gets a wheel for its own CUDA"
	case !bound || f.TorchCUDA == release.CUDA:
	case f.TorchCUDA == "":
		return n.noCUDA()
	case len(f.GPUs) > 0 || majorOf(f.TorchCUDA) != majorOf(release.CUDA):
		return fmt.Sprintf("its torch %s is for CUDA %s, but the package index has it for %s", f.Torch, f.TorchCUDA, release.CUDA), environmentHint(f)
	}
	return "", ""
}

// unboundOps are those of the default ops that load under any torch.
func (n *nodeRules) unboundOps() []string {
	return slices.DeleteFunc(wheel.DefaultOps(), func(name string) bool {
		i := slices.IndexFunc(n.Ops, func(o Op) bool { return o.Name == name })
		return i < 0 || n.Ops[i].boundToCUDA(n.asked.deepspeed.Version)
	})
}

func (n *nodeRules) abiProblem(f node.Facts) (reason, hint string) {
	release, known := n.torchOf(f)
	if !known || f.CXX11ABI == nil || *f.CXX11ABI != release.OldABI {
		return "", ""
	}
	words := map[bool]string{true: "the new std::string (CXX11 ABI)", false: "the old std::string"}
	return fmt.Sprintf("its torch %s is built with %s, but the one on the package index with %s", f.Torch, words[*f.CXX11ABI], words[!*f.CXX11ABI]), environmentHint(f)
}

// libraryProblem refuses a node with older libraries: extensions linked for newer ones do not
// load. An environment's own libstdc++ can be older than its glibc.
func (n *nodeRules) libraryProblem(f node.Facts) (reason, hint string) {
	if f.Glibc != "" && olderMinor(f.Glibc, LinkGlibc) {
		return fmt.Sprintf("its glibc is %s, but dsbuild links extensions for %s and newer", f.Glibc, LinkGlibc), environmentHint(f)
	}
	if floor := wheel.PlatformFloors(LinkGlibc).GLIBCXX; f.Libstdcxx != "" && compareVersions(f.Libstdcxx, floor) < 0 {
		return fmt.Sprintf("its libstdc++ has GLIBCXX %s, but dsbuild links extensions for %s and newer", f.Libstdcxx, floor), environmentHint(f)
	}
	return "", ""
}

func (n *nodeRules) cpuProblem(f node.Facts) (reason, hint string) {
	have := wheel.CPULevel(f.CPU)
	switch lowest := wheel.CPULevels()[0]; {
	case have == "":
	case !have.Includes(lowest):
		return fmt.Sprintf("its CPU has %s, but dsbuild builds wheels for %s and higher", shortLevel(have), lowest), "use another machine"
	case n.want.CPU != "" && !have.Includes(n.want.CPU):
		return fmt.Sprintf("its CPU has %s, but the request is for %s", shortLevel(have), n.want.CPU), "leave --cpu out: each wheel gets the level of its oldest CPU"
	}
	return "", ""
}

// driverProblem refuses a node with an older driver: no device code runs without a driver for its
// CUDA.
func (n *nodeRules) driverProblem(f node.Facts) (reason, hint string) {
	floor := n.cudaRow(f.TorchCUDA).Driver
	if !n.asked.wantsDeviceCode() || len(f.GPUs) == 0 || !olderDriver(f.Driver, floor) {
		return "", ""
	}
	hint = fmt.Sprintf("install driver %s or newer there", floor)
	other := n.want
	other.Torch, other.CUDA, other.Python, other.Driver = "", "", firstTwo(f.Python), f.Driver
	for _, arch := range n.archsOf(f) {
		other.Archs = addArch(other.Archs, archOf(arch))
	}
	if e := n.find(other, nil, true); e != nil {
		hint = fmt.Sprintf("install torch %s for CUDA %s there, which works with driver %s", e.torch.Version, e.torch.CUDA, f.Driver)
	}
	return fmt.Sprintf("its torch is for CUDA %s, which needs driver %s or newer, but it has %s", f.TorchCUDA, floor, f.Driver), hint
}
