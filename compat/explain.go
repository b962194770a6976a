package compat

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/wheel"
)

// conflict makes the error for what cannot be resolved: values that are wrong
// by themselves, what does not go together, and what works instead.
func (t *Tables) conflict(w *want, bad []fault) error {
	e := &ConflictError{}
	spec := w.spec
	for _, f := range bad {
		c := Conflict{What: f.what, Advice: f.advice}
		e.Final = e.Final || len(f.instead) == 0
		if instead, ok := t.instead(spec, given(w), f); ok {
			c.Try = instead.text
			instead.apply(&spec)
		}
		e.Conflicts = append(e.Conflicts, c)
	}
	mended, _ := t.read(spec, given(w))
	mended.loose = e.Final && len(mended.archs) == 0
	if t.search(mended) == nil {
		e.Conflicts = append(e.Conflicts, t.explain(mended)...)
		e.Final = e.Final || mended.foreignHost()
		if !e.Final {
			e.Fix = t.nearestFix(mended)
		}
	}
	return e
}

// instead picks what to say in place of a value that is wrong: the nearest
// with which the rest works. Where the rest does not work anyway it is the
// nearest.
func (t *Tables) instead(spec wheel.Spec, grounds []Ground, f fault) (change, bool) {
	if len(f.instead) == 0 {
		return change{}, false
	}
	if t.find(spec, grounds, true) == nil {
		return f.instead[0], true
	}
	for _, c := range f.instead {
		changed := spec
		c.apply(&changed)
		if t.find(changed, grounds, true) != nil {
			return c, true
		}
	}
	return f.instead[0], true
}

// given are the grounds of the caller, none where they are of the tables.
func given(w *want) []Ground {
	if w.given {
		return w.grounds
	}
	return nil
}

// explain says what does not go together. Each check takes what it found out
// of w, so that the next ones see what else there is.
func (t *Tables) explain(w *want) []Conflict {
	var bad conflicts
	rest := *w
	for _, check := range []func(*want, *conflicts){t.explainTorch, t.explainGround, t.explainPythons, t.explainOps} {
		check(&rest, &bad)
	}
	if len(bad) == 0 || t.search(&rest) == nil {
		t.explainRoads(&rest, &bad)
	}
	return bad
}

// explainTorch holds torch, CUDA and Python against each other.
func (t *Tables) explainTorch(w *want, bad *conflicts) {
	torches := t.torches(w)
	if len(torches) == 0 { // each is known, so both are given
		have := t.torchNamed(w.spec.Torch)
		bad.add("torch %s is built for CUDA %s, not %s", have.Version, have.CUDA, w.spec.CUDA)
		w.spec.CUDA = ""
		torches = t.torches(w)
	}
	if !slices.ContainsFunc(torches, func(r Torch) bool { return w.spec.Python == "" || slices.Contains(r.Pythons, w.spec.Python) }) {
		bad.add("%s has no wheels for Python %s: they are for %s", w.torchWords(torches[0]), w.spec.Python, listed(torches[0].Pythons))
		w.spec.Python = ""
	}
}

func (t *Tables) torches(w *want) []Torch {
	return slices.DeleteFunc(slices.Clone(t.Torches), func(r Torch) bool {
		return !isTorch(w.spec.Torch, r) || !isCUDA(w.spec.CUDA, r.CUDA)
	})
}

// torchNamed returns the newest release that is meant.
func (t *Tables) torchNamed(asked string) Torch {
	return t.Torches[slices.IndexFunc(t.Torches, func(r Torch) bool { return isTorch(asked, r) })]
}

// torchWords names the torches that are left, newest first.
func (w *want) torchWords(newest Torch) string {
	if w.spec.Torch != "" {
		return "torch " + newest.Version
	}
	if w.spec.CUDA != "" {
		return "torch for CUDA " + w.spec.CUDA
	}
	return "torch"
}

// foreignHost reports whether the build is to be on a machine that makes no
// x86_64 wheels; nothing on the command line mends that.
func (w *want) foreignHost() bool { return w.grounds[0].Host && w.grounds[0].foreign() }

// explainGround holds machine and Python against the grounds.
func (t *Tables) explainGround(w *want, bad *conflicts) {
	if g := w.grounds[0]; g.foreign() { // more than one ground are never the caller's own
		bad.add("%s: its CPU is %s; dsbuild builds x86_64 wheels, and those on x86_64", g.Name, g.Machine)
		if g.Host {
			bad.advise(buildThere(g.Machine), "for x86_64 run dsbuild on such a machine")
		}
		w.grounds = slices.Clone(w.grounds)
		for i := range w.grounds {
			w.grounds[i].Machine = ""
		}
	}
	if p := w.spec.Python; p != "" && !slices.ContainsFunc(w.grounds, func(g Ground) bool { return g.hasPython(p) }) {
		if w.given {
			bad.add("%s has Python %s, not %s", w.grounds[0].Name, listed(w.grounds[0].Pythons), p)
		} else {
			bad.add("no base brings Python %s (%s): it takes an interpreter of your own: --env PYTHON, --base IMAGE, or --builder host with a python%s on PATH", p, w.pythonsOf(), p)
		}
		w.spec.Python = ""
	}
}

func (g Ground) hasPython(p string) bool {
	return p == "" || len(g.Pythons) == 0 || slices.Contains(g.Pythons, p)
}

// pythonsOf says which grounds have which Python.
func (w *want) pythonsOf() string {
	var out []string
	for _, g := range w.grounds {
		name := g.Suite
		if w.given || name == "" {
			name = g.Name
		}
		out = append(out, fmt.Sprintf("%s has %s", name, listed(g.Pythons)))
	}
	return strings.Join(out, ", ")
}

// explainPythons finds that no Python is left which both the grounds and torch
// have.
func (t *Tables) explainPythons(w *want, bad *conflicts) {
	torches := t.torches(w)
	for _, g := range w.grounds {
		for _, torch := range torches {
			if len(g.pythons(w.spec.Python, torch)) > 0 {
				return
			}
		}
	}
	if len(w.grounds[0].Pythons) == 0 {
		bad.add("which Python %s has is not known: say --python", w.grounds[0].Name)
		w.spec.Python = torches[0].Pythons[0]
		return
	}
	bad.add("%s has wheels for Python %s, but %s", w.torchWords(torches[0]), listed(torches[0].Pythons), w.pythonsOf())
	w.spec.Torch, w.spec.CUDA = "", ""
}

func pythonsAmong(grounds []Ground) []string {
	var out []string
	for _, g := range grounds {
		out = union(out, g.Pythons)
	}
	slices.SortFunc(out, compareVersions)
	return out
}

// explainOps holds the ops asked for by name against DeepSpeed and the archs.
func (t *Tables) explainOps(w *want, bad *conflicts) {
	var ops []Op
	var byName []bool
	for i, op := range w.ops {
		why := ""
		if w.byName[i] {
			why = w.opRefused(op)
		}
		if why != "" {
			bad.add("%s", why)
			bad.advise(w.gpusFor(op)...)
			continue
		}
		ops, byName = append(ops, op), append(byName, w.byName[i])
	}
	w.ops, w.byName = ops, byName
	if w.device() && len(w.archs) == 0 && !w.loose {
		bad.add("no arch is given and %s has device code", w.ops[slices.IndexFunc(w.ops, func(o Op) bool { return o.DeviceCode })].Name)
		w.loose = true
	}
}

// gpusFor says what GPU an op needs that takes none of the archs.
func (w *want) gpusFor(op Op) []string {
	if op.absent(w.deepspeed.Version) != "" {
		return nil
	}
	var such []string
	for _, g := range exampleGPUs() {
		if op.takes(g[1]) {
			such = append(such, g[0])
		}
	}
	what := op.MinArch + " or higher"
	if op.MaxArch != "" {
		what = cmp.Or(op.MinArch, "any") + " to " + op.MaxArch
	}
	return []string{fmt.Sprintf("%s needs a GPU of arch %s, such as %s", op.Name, what, strings.Join(such, " or "))}
}

// opRefused says why an op cannot be built whatever the toolchain.
func (w *want) opRefused(op Op) string {
	if why := op.absent(w.deepspeed.Version); why != "" {
		return why
	}
	var named []string
	for _, a := range w.archs {
		if op.takes(a.Capability()) {
			return ""
		}
		named = append(named, w.called(a.Capability()))
	}
	if !op.DeviceCode || len(named) == 0 {
		return ""
	}
	return op.archsRefused(named)
}

// explainRoads says for every road that serves what speaks against it. Roads
// that are never any for the one ground there is are worth no word.
func (t *Tables) explainRoads(w *want, bad *conflicts) {
	var texts [][2]string
	near := t.closest(w)
	for _, road := range t.Roads {
		text := t.noWheels(w, road)
		if i := slices.IndexFunc(near, func(a *attempt) bool { return a.road.Road == road.Road }); i >= 0 {
			if near[i].ruled && w.given {
				continue
			}
			text = strings.Join(near[i].why, "; ")
		}
		if text != "" {
			texts = append(texts, [2]string{string(road.Road), text})
		}
	}
	for _, text := range texts {
		if len(texts) == 1 {
			text[0] = ""
		}
		bad.add("%s", strings.TrimPrefix(text[0]+": "+text[1], ": "))
	}
	if len(texts) == 0 {
		r := t.torches(w)[0]
		bad.add("torch %s is built for CUDA %s: there is no toolkit for that%s", r.Version, r.CUDA, w.onGround())
	}
}

func (w *want) onGround() string {
	if !w.given {
		return " here"
	}
	return " on " + w.grounds[0].Name
}

// noWheels says that none of a road's torches has wheels for the Pythons that
// are left; "" where the road has other reasons, or no torch at all.
func (t *Tables) noWheels(w *want, road RoadInfo) string {
	var theirs []string
	for _, r := range t.torches(w) {
		if road.Suite == "" && road.TorchCUDA == major(r.CUDA) {
			theirs = union(theirs, r.Pythons)
		}
	}
	ours := pythonsAmong(w.grounds)
	if w.spec.Python != "" {
		ours = []string{w.spec.Python}
	}
	if len(theirs) == 0 || len(ours) == 0 {
		return ""
	}
	slices.SortFunc(theirs, compareVersions)
	return fmt.Sprintf("torch for CUDA %s has wheels for Python %s to %s, not %s", road.TorchCUDA, theirs[0], theirs[len(theirs)-1], listed(ours))
}
