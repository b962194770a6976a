package compat

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/wheel"
)

// unusable says why no wheel of dsbuild can be installed on a node, whatever the wheel
// is for, and what to do; "" if one can.
func unusable(f node.Facts) (reason, hint string) {
	switch machine := machineOf(f.Platform); {
	case machine != "" && machine != wheel.X86 && machine != wheel.Arm:
		reason = fmt.Sprintf("its CPU is %s; dsbuild builds wheels for %s and %s only", machine, wheel.X86, wheel.Arm)
		return reason, "build there with DeepSpeed's own setup.py"
	case f.Python == "":
		return "it has no Python at the interpreter that the inventory names",
			"set python: in the inventory to the interpreter of the environment (absolute)"
	case f.ExternallyManaged:
		return "its Python is managed by the system (PEP 668) and must not be changed",
			"create an environment there (python3 -m venv, uv venv) and name its python in the inventory"
	case strings.Contains(f.Torch, "+rocm"):
		return fmt.Sprintf("its torch %s is for AMD's GPUs, and dsbuild builds for NVIDIA's only", f.Torch),
			"build there with DeepSpeed's own setup.py, or leave the node out"
	case f.Torch == "":
		return "its environment has no torch", "set python: in the inventory to the environment that has torch"
	}
	return "", ""
}

// serves reports whether there is a wheel for a node under another request.
func (g *grouper) serves(f node.Facts, want wheel.Request) bool {
	other, bad := g.newGrouper(nil, want)
	return len(bad) == 0 && len(other.chooseFamily(&kind{facts: f})) == 0
}

// remedy finds a change that gives a kind of nodes a wheel: of the request, of the base, of the nodes'
// torch, of the ops. Each was tried, except for the last, a build on a node itself.
func (g *grouper) remedy(k *kind) string {
	f := k.facts
	for _, c := range []struct {
		hint string
		drop func(*wheel.Request)
	}{
		{"leave --abi stable out: it gets a wheel for its own torch", func(s *wheel.Request) { s.ABI = "" }},
		{"leave --python out: each node gets a wheel for its own Python", func(s *wheel.Request) { s.Python = "" }},
		{"leave --torch out: each node gets a wheel for its own torch", func(s *wheel.Request) { s.Torch = "" }},
		{"leave --cuda out: each node gets a wheel for its own CUDA", func(s *wheel.Request) { s.CUDA = "" }},
		{"leave --cpu out: each wheel gets the level of its oldest CPU", func(s *wheel.Request) { s.CPU = "" }},
		{
			"leave --python, --torch and --cuda out: each node gets a wheel for its own",
			func(s *wheel.Request) { s.Python, s.Torch, s.CUDA = "", "", "" },
		},
	} {
		want := g.want
		if c.drop(&want); !reflect.DeepEqual(want, g.want) && g.serves(f, want) {
			return c.hint
		}
	}
	if level := wheel.CPULevel(f.CPU); level != "" && !level.Includes(wheel.CPULevels(level.Machine())[0]) {
		return "use another machine"
	}
	if a := g.find(g.specFor([]*kind{k}), g.images); a != nil && g.evaluationOf([]*kind{k}) == nil {
		return "build on another base: --base " + a.environment.Ref
	}
	plain := g.want
	plain.Ops = g.plainOps(g.want)
	if g.asked.wantsDeviceCode() && !g.needsDeviceCode(f) && len(plain.Ops) == 0 {
		return "install a torch for CUDA there, or ask for operators without device code: --ops cpu_adam,utils"
	}
	// The package index has the node's torch; nobody chose another one for a reason.
	usual := !freeThreaded(f.Tag) && slices.ContainsFunc(g.Torches, func(r Torch) bool {
		return isTorch(firstTwo(f.Torch), r) && (r.CUDA == firstTwo(f.TorchCUDA) || f.TorchCUDA == "") &&
			(f.CXX11ABI == nil || *f.CXX11ABI != r.OldABI)
	})
	if hint := g.otherTorch(f); usual && hint != "" {
		return hint
	}
	if usual && len(plain.Ops) > 0 && g.serves(f, plain) {
		return "leave out the ops with device code: --ops " + strings.Join(plain.Ops, ",")
	}
	return "build the wheel on such a node, for its environment: dsbuild wheel --env " +
		node.PlainPath(f.Executable, "PYTHON")
}

// otherTorch names a torch with which a node would get a wheel; "" if there is none.
func (g *grouper) otherTorch(f node.Facts) string {
	spec := g.want
	spec.Torch, spec.CUDA, spec.Python, spec.ABI = "", "", firstTwo(f.Python), ""
	if driverForm.MatchString(f.Driver) && len(f.GPUs) > 0 {
		spec.Driver = f.Driver
	}
	for _, arch := range g.archsOf(f) {
		spec.Archs = addArch(spec.Archs, archOf(arch))
	}
	e := g.find(spec, nil)
	if e == nil {
		return ""
	}
	hint := fmt.Sprintf("install torch %s for CUDA %s there", e.torch.Version, e.torch.CUDA)
	if !g.Drives(spec.Driver, f.TorchCUDA) {
		hint += ", which works with driver " + f.Driver
	}
	f.Torch, f.TorchCUDA, f.CXX11ABI = e.torch.Version, e.torch.CUDA, nil
	if !g.serves(f, g.want) {
		return ""
	}
	return hint
}
