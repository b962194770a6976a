package compat

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/mistake"
	"github.com/dsbuild/dsbuild/wheel"
)

// AllOps asks for every op in the tables.
const AllOps = "all"

// Latest asks for the newest release of DeepSpeed.
const Latest = "latest"

// want is a Spec in which every value is known by itself; whether they go
// together is another question.
type want struct {
	spec      wheel.Spec // without the values that are wrong by themselves
	grounds   []Ground
	given     bool // the grounds are the caller's, not those of the tables
	deepspeed DeepSpeed
	archs     []wheel.Arch
	ops       []Op   // in the order of the table
	byName    []bool // whether each op was asked for by name, or is one of all
	all       bool
	loose     bool // the arch asked for is wrong: none is needed for the search
	gpus      map[string][]string
	notes     []string
}

// fault is a value that is wrong by itself, and what to say instead: the
// nearest first, each as a change of the Spec and in words. Where there is
// nothing to say instead, advice is what remains.
type fault struct {
	what    string
	instead []change
	advice  []string
}

type change struct {
	text    string
	apply   func(*wheel.Spec)
	grounds []Ground // in place of those given; nil leaves them
}

// change does it.
func (c change) change(r *request) {
	c.apply(&r.spec)
	if c.grounds != nil {
		r.grounds = c.grounds
	}
}

// read looks up every value of s by itself.
func (t *Tables) read(s wheel.Spec, grounds []Ground) (*want, []fault) {
	w := &want{spec: s, grounds: grounds, given: len(grounds) > 0, gpus: map[string][]string{}}
	if !w.given {
		w.grounds = t.chosenGrounds()
	}
	var bad []fault
	for _, look := range []func(*want) []fault{t.readDeepSpeed, t.readTorch, t.readCUDA, t.readPython, t.readGlibc, t.readDriver, t.readArchs, t.readGPUs, t.readOps} {
		bad = append(bad, look(w)...)
	}
	w.loose = w.loose && len(w.archs) == 0
	return w, bad
}

func (t *Tables) readDeepSpeed(w *want) []fault {
	v := w.spec.DeepSpeed
	if w.spec.Foreign {
		w.deepspeed = DeepSpeed{Version: v}
		return nil
	}
	i := slices.IndexFunc(t.DeepSpeeds, func(d DeepSpeed) bool { return d.Version == v })
	switch {
	case i >= 0:
		w.deepspeed = t.DeepSpeeds[i]
		return nil
	case v == "" || v == Latest:
		w.deepspeed = t.DeepSpeeds[0]
		return nil
	}
	w.deepspeed, w.spec.DeepSpeed = t.DeepSpeeds[0], ""
	all := t.releases()
	what := fmt.Sprintf("DeepSpeed %s is not in the tables of this dsbuild, which knows %s to %s", v, all[len(all)-1], all[0])
	return []fault{{what: what, instead: versionChanges("--deepspeed", v, all, func(s *wheel.Spec, v string) { s.DeepSpeed = v })}}
}

// versionChanges are the versions known, those nearest to the wrong one first.
func versionChanges(flag, wrong string, known []string, set func(*wheel.Spec, string)) []change {
	var out []change
	for _, v := range NearestVersions(wrong, known) {
		out = append(out, change{flag + " " + v, func(s *wheel.Spec) { set(s, v) }, nil})
	}
	return out
}

// isTorch reports whether a release is the one asked for: X.Y is any patch.
func isTorch(asked string, r Torch) bool {
	return asked == "" || asked == r.Version || strings.Count(asked, ".") == 1 && strings.HasPrefix(r.Version, asked+".")
}

// isCUDA reports whether a CUDA is the one asked for: X is any minor.
func isCUDA(asked, cuda string) bool { return asked == "" || asked == cuda || asked == major(cuda) }

func (t *Tables) readTorch(w *want) []fault {
	asked, local, _ := strings.Cut(w.spec.Torch, "+")
	if slices.ContainsFunc(t.Torches, func(r Torch) bool { return isTorch(asked, r) }) && local == "" {
		return nil
	}
	all := t.torchVersions()
	what := fmt.Sprintf("torch %s is not in the tables of this dsbuild, which knows %s to %s", w.spec.Torch, all[len(all)-1], all[0])
	wrong := w.spec.Torch
	w.spec.Torch = ""
	return []fault{{what: what, instead: versionChanges("--torch", wrong, all, func(s *wheel.Spec, v string) { s.Torch = v })}}
}

func (t *Tables) readCUDA(w *want) []fault {
	if slices.ContainsFunc(t.Torches, func(r Torch) bool { return isCUDA(w.spec.CUDA, r.CUDA) }) {
		return nil
	}
	all := t.torchCUDAs()
	oldestFirst := slices.Clone(all)
	slices.Reverse(oldestFirst)
	wrong := w.spec.CUDA
	w.spec.CUDA = ""
	what := fmt.Sprintf("no torch on the package index is built for CUDA %s: there are torches for %s", wrong, listed(oldestFirst))
	return []fault{{what: what, instead: versionChanges("--cuda", wrong, all, func(s *wheel.Spec, v string) { s.CUDA = v })}}
}

func (t *Tables) readPython(w *want) []fault {
	wrong := w.spec.Python
	if wrong == "" || slices.ContainsFunc(t.Torches, func(r Torch) bool { return slices.Contains(r.Pythons, wrong) }) {
		return nil
	}
	all := t.pythons()
	w.spec.Python = ""
	what := fmt.Sprintf("no torch has wheels for Python %s: they are for %s", wrong, listed(all))
	return []fault{{what: what, instead: versionChanges("--python", wrong, all, func(s *wheel.Spec, v string) { s.Python = v })}}
}

func (t *Tables) readGlibc(w *want) []fault {
	asked := w.spec.Glibc
	what := fmt.Sprintf("glibc %s: extensions are linked for glibc %s and newer, which torch itself needs since 2.7", asked, LinkGlibc)
	switch {
	case asked == "" || xy.MatchString(asked) && !older(asked, LinkGlibc):
		return nil
	case !xy.MatchString(asked):
		what = fmt.Sprintf("glibc %q is not a version such as 2.28 ('ldd --version' on the oldest node says it)", asked)
	}
	w.spec.Glibc = ""
	return []fault{{what: what, instead: versionChanges("--glibc", asked, []string{LinkGlibc}, func(s *wheel.Spec, v string) { s.Glibc = v })}}
}

func (t *Tables) readDriver(w *want) []fault {
	asked := w.spec.Driver
	known := t.drivers()
	oldest := known[len(known)-1]
	if asked == "" || driverForm.MatchString(asked) && !olderDriver(asked, oldest) {
		return nil
	}
	what := fmt.Sprintf("driver %s runs no CUDA in the tables of this dsbuild: %s is the oldest that does", asked, oldest)
	if !driverForm.MatchString(asked) {
		what = fmt.Sprintf("driver %q is not a version such as 550.54.15 (nvidia-smi on the oldest node says it)", asked)
	}
	w.spec.Driver = ""
	return []fault{{what: what, instead: versionChanges("--driver", asked, known, func(s *wheel.Spec, v string) { s.Driver = v })}}
}

// readArchs keeps the archs that some CUDA compiles for.
func (t *Tables) readArchs(w *want) []fault {
	var all []string
	for _, c := range t.CUDAs {
		all = append(all, c.Archs...)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	var bad []fault
	var good []wheel.Arch
	for _, a := range w.spec.Archs {
		if slices.Contains(all, a.Capability()) {
			good = append(good, a)
			continue
		}
		what := fmt.Sprintf("no CUDA in the tables of this dsbuild compiles for arch %s", a.Capability())
		bad = append(bad, fault{what: what, instead: archChanges(a, t.served(all))})
	}
	w.spec.Archs, w.archs, w.loose = good, slices.Clone(good), w.loose || len(bad) > 0
	return bad
}

// served are those archs that some torch runs on.
func (t *Tables) served(archs []string) []string {
	return slices.DeleteFunc(slices.Clone(archs), func(c string) bool { return t.NewestTorch(c) == "" })
}

func archChanges(wrong wheel.Arch, known []string) []change {
	near := slices.Clone(known)
	slices.SortStableFunc(near, func(a, b string) int {
		return cmp.Compare(archDistance(a, wrong.Capability()), archDistance(b, wrong.Capability()))
	})
	var out []change
	for _, n := range near[:min(len(near), 3)] {
		a := archOf(n)
		a.PTX = wrong.PTX
		out = append(out, change{"--arch " + a.String() + " instead of " + wrong.String(), func(s *wheel.Spec) { s.Archs = addArch(s.Archs, a) }, nil})
	}
	return out
}

// addArch puts an arch into a sorted list.
func addArch(list []wheel.Arch, a wheel.Arch) []wheel.Arch {
	out := slices.Clone(list)
	for i, have := range out {
		if have.Capability() == a.Capability() {
			out[i].PTX = have.PTX || a.PTX
			return out
		}
	}
	out = append(out, a)
	slices.SortFunc(out, func(a, b wheel.Arch) int {
		return cmp.Or(cmp.Compare(a.Major, b.Major), cmp.Compare(a.Minor, b.Minor))
	})
	return out
}

// readGPUs adds the archs of the GPUs named.
func (t *Tables) readGPUs(w *want) []fault {
	var bad []fault
	var good, wrong []string
	names := splitNames(w.spec.GPUs)
	for _, name := range names {
		rows := t.GPUsNamed(name)
		f := t.gpuFault(name, rows)
		if f == nil {
			good = append(good, name)
			w.archs = addArch(w.archs, archOf(rows[0].Arch))
			w.gpus[rows[0].Arch] = append(w.gpus[rows[0].Arch], name)
			continue
		}
		bad, wrong = append(bad, *f), append(wrong, name)
	}
	others := len(names)+len(w.spec.Archs) > 1
	left := len(good)+len(w.spec.Archs) > 0 || slices.ContainsFunc(bad, func(f fault) bool { return len(f.instead) > 0 })
	for i := range bad {
		if others && left {
			bad[i].instead = append(bad[i].instead, change{"without --gpu " + quoted(wrong[i]), func(*wheel.Spec) {}, nil})
		}
	}
	w.spec.GPUs, w.loose = good, w.loose || len(bad) > 0
	return bad
}

// splitNames takes "A100,H100" for the two that it is; each once.
func splitNames(given []string) []string {
	var out []string
	for _, names := range given {
		for _, name := range strings.Split(names, ",") {
			if name = strings.TrimSpace(name); (name != "" || names == "") && !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	}
	return out
}

// gpuFault says what is wrong with a GPU's name, and what is near to it; nil
// where nothing is.
func (t *Tables) gpuFault(name string, rows []GPU) *fault {
	if len(rows) == 0 {
		return t.unknownGPU(name)
	}
	for _, g := range rows {
		if g.Arch != rows[0].Arch {
			what := fmt.Sprintf("GPU %q can be %s (%s) or %s (%s)", name, rows[0].Name, rows[0].Arch, g.Name, g.Arch)
			return &fault{what: what, instead: gpuChanges(name, []string{rows[0].Name, g.Name})}
		}
		if g.foreign() {
			what := fmt.Sprintf("GPU %s (arch %s): its CPU is %s; dsbuild builds x86_64 wheels alone, so there is no wheel for it", name, g.Arch, g.Machine)
			advice := []string{buildThere(g.Machine)}
			if g.Class == "data centre" { // others are one piece with their CPU
				advice = append(advice, "if the node has an x86_64 CPU after all, say --arch "+g.Arch)
			}
			return &fault{what: what, advice: advice}
		}
		if t.NewestTorch(g.Arch) == "" {
			what := fmt.Sprintf("GPU %s (arch %s): no torch in the tables of this dsbuild has code for it, so none runs there", name, g.Arch)
			advice := fmt.Sprintf("%s takes a torch built from source for arch %s, and --arch %s", name, g.Arch, g.Arch)
			return &fault{what: what, advice: []string{advice}}
		}
	}
	return nil
}

// buildThere says what remains for machines that no x86_64 wheel runs on.
func buildThere(machine string) string {
	return "for " + machine + " build on the machine itself with DeepSpeed's own setup.py"
}

// unknownGPU proposes what the name may be a slip of the pen for.
func (t *Tables) unknownGPU(name string) *fault {
	const lists = "'dsbuild gpus' lists all; --arch takes the compute capability"
	what := fmt.Sprintf("GPU %q is not in the tables of this dsbuild", name)
	if archs := archsIn(name); len(archs) > 0 {
		what += "; it is a compute capability, which --arch takes"
		return &fault{what: what, instead: []change{{"--arch " + archs[0].String() + " instead of --gpu " + quoted(name), func(s *wheel.Spec) { s.Archs = append(slices.Clone(s.Archs), archs...) }, nil}}}
	}
	near := t.NearestGPUs(name)
	near = slices.DeleteFunc(near, func(n string) bool { return t.gpuFault(n, t.GPUsNamed(n)) != nil })
	if len(near) == 0 {
		return &fault{what: what, advice: []string{lists}}
	}
	what += fmt.Sprintf(", which has %s (%s)", listed(near), lists)
	return &fault{what: what, instead: gpuChanges(name, near)}
}

// archsIn reads 8.0, sm_80 and 80, which are no names of GPUs.
func archsIn(name string) []wheel.Arch {
	text := strings.ToLower(strings.TrimSpace(name))
	for _, prefix := range []string{"compute_", "compute", "sm_", "sm"} {
		text = strings.TrimPrefix(text, prefix)
	}
	if digits := strings.Trim(text, "0123456789"); digits == "" && len(text) > 1 {
		text = text[:len(text)-1] + "." + text[len(text)-1:]
	}
	if strings.Trim(text, "0123456789.") != "" {
		return nil
	}
	archs, err := wheel.ParseArchs([]string{text})
	if err != nil {
		return nil
	}
	return archs
}

func gpuChanges(wrong string, near []string) []change {
	var out []change
	for _, n := range near {
		out = append(out, change{"--gpu " + quoted(n) + " instead of " + quoted(wrong), func(s *wheel.Spec) { s.GPUs = append(slices.Clone(s.GPUs), n) }, nil})
	}
	return out
}

func quoted(s string) string {
	if strings.ContainsAny(s, " ;") {
		return `"` + s + `"`
	}
	return s
}

// readOps looks the ops up. What nobody asked for by name, the default ops, is
// left out where DeepSpeed does not have it.
func (t *Tables) readOps(w *want) []fault {
	asked := w.spec.Ops
	byDefault := len(asked) == 0
	if byDefault {
		asked = t.defaultOps(w)
	}
	w.all = slices.Contains(asked, AllOps)
	var known []string
	for _, op := range t.Ops {
		op = op.in(w.deepspeed.Version)
		known = append(known, op.Name)
		named := slices.Contains(asked, op.Name)
		if named || w.all || t.brought(op.Name, asked) {
			w.ops, w.byName = append(w.ops, op), append(w.byName, named)
		}
	}
	var bad []fault
	for _, name := range asked {
		if name == AllOps || slices.Contains(known, name) {
			continue
		}
		bad = append(bad, opFault(name, known))
		w.spec.Ops = slices.DeleteFunc(slices.Clone(w.spec.Ops), func(n string) bool { return n == name })
	}
	if len(w.ops) == 0 && len(bad) > 0 && !byDefault { // search for the default ones
		w.loose = true
		ops := w.spec.Ops
		w.spec.Ops = nil
		t.readOps(w)
		w.spec.Ops = ops
	}
	return bad
}

// brought reports whether DeepSpeed adds an op to one of those asked for.
func (t *Tables) brought(name string, asked []string) bool {
	return slices.ContainsFunc(t.Ops, func(o Op) bool {
		return slices.Contains(asked, o.Name) && slices.Contains(o.Brings, name)
	})
}

// defaultOps are the default ones that the DeepSpeed wanted has.
func (t *Tables) defaultOps(w *want) []string {
	return slices.DeleteFunc(wheel.DefaultOps(), func(name string) bool {
		i := slices.IndexFunc(t.Ops, func(o Op) bool { return o.Name == name })
		absent := i >= 0 && t.Ops[i].absent(w.deepspeed.Version) != ""
		if absent {
			w.notes = append(w.notes, fmt.Sprintf("%s is left out: %s", name, t.Ops[i].absent(w.deepspeed.Version)))
		}
		return absent
	})
}

func opFault(name string, known []string) fault {
	near := slices.Clone(known)
	slices.SortStableFunc(near, func(a, b string) int {
		return cmp.Compare(mistake.Distance(name, a), mistake.Distance(name, b))
	})
	f := fault{what: fmt.Sprintf("op %q is not one dsbuild can build ('dsbuild ops' lists them)", name)}
	without := change{"without --ops " + name, func(*wheel.Spec) {}, nil}
	for _, n := range near {
		if mistake.Distance(name, n) > len(n)/2*mistake.Letter { // not a slip of the pen
			break
		}
		f.instead = append(f.instead, change{"--ops " + n + " instead of " + name, func(s *wheel.Spec) { s.Ops = append(slices.Clone(s.Ops), n) }, nil})
	}
	f.instead = append(f.instead, without)
	return f
}

// absent says why a release of DeepSpeed does not have the op, or "".
func (o Op) absent(deepspeed string) string {
	switch {
	case o.Since != "" && compareVersions(deepspeed, o.Since) < 0:
		return fmt.Sprintf("op %s is in DeepSpeed from %s on, not in %s", o.Name, o.Since, deepspeed)
	case o.Until != "" && compareVersions(deepspeed, o.Until) >= 0:
		return fmt.Sprintf("op %s left DeepSpeed with %s, it is not in %s", o.Name, o.Until, deepspeed)
	}
	return ""
}

// device reports whether anything asked for by name has device code.
func (w *want) device() bool {
	return slices.ContainsFunc(w.ops, func(o Op) bool { return o.DeviceCode })
}

// called names an arch as the person who asked did: "7.0 (V100)".
func (w *want) called(capability string) string {
	if by := w.gpus[capability]; len(by) > 0 {
		return capability + " (" + strings.Join(by, ", ") + ")"
	}
	return capability
}
