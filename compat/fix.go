package compat

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/wheel"
)

// request is a Spec with the build environments that the caller named; none if the tables
// choose.
type request struct {
	spec         wheel.Spec
	environments []BuildEnvironment
	noGPUNeeded  bool // the nodes bring their archs
}

// change changes one constraint of a request.
type change struct {
	flags string // the change, in words for the command line
	nodes string // what must change on the nodes before, or ""
	apply func(*request)
}

// nearestFix returns the first change of one constraint with which there is a toolchain, and reports whether there is
// one. The values that describe the nodes are changed last.
func (t *Tables) nearestFix(asked request) (change, bool) {
	f := &fixer{Tables: t, asked: asked}
	for _, list := range []func() []change{
		f.missingValues, f.otherABI, f.otherVersions, f.otherBases, f.otherPythons, f.otherDrivers, f.otherOps, f.otherArchs, f.otherGPUs, f.otherGlibcs,
	} {
		for _, c := range list() {
			if f.works(c) {
				return c, true
			}
		}
	}
	return change{}, false
}

// fixer lists changes of a request.
type fixer struct {
	*Tables
	asked request
}

// works reports whether there is a toolchain after a change.
func (f *fixer) works(c change) bool {
	with := f.asked
	c.apply(&with)
	return f.find(with.spec, with.environments, with.noGPUNeeded) != nil
}

// missingValues names a Python where the build environment does not say which ones it has, and a GPU where
// the ops need one.
func (f *fixer) missingValues() []change {
	var out []change
	if f.asked.spec.Python == "" && slices.ContainsFunc(f.asked.environments, func(g BuildEnvironment) bool { return len(g.Pythons) == 0 }) {
		newest := f.Torches[0].Pythons
		out = versionChanges("--python", newest[0], newest, func(s *wheel.Spec) *string { return &s.Python })
	}
	if len(f.asked.spec.GPUs)+len(f.asked.spec.Archs) == 0 {
		for _, name := range []string{"A100", "V100"} {
			out = append(out, change{flags: "--gpu " + name, apply: func(r *request) { addGPU(r, name) }})
		}
	}
	return out
}

func (f *fixer) otherABI() []change {
	if f.asked.spec.ABI == "" {
		return nil
	}
	return []change{{flags: "--abi torch", apply: func(r *request) { r.spec.ABI = "" }}}
}

// otherVersions offers other releases of DeepSpeed, torch and CUDA. Unless the user chose the release of DeepSpeed, it offers
// the newest that has an op.
func (f *fixer) otherVersions() []change {
	s := f.asked.spec
	var out []change
	switch all := releases(f.DeepSpeeds); {
	case s.Foreign:
	case s.DeepSpeed != "":
		out = versionChanges("--deepspeed", s.DeepSpeed, all, func(s *wheel.Spec) *string { return &s.DeepSpeed })
	default:
		for _, v := range all[1:] {
			if slices.ContainsFunc(f.Ops, func(o Op) bool {
				return slices.Contains(s.Ops, o.Name) && o.absentFrom(all[0]) != "" && o.absentFrom(v) == ""
			}) {
				out = append(out, change{flags: "--deepspeed " + v, apply: func(r *request) { r.spec.DeepSpeed = v }})
			}
		}
	}
	out = append(out, versionChanges("--torch", s.Torch, torchVersions(f.Torches), func(s *wheel.Spec) *string { return &s.Torch })...)
	return append(out, versionChanges("--cuda", s.CUDA, torchCUDAs(f.Torches), func(s *wheel.Spec) *string { return &s.CUDA })...)
}

func (f *fixer) otherPythons() []change {
	return versionChanges("--python", f.asked.spec.Python, allPythons(f.Torches), func(s *wheel.Spec) *string { return &s.Python })
}

// versionChanges offers the known versions, those nearest to the wrong one first; none if no version is asked for.
func versionChanges(flag, wrong string, known []string, field func(*wheel.Spec) *string) []change {
	var out []change
	if wrong == "" {
		return nil
	}
	for _, v := range NearestVersions(wrong, known) {
		out = append(out, change{flags: flag + " " + v, apply: func(r *request) { *field(&r.spec) = v }})
	}
	return out
}

// otherBases offers the base that dsbuild would choose in place of the one named, and then the images that bring a CUDA toolkit.
func (f *fixer) otherBases() []change {
	var out []change
	for _, environments := range [][]BuildEnvironment{nil, f.images} {
		e := f.find(f.asked.spec, environments, f.asked.noGPUNeeded)
		if e == nil {
			continue
		}
		flags := "--base " + e.environment.Ref
		if len(f.asked.environments) > 0 && f.asked.environments[0].Host {
			flags = "--builder dagger " + flags
		}
		out = append(out, change{flags: flags, apply: func(r *request) { r.environments = []BuildEnvironment{e.environment} }})
	}
	return out
}

func (f *fixer) otherDrivers() []change {
	return nodeChanges("--driver", f.asked.spec.Driver, oldestDrivers(f.CUDAs), driverForm, "update the driver of the nodes to %s or newer",
		func(s *wheel.Spec) *string { return &s.Driver })
}

func (f *fixer) otherGlibcs() []change {
	return nodeChanges("--glibc", f.asked.spec.Glibc, []string{LinkGlibc}, xy, "update the system of the nodes to one with glibc %s or newer",
		func(s *wheel.Spec) *string { return &s.Glibc })
}

// nodeChanges offers versions of what the nodes have. Where the value is no version, only the nodes know it.
func nodeChanges(flag, wrong string, known []string, form *regexp.Regexp, update string, field func(*wheel.Spec) *string) []change {
	if wrong != "" && !form.MatchString(wrong) {
		return []change{{flags: "without " + flag + " " + wrong, apply: func(r *request) { *field(&r.spec) = "" }}}
	}
	out := versionChanges(flag, wrong, known, field)
	for i := range out {
		out[i].nodes = fmt.Sprintf(update, strings.TrimPrefix(out[i].flags, flag+" "))
	}
	return out
}

// otherOps calls ops by their names, and leaves out one op after the other.
func (f *fixer) otherOps() []change {
	var out []change
	for _, name := range f.asked.spec.Ops {
		known := name == AllOps || slices.ContainsFunc(f.Ops, func(o Op) bool { return o.Name == name })
		if op, ok := f.opMeant(name); ok && !known {
			out = append(out, change{flags: "--ops " + op.Name + " instead of " + name, apply: func(r *request) {
				r.spec.Ops = append(lessOne(r.spec.Ops, name), op.Name)
			}})
		}
		if !known {
			continue // whoever misspelled a name wants another op, and not none
		}
		out = append(out, change{flags: "without --ops " + name, apply: func(r *request) { r.spec.Ops = lessOne(r.spec.Ops, name) }})
	}
	return out
}

func lessOne(list []string, name string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return s == name })
}

// otherArchs offers the archs nearest to one that no CUDA compiles for, and leaves archs out while others are left.
func (f *fixer) otherArchs() []change {
	var out []change
	for _, wrong := range f.asked.spec.Archs {
		rest := slices.DeleteFunc(slices.Clone(f.asked.spec.Archs), func(a wheel.Arch) bool { return a == wrong })
		if all := compiledArchs(f.CUDAs); !slices.Contains(all, wrong.Capability()) {
			near := slices.DeleteFunc(all, func(c string) bool { return f.NewestTorch(c) == "" })
			slices.SortStableFunc(near, func(a, b string) int {
				return cmp.Compare(archDistance(a, wrong.Capability()), archDistance(b, wrong.Capability()))
			})
			for _, n := range near[:min(len(near), 3)] {
				a := archOf(n)
				a.PTX = wrong.PTX
				out = append(out, change{flags: "--arch " + a.String() + " instead of " + wrong.String(), apply: func(r *request) { r.spec.Archs = addArch(rest, a) }})
			}
		}
		if len(rest)+len(f.asked.spec.GPUs) > 0 { // a wheel for other GPUs is no fix
			out = append(out, change{flags: "without --arch " + wrong.String(), apply: func(r *request) { r.spec.Archs = rest }})
		}
	}
	return out
}

// otherGPUs offers the products that a wrong or ambiguous name may mean, and leaves GPUs out while others are left.
func (f *fixer) otherGPUs() []change {
	var out []change
	names := SplitNames(f.asked.spec.GPUs)
	for _, name := range names {
		rest := lessOne(names, name)
		instead := func(other string) change {
			return change{
				flags: "--gpu " + quoteFlag(other) + " instead of " + quoteFlag(name),
				apply: func(r *request) { r.spec.GPUs = append(slices.Clone(rest), other) },
			}
		}
		rows := f.GPUsNamed(name)
		archs := archsIn(name)
		switch {
		case len(rows) > 1:
			out = append(out, f.clearerNames(rows, instead)...)
		case len(rows) == 0 && len(archs) > 0:
			out = append(out, change{flags: "--arch " + archs[0].String() + " instead of --gpu " + quoteFlag(name), apply: func(r *request) {
				r.spec.GPUs, r.spec.Archs = rest, addArch(r.spec.Archs, archs[0])
			}})
		case len(rows) == 0:
			for _, near := range f.usableGPUs(name) {
				out = append(out, instead(near))
			}
		}
		if len(rest)+len(f.asked.spec.Archs) > 0 { // a wheel for other GPUs is no fix
			out = append(out, change{flags: "without --gpu " + quoteFlag(name), apply: func(r *request) { r.spec.GPUs = rest }})
		}
	}
	return out
}

// clearerNames offers all products that an ambiguous name may mean: only the user knows which it is.
func (f *fixer) clearerNames(rows []GPU, instead func(string) change) []change {
	var usable []string
	for _, row := range rows {
		if f.works(instead(row.Name)) {
			usable = append(usable, row.Name)
		}
	}
	if len(usable) == 0 {
		return nil
	}
	out := instead(usable[0])
	for _, name := range slices.Backward(usable[1:]) {
		first := "--gpu " + quoteFlag(usable[0])
		out.flags = strings.Replace(out.flags, first, first+" or --gpu "+quoteFlag(name), 1)
	}
	return []change{out}
}

func addGPU(r *request, name string) { r.spec.GPUs = append(slices.Clone(r.spec.GPUs), name) }
