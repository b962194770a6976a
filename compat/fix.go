package compat

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/wheel"
)

// request is a Spec with the build environments that the caller named; none if the tables
// choose.
type request struct {
	spec         wheel.Request
	environments []BuildHost
}

// fixer tries changes of one constraint of a request.
type fixer struct {
	*Tables
	asked request
	flags string // the first change with which there is a toolchain, in words for the command line; "" if there is none
	nodes string // what must change on the nodes before, or ""
}

// works reports whether there is a toolchain after a change.
func (f *fixer) works(change func(*request)) bool {
	with := f.asked
	change(&with)
	return f.find(with.spec, with.environments) != nil
}

// try notes a change if it works.
func (f *fixer) try(flags string, change func(*request)) bool {
	if !f.works(change) {
		return false
	}
	f.flags = flags
	return true
}

// addPython names a Python where the build environment does not say which ones it has.
func (f *fixer) addPython() bool {
	unknown := slices.ContainsFunc(f.asked.environments, func(g BuildHost) bool { return len(g.Pythons) == 0 })
	return f.asked.spec.Python == "" && unknown && slices.ContainsFunc(f.Torches[0].Pythons, func(v string) bool {
		return f.try("--python "+v, func(r *request) { r.spec.Python = v })
	})
}

// otherDeepSpeed tries other releases. Unless the user chose one, it tries only those
// that have an op that the newest lacks.
func (f *fixer) otherDeepSpeed() bool {
	all, asked := releases(f.DeepSpeeds), f.asked.spec
	switch {
	case asked.Foreign:
		return false
	case asked.DeepSpeed != "":
		return f.otherVersion("--deepspeed", all, func(s *wheel.Request) *string { return &s.DeepSpeed })
	}
	return slices.ContainsFunc(all[1:], func(v string) bool {
		return slices.ContainsFunc(f.Ops, func(o Op) bool {
			return slices.Contains(asked.Ops, o.Name) && o.absentFrom(all[0]) != "" && o.absentFrom(v) == ""
		}) && f.try("--deepspeed "+v, func(r *request) { r.spec.DeepSpeed = v })
	})
}

// otherVersion tries the known versions in place of the one asked for, if one is, the nearest first. A
// build that is no release (2.7.1+rocm6.3) is none of them.
func (f *fixer) otherVersion(flag string, known []string, field func(*wheel.Request) *string) bool {
	asked := *field(&f.asked.spec)
	return asked != "" && isPlain(asked) && slices.ContainsFunc(NearestVersions(asked, known), func(v string) bool {
		return f.try(flag+" "+v, func(r *request) { *field(&r.spec) = v })
	})
}

// otherNodes tries versions of what the nodes have. Where the value is no version, only the nodes know it.
func (f *fixer) otherNodes(
	flag string, known []string, form *regexp.Regexp, update string, field func(*wheel.Request) *string,
) bool {
	if asked := *field(&f.asked.spec); asked != "" && !form.MatchString(asked) {
		return f.try("without "+flag+" "+asked, func(r *request) { *field(&r.spec) = "" })
	}
	if !f.otherVersion(flag, known, field) {
		return false
	}
	f.nodes = fmt.Sprintf(update, strings.TrimPrefix(f.flags, flag+" "))
	return true
}

// otherBase tries the base that dsbuild would choose in place of the one named, and then
// the images that bring a CUDA toolkit.
func (f *fixer) otherBase() bool {
	builder := ""
	if len(f.asked.environments) > 0 && f.asked.environments[0].Host {
		builder = "--builder dagger "
	}
	return slices.ContainsFunc([][]BuildHost{nil, f.images}, func(environments []BuildHost) bool {
		e := f.find(f.asked.spec, environments)
		return e != nil && f.try(builder+"--base "+e.environment.Ref, func(r *request) {
			r.environments = []BuildHost{e.environment}
		})
	})
}

// otherOps calls ops by their names, and leaves out one op after the other. Whoever misspelled
// a name wants another op, and not none.
func (f *fixer) otherOps() bool {
	return slices.ContainsFunc(f.asked.spec.Ops, func(name string) bool {
		rest := without(f.asked.spec.Ops, name)
		if hasOp(f.Ops, name) {
			return f.try("without --ops "+name, func(r *request) { r.spec.Ops = rest })
		}
		op, ok := opMeant(f.Ops, name)
		return ok && f.try("--ops "+op.Name+" instead of "+name, func(r *request) { r.spec.Ops = append(rest, op.Name) })
	})
}

// without returns a list without a value.
func without[T comparable](list []T, value T) []T {
	return slices.DeleteFunc(slices.Clone(list), func(v T) bool { return v == value })
}

// otherGPUs leaves archs and GPUs out while others are left, as a wheel for other GPUs is no fix, and
// offers the products that a wrong or ambiguous name may mean.
func (f *fixer) otherGPUs() bool {
	archs, names := f.asked.spec.Archs, SplitNames(f.asked.spec.GPUs)
	several := len(archs)+len(names) > 1
	return several && slices.ContainsFunc(archs, func(wrong wheel.Arch) bool {
		return f.try("without --arch "+wrong.String(), func(r *request) { r.spec.Archs = without(archs, wrong) })
	}) || slices.ContainsFunc(names, func(name string) bool {
		rest := without(names, name)
		return f.clearerName(name, rest) ||
			several && f.try("without --gpu "+QuoteFlag(name), func(r *request) { r.spec.GPUs = rest })
	})
}

// clearerName offers all products that a wrong or an ambiguous name may mean: only the user knows which it is.
func (f *fixer) clearerName(name string, rest []string) bool {
	rows := f.GPUsNamed(name)
	arch, isArch := wheel.ArchMeant(name)
	var usable []string
	switch {
	case len(rows) == 1:
		return false
	case len(rows) == 0 && isArch:
		return f.try("--arch "+arch.String()+" instead of --gpu "+QuoteFlag(name), func(r *request) {
			r.spec.GPUs, r.spec.Archs = rest, addArch(r.spec.Archs, arch)
		})
	case len(rows) == 0:
		usable = f.usableGPUs(name)
	}
	for _, row := range rows {
		usable = append(usable, row.Name)
	}
	var flags []string
	for _, other := range usable {
		if f.works(func(r *request) { r.spec.GPUs = append(slices.Clone(rest), other) }) {
			flags = append(flags, "--gpu "+QuoteFlag(other))
		}
	}
	if len(flags) > 0 {
		f.flags = strings.Join(flags, " or ") + " instead of " + QuoteFlag(name)
	}
	return len(flags) > 0
}
