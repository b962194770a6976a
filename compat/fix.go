package compat

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/diagnostic"
	"github.com/dsbuild/dsbuild/wheel"
)

// request is a Spec with the build environments that the caller named; none if the tables
// choose.
type request struct {
	spec         wheel.Spec
	environments []BuildEnvironment
	noGPUNeeded  bool // the nodes bring their archs
}

// change is one step of a fix.
type change struct {
	text  string // for the command line
	apply func(*request)
	nodes string // what must change on the nodes before, or ""
}

// fix is the result of a search for one.
type fix struct {
	flags string // for the command line; "" if there is none
	nodes string // what must change on the nodes before, or ""
}

// value is one value of a request, with the changes that can replace it, nearest first.
type value struct {
	add     func(*request)
	replace func() []change
	ofNode  bool // a GPU or an arch: it is replaced before other values are added
}

// nearestFix returns the changes that make a request work, if it finds any. It adds the
// values of the request one by one, drops those that do not go with the values before
// them, and replaces the dropped ones. Every step was resolved. The values that describe
// the nodes come first and are kept longest.
func (t *Tables) nearestFix(asked request) fix {
	if e := t.find(asked.spec, t.images, asked.noGPUNeeded); e != nil && len(asked.environments) == 0 {
		return fix{flags: "--base " + e.environment.Ref}
	}
	f := &fixer{Tables: t, asked: asked}
	f.now.noGPUNeeded = asked.noGPUNeeded
	f.now.spec.CPU, f.now.spec.Foreign = asked.spec.CPU, asked.spec.Foreign
	if asked.spec.Foreign {
		f.now.spec.DeepSpeed = asked.spec.DeepSpeed
	}
	var dropped []value
	for _, v := range f.values() {
		with := f.now
		if v.add(&with); f.works(with) {
			f.now = with
		} else if !v.ofNode || !f.try(v.replace()) {
			dropped = append(dropped, v)
		}
	}
	for _, v := range dropped {
		if !f.try(v.replace()) {
			return fix{}
		}
	}
	if hasGPUs(asked.spec) && !hasGPUs(f.now.spec) { // a wheel for other GPUs is no fix
		return fix{}
	}
	f.try(f.missingPython())
	f.try(f.missingGPU())
	return fix{strings.Join(f.texts, " and "), strings.Join(f.nodes, " and ")}
}

// fixer is a request while its fix is put together.
type fixer struct {
	*Tables
	asked, now request
	texts      []string // the changes so far
	nodes      []string // those of the nodes
}

// try makes the first change that works.
func (f *fixer) try(changes []change) bool {
	for _, c := range changes {
		with := f.now
		if c.apply(&with); f.works(with) {
			f.now, f.texts = with, append(f.texts, c.text)
			if c.nodes != "" {
				f.nodes = append(f.nodes, c.nodes)
			}
			return true
		}
	}
	return false
}

func hasGPUs(s wheel.Spec) bool { return len(s.GPUs)+len(s.Archs) > 0 }

// works reports whether there is a toolchain for a request. While a fix is put together, the GPU
// may be missing; missingGPU adds one at the end.
func (f *fixer) works(r request) bool {
	return f.find(r.spec, r.environments, r.noGPUNeeded || !hasGPUs(r.spec)) != nil
}

// values lists the values of a request, the one to keep longest first.
func (f *fixer) values() []value {
	spec := f.asked.spec
	var out []value
	version := func(flag string, field func(*wheel.Spec) *string, known []string) {
		if v := *field(&spec); v != "" {
			out = append(out, value{
				func(r *request) { *field(&r.spec) = v },
				func() []change { return versionChanges(flag, v, known, field) }, false,
			})
		}
	}
	ofNodes := func(flag, update string, form *regexp.Regexp, field func(*wheel.Spec) *string, known []string) {
		if v := *field(&spec); v != "" {
			out = append(out, value{
				func(r *request) { *field(&r.spec) = v },
				func() []change {
					if !form.MatchString(v) {
						return []change{without(flag + " " + v)} // only the nodes know the version
					}
					all := versionChanges(flag, v, known, field)
					for i, newer := range NearestVersions(v, known) {
						all[i].nodes = fmt.Sprintf(update, newer)
					}
					return all
				}, false,
			})
		}
	}
	ofNodes("--glibc", "update the system of the nodes to one with glibc %s or newer", xy, func(s *wheel.Spec) *string { return &s.Glibc }, []string{LinkGlibc})
	for _, name := range SplitNames(spec.GPUs) {
		out = append(out, value{func(r *request) { addGPU(r, name) }, func() []change { return f.gpuChanges(name) }, true})
	}
	for _, arch := range spec.Archs {
		out = append(out, value{func(r *request) { r.spec.Archs = addArch(r.spec.Archs, arch) }, func() []change { return f.archChanges(arch) }, true})
	}
	for _, name := range spec.Ops {
		out = append(out, value{func(r *request) { addOp(r, name) }, func() []change { return f.opChanges(name) }, false})
	}
	ofNodes("--driver", "update the driver of the nodes to %s or newer", driverForm, func(s *wheel.Spec) *string { return &s.Driver }, oldestDrivers(f.CUDAs))
	version("--python", func(s *wheel.Spec) *string { return &s.Python }, allPythons(f.Torches))
	if len(f.asked.environments) > 0 {
		out = append(out, value{
			func(r *request) { r.environments = f.asked.environments },
			f.baseChanges, false,
		})
	}
	version("--cuda", func(s *wheel.Spec) *string { return &s.CUDA }, torchCUDAs(f.Torches))
	version("--torch", func(s *wheel.Spec) *string { return &s.Torch }, torchVersions(f.Torches))
	if !spec.Foreign {
		version("--deepspeed", func(s *wheel.Spec) *string { return &s.DeepSpeed }, releases(f.DeepSpeeds))
	}
	if abi := spec.ABI; abi != "" {
		out = append(out, value{
			func(r *request) { r.spec.ABI = abi },
			func() []change { return []change{{text: "--abi torch", apply: func(r *request) { r.spec.ABI = "" }}} }, false,
		})
	}
	return out
}

func addGPU(r *request, name string) { r.spec.GPUs = append(slices.Clone(r.spec.GPUs), name) }
func addOp(r *request, name string)  { r.spec.Ops = append(slices.Clone(r.spec.Ops), name) }

// without leaves a value out, which the request no longer has.
func without(flag string) change { return change{text: "without " + flag, apply: func(*request) {}} }

// versionChanges offers the known versions, those nearest to the wrong one first.
func versionChanges(flag, wrong string, known []string, field func(*wheel.Spec) *string) []change {
	var out []change
	for _, v := range NearestVersions(wrong, known) {
		out = append(out, change{text: flag + " " + v, apply: func(r *request) { *field(&r.spec) = v }})
	}
	return out
}

// gpuChanges offers the products that a wrong or ambiguous name may mean.
func (f *fixer) gpuChanges(name string) []change {
	var out []change
	if rows := f.GPUsNamed(name); len(rows) == 0 {
		if archs := archsIn(name); len(archs) > 0 {
			out = append(out, change{text: "--arch " + archs[0].String() + " instead of --gpu " + quoteFlag(name), apply: func(r *request) {
				r.spec.Archs = addArch(r.spec.Archs, archs[0])
			}})
		}
		for _, near := range f.usableGPUs(name) {
			out = append(out, change{text: "--gpu " + quoteFlag(near) + " instead of " + quoteFlag(name), apply: func(r *request) { addGPU(r, near) }})
		}
	} else {
		out = append(out, f.clearerNames(name, rows)...)
	}
	return append(out, without("--gpu "+quoteFlag(name)))
}

// clearerNames offers all products that an ambiguous name may mean: only the user knows which it is.
func (f *fixer) clearerNames(name string, rows []GPU) []change {
	var usable []string
	for _, row := range rows {
		with := f.now
		if addGPU(&with, row.Name); len(rows) > 1 && f.works(with) {
			usable = append(usable, row.Name)
		}
	}
	if len(usable) == 0 {
		return nil
	}
	var flags []string
	for _, name := range usable {
		flags = append(flags, "--gpu "+quoteFlag(name))
	}
	return []change{{text: strings.Join(flags, " or ") + " instead of " + quoteFlag(name), apply: func(r *request) { addGPU(r, usable[0]) }}}
}

// archChanges offers the archs nearest to one that no CUDA compiles for.
func (f *fixer) archChanges(wrong wheel.Arch) []change {
	var out []change
	if all := compiledArchs(f.CUDAs); !slices.Contains(all, wrong.Capability()) {
		near := slices.DeleteFunc(all, func(c string) bool { return f.NewestTorch(c) == "" })
		slices.SortStableFunc(near, func(a, b string) int {
			return cmp.Compare(archDistance(a, wrong.Capability()), archDistance(b, wrong.Capability()))
		})
		for _, n := range near[:min(len(near), 3)] {
			a := archOf(n)
			a.PTX = wrong.PTX
			out = append(out, change{text: "--arch " + a.String() + " instead of " + wrong.String(), apply: func(r *request) { r.spec.Archs = addArch(r.spec.Archs, a) }})
		}
	}
	return append(out, without("--arch "+wrong.String()))
}

// opChanges offers the ops that a misspelled name may mean; for an op that the newest
// DeepSpeed lacks, a release that has it, unless the user chose the release.
func (f *fixer) opChanges(name string) []change {
	var out []change
	i := slices.IndexFunc(f.Ops, func(o Op) bool { return o.Name == name })
	if i < 0 && name != AllOps {
		for _, n := range similarOps(name, f.Ops) {
			out = append(out, change{text: "--ops " + n + " instead of " + name, apply: func(r *request) { addOp(r, n) }})
		}
	}
	if i >= 0 && f.asked.spec.DeepSpeed == "" && !f.asked.spec.Foreign {
		all := releases(f.DeepSpeeds)
		if at := slices.IndexFunc(all, func(v string) bool { return f.Ops[i].absentFrom(v) == "" }); at >= 0 {
			out = append(out, change{text: "--deepspeed " + all[at], apply: func(r *request) { addOp(r, name); r.spec.DeepSpeed = all[at] }})
		}
	}
	return append(out, without("--ops "+name))
}

// similarOps lists the ops whose names differ from a wrong one in half of their letters at
// most, nearest first.
func similarOps(wrong string, ops []Op) []string {
	var out []string
	for _, o := range ops {
		if diagnostic.Distance(wrong, o.Name) <= len(o.Name)/2*diagnostic.Letter {
			out = append(out, o.Name)
		}
	}
	slices.SortStableFunc(out, func(a, b string) int {
		return cmp.Compare(diagnostic.Distance(wrong, a), diagnostic.Distance(wrong, b))
	})
	return out
}

// baseChanges offers the base that dsbuild would choose in place of the one named.
func (f *fixer) baseChanges() []change {
	var out []change
	for _, environments := range [][]BuildEnvironment{nil, f.images} {
		e := f.find(f.now.spec, environments, f.now.noGPUNeeded || !hasGPUs(f.now.spec))
		if e == nil {
			continue
		}
		text := "--base " + e.environment.Ref
		if f.asked.environments[0].Host {
			text = "--builder dagger " + text
		}
		out = append(out, change{text: text, apply: func(r *request) { r.environments = []BuildEnvironment{e.environment} }})
	}
	return out
}

// missingPython names a Python where the build environment does not say which ones it has.
func (f *fixer) missingPython() []change {
	unknown := func(e BuildEnvironment) bool { return len(e.Pythons) == 0 }
	if f.now.spec.Python != "" || !slices.ContainsFunc(f.now.environments, unknown) {
		return nil
	}
	newest := f.Torches[0].Pythons
	return versionChanges("--python", newest[0], newest, func(s *wheel.Spec) *string { return &s.Python })
}

// missingGPU names a GPU where the ops need one.
func (f *fixer) missingGPU() []change {
	w, _ := f.lookUp(f.now.spec, f.now.environments)
	if f.now.noGPUNeeded || len(w.archs) > 0 || !w.wantsDeviceCode() {
		return nil
	}
	var out []change
	for _, g := range exampleGPUs() {
		out = append(out, change{text: "--gpu " + g[0], apply: func(r *request) { addGPU(r, g[0]) }})
	}
	return out
}

// exampleGPUs are well known GPUs with their archs.
func exampleGPUs() [][2]string { return [][2]string{{"A100", "8.0"}, {"H100", "9.0"}, {"V100", "7.0"}} }
