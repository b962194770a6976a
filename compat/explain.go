package compat

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/wheel"
)

// explain lists every conflict between the values of w. A value that belongs to no candidate is reported and
// dropped, so that the search shows what is wrong with the rest.
func (t *Tables) explain(w *requirements) []Conflict {
	e := &explainer{Tables: t, requirements: *w}
	e.checkTorch()
	e.checkHosts()
	e.checkPythonOfTorch()
	if best, refused := t.search(&e.requirements); best == nil {
		e.addRefused(refused)
	}
	return e.found
}

type explainer struct {
	*Tables
	requirements
	found conflictList
}

// checkTorch compares torch with CUDA and Python.
func (e *explainer) checkTorch() {
	torches := e.torches()
	if len(torches) == 0 { // each is in the tables, so both are asked for
		have := e.Torches[slices.IndexFunc(e.Torches, func(r Torch) bool { return isTorch(e.request.Torch, r) })]
		e.found.add("torch %s is built for CUDA %s, not %s", have.Version, have.CUDA, e.request.CUDA)
		e.request.CUDA = ""
		torches = e.torches()
	}
	if !slices.ContainsFunc(torches, func(r Torch) bool { return r.hasCUDAFor(e.machine) }) {
		e.found.add("%s", whyNoCUDA(torches[0], e.Torches))
		e.request.Torch, e.request.CUDA = "", ""
		torches = e.torches()
	}
	if python := e.request.Python; python != "" && !slices.Contains(allPythons(torches), python) {
		e.found.add("%s has no wheels for Python %s, only for %s",
			e.torchWords(torches[0]), python, lists.And(torches[0].Pythons))
		e.request.Python = ""
	}
}

// torches lists the releases that are asked for, newest first.
func (e *explainer) torches() []Torch {
	return slices.DeleteFunc(slices.Clone(e.Torches), func(r Torch) bool {
		return !isTorch(e.request.Torch, r) || !isCUDA(e.request.CUDA, r.CUDA)
	})
}

// torchWords names the torches that are asked for.
func (e *explainer) torchWords(newest Torch) string {
	switch {
	case e.request.Torch != "":
		return "torch " + newest.Version
	case e.request.CUDA != "":
		return "torch for CUDA " + e.request.CUDA
	}
	return "torch"
}

// isForeignHost reports whether the build machine has a different architecture than the wheel, and its
// containers cannot build the wheel either. No value of the command line helps.
func (w *requirements) isForeignHost() bool {
	g := w.hosts[0]
	return g.Host && !g.builds(w.machine) && g.machine() != wheel.X86
}

// checkHosts compares the build environments with the machine of the wheel and with Python.
func (e *explainer) checkHosts() {
	first := e.hosts[0]
	if !first.builds(e.machine) { // then it is the only one
		e.found.add("%s has an %s CPU and cannot build a wheel for %s", first.Name, first.machine(), e.machine)
		if e.isForeignHost() {
			e.found.advise("run dsbuild on a machine with an " + e.machine + " CPU")
		}
		first.Machine = e.machine
		e.hosts = []BuildHost{first}
	}
	e.hosts = slices.DeleteFunc(slices.Clone(e.hosts), func(g BuildHost) bool {
		return !g.builds(e.machine)
	})
	p := e.request.Python
	switch {
	case slices.ContainsFunc(e.hosts, func(g BuildHost) bool { return g.hasPython(p) }):
		return
	case e.hostsNamed:
		e.found.add("%s has Python %s, not %s", first.Name, lists.And(first.Pythons), p)
	default:
		e.found.add("no base has Python %s (%s): use your own interpreter (--env PYTHON), another base (--base IMAGE), "+
			"or --builder host with python%s on PATH (uv python install %s)", p, e.pythonsByHost(), p, p)
	}
	e.request.Python = ""
}

func (g BuildHost) hasPython(p string) bool {
	return p == "" || len(g.Pythons) == 0 || slices.Contains(g.Pythons, p)
}

// pythonsByHost lists the Pythons of each build environment.
func (e *explainer) pythonsByHost() string {
	var out []string
	for _, g := range e.hosts {
		name := g.Suite
		if e.hostsNamed || name == "" {
			name = g.Name
		}
		out = append(out, fmt.Sprintf("%s has %s", name, lists.And(g.Pythons)))
	}
	return strings.Join(out, ", ")
}

// checkPythonOfTorch looks for a Python that both torch and a build environment have.
func (e *explainer) checkPythonOfTorch() {
	torches := e.torches()
	for _, g := range e.hosts {
		if slices.ContainsFunc(torches, func(r Torch) bool { return len(g.pythonsFor(e.request.Python, r)) > 0 }) {
			return
		}
	}
	if len(e.hosts[0].Pythons) == 0 {
		e.found.add("the Python of %s is unknown", e.hosts[0].Name)
		e.found.advise("specify its Python version, such as --python " + torches[0].Pythons[0])
		e.request.Python = torches[0].Pythons[0]
		return
	}
	e.found.add("%s has wheels for Python %s, but %s",
		e.torchWords(torches[0]), lists.And(torches[0].Pythons), e.pythonsByHost())
	e.request.Torch, e.request.CUDA = "", ""
}

// addRefused names the conflicts of the best candidate of each CUDA source. Those that all sources
// share come first, once; the others follow by source, unless a source has no other.
func (e *explainer) addRefused(refused []*evaluation) {
	refused = slices.DeleteFunc(refused, func(r *evaluation) bool {
		return r == nil || r.impossible && e.hostsNamed
	})
	if len(refused) == 0 {
		where := "here"
		if e.hostsNamed {
			where = "on " + e.hosts[0].Name
		}
		r := e.torches()[0]
		e.found.add("no CUDA toolkit %[3]s for torch %[1]s, built for CUDA %[2]s", r.Version, r.CUDA, where)
		return
	}
	isShared := func(why string) bool {
		return !slices.ContainsFunc(refused, func(r *evaluation) bool {
			return !r.impossible && !slices.Contains(r.conflicts, why)
		})
	}
	var bySource []string
	for _, r := range refused {
		others := slices.DeleteFunc(slices.Clone(r.conflicts), isShared)
		if len(others) > 0 {
			bySource = append(bySource, fmt.Sprintf("%s: %s", r.source.Source, strings.Join(others, "; ")))
		}
		for _, why := range r.conflicts {
			if isShared(why) && !slices.ContainsFunc(e.found, func(c Conflict) bool { return c.What == why }) {
				e.found.add("%s", why)
			}
		}
	}
	if len(bySource) == len(refused) {
		for _, why := range bySource {
			e.found.add("%s", why)
		}
	}
}
