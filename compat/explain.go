package compat

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// explainer finds the conflicts between values. Each check removes the values that it names
// from the requirements, so that the next check sees the rest.
type explainer struct {
	*Tables
	requirements
	found conflictList
}

// explain names every conflict between the values of w.
func (t *Tables) explain(w *requirements) []Conflict {
	e := &explainer{Tables: t, requirements: *w}
	for _, check := range []func(){e.checkTorch, e.checkMachine, e.checkPython, e.checkPythonOfTorch, e.checkOps} {
		check()
	}
	if best, refused := t.search(&e.requirements); best == nil {
		e.checkSources(refused)
	}
	return e.found
}

// checkTorch compares torch with CUDA and Python.
func (e *explainer) checkTorch() {
	torches := e.torches()
	if len(torches) == 0 { // each is in the tables, so both are asked for
		have := e.Torches[slices.IndexFunc(e.Torches, func(r Torch) bool { return isTorch(e.spec.Torch, r) })]
		e.found.add("torch %s is built for CUDA %s, not %s", have.Version, have.CUDA, e.spec.CUDA)
		e.spec.CUDA = ""
		torches = e.torches()
	}
	if python := e.spec.Python; python != "" && !slices.Contains(allPythons(torches), python) {
		e.found.add("%s has no wheels for Python %s, only for %s", e.torchWords(torches[0]), python, joinWords(torches[0].Pythons))
		e.spec.Python = ""
	}
}

// torches lists the releases that are asked for, newest first.
func (e *explainer) torches() []Torch {
	return slices.DeleteFunc(slices.Clone(e.Torches), func(r Torch) bool {
		return !isTorch(e.spec.Torch, r) || !isCUDA(e.spec.CUDA, r.CUDA)
	})
}

// torchWords names the torches that are asked for.
func (e *explainer) torchWords(newest Torch) string {
	switch {
	case e.spec.Torch != "":
		return "torch " + newest.Version
	case e.spec.CUDA != "":
		return "torch for CUDA " + e.spec.CUDA
	}
	return "torch"
}

// isForeignHost reports whether the build runs on a machine that makes no x86_64 wheels. No
// value of the command line helps.
func (w *requirements) isForeignHost() bool {
	return w.environments[0].Host && w.environments[0].isForeign()
}

// checkMachine refuses a build environment of another machine, of which there is one only.
func (e *explainer) checkMachine() {
	g := e.environments[0]
	if !g.isForeign() {
		return
	}
	e.found.add("%s: its CPU is %s; dsbuild builds x86_64 wheels, and only on x86_64", g.Name, g.Machine)
	if g.Host {
		e.found.advise(nativeBuildHint(g.Machine), "for x86_64, run dsbuild on an x86_64 machine")
	}
	g.Machine = ""
	e.environments = []BuildEnvironment{g}
}

// checkPython compares Python with those of the build environments.
func (e *explainer) checkPython() {
	p := e.spec.Python
	switch {
	case slices.ContainsFunc(e.environments, func(g BuildEnvironment) bool { return g.hasPython(p) }):
		return
	case e.environmentsNamed:
		e.found.add("%s has Python %s, not %s", e.environments[0].Name, joinWords(e.environments[0].Pythons), p)
	default:
		e.found.add("no base has Python %s (%s): give your own interpreter: --env PYTHON, --base IMAGE, or --builder host with a python%s on PATH or of uv (uv python install %s)", p, e.pythonsByEnvironment(), p, p)
	}
	e.spec.Python = ""
}

func (g BuildEnvironment) hasPython(p string) bool {
	return p == "" || len(g.Pythons) == 0 || slices.Contains(g.Pythons, p)
}

// pythonsByEnvironment lists the Pythons of each build environment.
func (e *explainer) pythonsByEnvironment() string {
	var out []string
	for _, g := range e.environments {
		name := g.Suite
		if e.environmentsNamed || name == "" {
			name = g.Name
		}
		out = append(out, fmt.Sprintf("%s has %s", name, joinWords(g.Pythons)))
	}
	return strings.Join(out, ", ")
}

// checkPythonOfTorch looks for a Python that both torch and a build environment have.
func (e *explainer) checkPythonOfTorch() {
	torches := e.torches()
	for _, g := range e.environments {
		if slices.ContainsFunc(torches, func(r Torch) bool { return len(g.pythonsFor(e.spec.Python, r)) > 0 }) {
			return
		}
	}
	if len(e.environments[0].Pythons) == 0 {
		e.found.add("the Python of %s is unknown: give --python", e.environments[0].Name)
		e.spec.Python = torches[0].Pythons[0]
		return
	}
	e.found.add("%s has wheels for Python %s, but %s", e.torchWords(torches[0]), joinWords(torches[0].Pythons), e.pythonsByEnvironment())
	e.spec.Torch, e.spec.CUDA = "", ""
}

// checkOps compares the ops that the user named with DeepSpeed and the archs.
func (e *explainer) checkOps() {
	var ops []Op
	var byName []bool
	for i, op := range e.ops {
		why := ""
		if e.byName[i] {
			why = cmp.Or(op.absentFrom(e.deepspeed.Version), e.archsRefused(op), op.unprovenAs(e.spec.ABI))
		}
		if why == "" {
			ops, byName = append(ops, op), append(byName, e.byName[i])
			continue
		}
		e.found.add("%s", why)
		if op.absentFrom(e.deepspeed.Version) == "" && e.archsRefused(op) != "" {
			e.found.advise(gpusFor(op))
		}
	}
	e.ops, e.byName = ops, byName
	if e.wantsDeviceCode() && len(e.archs) == 0 && !e.archOptional {
		e.found.add("no arch is given and %s has device code", Toolchain{Ops: e.ops}.OpNames(true)[0])
		e.archOptional = true
	}
}

// archsRefused says that an op supports none of the archs, or "".
func (w *requirements) archsRefused(op Op) string {
	var named []string
	for _, a := range w.archs {
		if op.supportsArch(a.Capability()) {
			return ""
		}
		named = append(named, w.archWithGPUs(a.Capability()))
	}
	if !op.DeviceCode || len(named) == 0 {
		return ""
	}
	return op.archsRefused(named)
}

// gpusFor names the GPUs that an op needs.
func gpusFor(op Op) string {
	var such []string
	for _, g := range exampleGPUs() {
		if op.supportsArch(g[1]) {
			such = append(such, g[0])
		}
	}
	what := op.MinArch + " or higher"
	if op.MaxArch != "" {
		what = cmp.Or(op.MinArch, "any") + " to " + op.MaxArch
	}
	return fmt.Sprintf("%s needs a GPU of arch %s, such as %s", op.Name, what, strings.Join(such, " or "))
}

// checkSources names the conflicts with each CUDA source, except those that the one build
// environment named can never use.
func (e *explainer) checkSources(refused []*evaluation) {
	var bySource []string
	for i, r := range refused {
		source := e.CUDASources[i]
		why := e.pythonsWithoutTorch(source)
		if r != nil {
			why = strings.Join(r.conflicts, "; ")
		}
		if why == "" || r != nil && r.impossible && e.environmentsNamed {
			continue
		}
		bySource = append(bySource, string(source.Source)+": "+why)
	}
	if len(bySource) == 1 {
		_, bySource[0], _ = strings.Cut(bySource[0], ": ")
	}
	for _, why := range bySource {
		e.found.add("%s", why)
	}
	if len(bySource) == 0 {
		where := "here"
		if e.environmentsNamed {
			where = "on " + e.environments[0].Name
		}
		r := e.torches()[0]
		e.found.add("torch %s is built for CUDA %s: there is no toolkit for it %s", r.Version, r.CUDA, where)
	}
}

// pythonsWithoutTorch says that no torch for a CUDA source has wheels for the Pythons of the
// build environments; "" if there is no such torch.
func (e *explainer) pythonsWithoutTorch(source CUDASourceInfo) string {
	theirs := allPythons(slices.DeleteFunc(e.torches(), func(r Torch) bool {
		return source.Suite != "" || source.TorchCUDA != majorOf(r.CUDA)
	}))
	var ours []string
	for _, g := range e.environments {
		ours = appendMissing(ours, g.Pythons)
	}
	slices.SortFunc(ours, compareVersions)
	if e.spec.Python != "" {
		ours = []string{e.spec.Python}
	}
	if len(theirs) == 0 || len(ours) == 0 {
		return ""
	}
	return fmt.Sprintf("torch for CUDA %s has wheels for Python %s to %s, not %s", source.TorchCUDA, theirs[0], theirs[len(theirs)-1], joinWords(ours))
}
