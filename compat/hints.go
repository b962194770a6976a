package compat

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/wheel"
)

// attempt is a request with the caller's build hosts. Without hosts, the tables choose.
type attempt struct {
	wheel.Request
	hosts []BuildHost
}

// change is an attempt without one of its flags, or with another base.
type change struct {
	what string // advice for the command line; if empty, the image found
	flag string
	attempt
}

// dropOne finds a flag without which the attempt works, and describes the result. It returns "" if there is
// none. resolve returns nil for an attempt that does not work.
func (t *Tables) dropOne(asked attempt, resolve func(attempt) *evaluation) string {
	for _, c := range t.changes(asked) {
		if e := resolve(c.attempt); e != nil {
			return cmp.Or(c.what, "pass --base "+e.host.Ref) + " to get " + e.gain(c.flag)
		}
	}
	return ""
}

// changes lists what dropOne tries, values that describe the nodes last. It drops one of several GPUs or archs,
// but never the only one: a wheel for other GPUs is no help.
func (t *Tables) changes(asked attempt) []change {
	var all []change
	add := func(what, flag string, edit func(*attempt)) {
		with := asked
		edit(&with)
		all = append(all, change{what, flag, with})
	}
	drop := func(flag, value string, edit func(*attempt)) {
		if value != "" {
			add(fmt.Sprintf("omit %s %s", flag, value), flag, edit)
		}
	}
	drop("--abi", string(asked.ABI), func(a *attempt) { a.ABI = "" })
	if asked.ABI != wheel.TorchMinor {
		add("pass --abi torch", "--abi", func(a *attempt) { a.ABI = wheel.TorchMinor })
	}
	if t.Sources == nil {
		drop("--deepspeed", asked.DeepSpeed, func(a *attempt) { a.DeepSpeed = "" })
	}
	drop("--torch", asked.Torch, func(a *attempt) { a.Torch = "" })
	drop("--cuda", asked.CUDA, func(a *attempt) { a.CUDA = "" })
	switch {
	case len(asked.hosts) == 0:
		add("", "", func(a *attempt) { a.hosts = t.images })
	case asked.hosts[0].Host:
		add("pass --builder dagger", "--base", func(a *attempt) { a.hosts = nil })
	default:
		add("omit --base", "--base", func(a *attempt) { a.hosts = nil })
	}
	drop("--python", asked.Python, func(a *attempt) { a.Python = "" })
	ops, archs, gpus := asked.Ops, asked.Archs, SplitNames(asked.GPUs)
	if len(ops) == 1 {
		drop("--ops", ops[0], func(a *attempt) { a.Ops = nil })
	} else {
		for _, op := range ops {
			add("remove "+op+" from --ops", "--ops", func(a *attempt) { a.Ops = without(ops, op) })
		}
	}
	if len(archs)+len(gpus) > 1 {
		for _, arch := range archs {
			drop("--arch", arch.String(), func(a *attempt) { a.Archs = without(archs, arch) })
		}
		for _, gpu := range gpus {
			drop("--gpu", QuoteFlag(gpu), func(a *attempt) { a.GPUs = without(gpus, gpu) })
		}
	}
	if asked.CPU != "" || asked.Machine != "" {
		add("omit --cpu and --machine", "--cpu", func(a *attempt) { a.CPU, a.Machine = "", "" })
	}
	drop("--min-driver", asked.Driver, func(a *attempt) { a.Driver = "" })
	drop("--target-glibc", asked.Glibc, func(a *attempt) { a.Glibc = "" })
	return all
}

func without[T comparable](list []T, value T) []T {
	return slices.DeleteFunc(slices.Clone(list), func(v T) bool { return v == value })
}

// gain describes the result of omitting a flag.
func (a *evaluation) gain(flag string) string {
	text := fmt.Sprintf("torch %s for CUDA %s and Python %s", a.torch.Version, a.torch.CUDA, a.python)
	switch {
	case flag == "--abi" && a.toolchain.ABI == wheel.TorchMinor:
		text += " only"
	case flag == "--deepspeed":
		return fmt.Sprintf("DeepSpeed %s with %s", a.deepspeed.Version, text)
	case flag == "--base":
		text += " on " + a.host.Name
	case flag == "--ops":
		text += " with " + lists.And(a.toolchain.OpNames(false))
	case flag == "--cpu":
		text += ", for CPUs of " + a.machine
	case flag == "--min-driver":
		text += fmt.Sprintf(", for nodes with driver %s or newer", cudaRow(a.CUDAs, a.torch.CUDA).Driver)
	case flag == "--target-glibc":
		text += fmt.Sprintf(", for nodes with glibc %s or newer", LinkGlibc)
	}
	return text
}

// unusable returns why none of dsbuild's wheels can be installed on a node, and a hint. The reason is empty if
// the node is usable.
func unusable(f node.Facts) (reason, hint string) {
	switch machine := machineOf(f.Platform); {
	case machine != "" && machine != wheel.X86 && machine != wheel.Arm:
		reason = fmt.Sprintf("unsupported CPU architecture %s: dsbuild builds wheels only for %s and %s", machine, wheel.X86, wheel.Arm)
		return reason, "build on the node with DeepSpeed's setup.py"
	case f.Python == "":
		return "no Python at the configured interpreter",
			fault.Set("python", "the absolute path of the environment's interpreter").String()
	case f.ExternallyManaged:
		_, hint = f.Unusable()
		return "the system manages this Python (PEP 668), and it must not be changed", hint
	case strings.HasPrefix(f.TorchBuild, "rocm"):
		return fmt.Sprintf("torch %s is for AMD GPUs; dsbuild supports only NVIDIA GPUs", f.TorchVersion()),
			"build on the node with DeepSpeed's setup.py, or exclude the node"
	case f.Torch == "":
		_, hint = f.NoTorch()
		return "torch is not installed in the environment", hint
	}
	return "", ""
}

// serve returns the evaluation of an attempt's wheel for a node, or nil.
func (t *Tables) serve(f node.Facts, asked attempt) *evaluation {
	g, bad := t.newGrouper(nil, asked)
	class := &nodeClass{facts: f}
	if len(bad) > 0 || len(g.chooseFamily(class)) > 0 {
		return nil
	}
	return g.evaluationOf([]*nodeClass{class})
}

// nodeHint returns a hint for a node that no other request helps. The hint was tried, except for the last, a build
// on the node itself.
func (g *grouper) nodeHint(f node.Facts) string {
	if level := wheel.CPULevel(f.CPU); level != "" && !level.Includes(wheel.CPULevels(level.Machine())[0]) {
		return "use another machine"
	}
	if g.asked.wantsDeviceCode() && !g.needsDeviceCode(f) && len(g.plainOps(g.want.Request)) == 0 {
		return "install a CUDA build of torch, or request ops without device code: --ops cpu_adam,utils"
	}
	if len(g.want.Archs) > 0 || len(g.want.GPUs) > 0 { // the wheel is for the node's GPUs in any case
		with := g.want
		with.Archs, with.GPUs = nil, nil
		if g.serve(f, with) != nil {
			return "omit --arch and --gpu"
		}
	}
	// The package index has the node's torch, so it was not chosen for a special reason.
	usual := !wheel.FreeThreaded(f.Tag) && slices.ContainsFunc(g.Torches, func(r Torch) bool {
		return isTorch(firstTwo(f.Torch), r) && (r.CUDA == firstTwo(f.TorchCUDA) || f.TorchCUDA == "") &&
			(f.CXX11ABI == nil || *f.CXX11ABI != r.OldABI)
	})
	if hint := g.otherTorch(f); usual && hint != "" {
		return hint
	}
	return "build the wheel on such a node for its environment: dsbuild wheel --env " +
		node.PlainPath(f.Executable, "PYTHON")
}

// otherTorch suggests a torch with which a node would get a wheel. It returns "" if there is none.
func (g *grouper) otherTorch(f node.Facts) string {
	with := g.want
	with.Torch, with.CUDA, with.Python, with.ABI = "", "", firstTwo(f.Python), ""
	if driverForm.MatchString(f.Driver) && len(f.GPUs) > 0 {
		with.Driver = f.Driver
	}
	for _, arch := range g.archsOf(f) {
		with.Archs = addArch(with.Archs, archOf(arch))
	}
	e := g.find(with)
	if e == nil {
		return ""
	}
	hint := fmt.Sprintf("install torch %s for CUDA %s on the node", e.torch.Version, e.torch.CUDA)
	if !g.DriverSupports(with.Driver, f.TorchCUDA) {
		hint += ", which works with driver " + f.Driver
	}
	f.Torch, f.TorchCUDA, f.CXX11ABI = e.torch.Version, e.torch.CUDA, nil
	if g.serve(f, g.want) == nil {
		return ""
	}
	return hint
}
