package compat

import (
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/wheel"
)

// Variants returns the additional toolchains of a wheel of the stable ABI; first compiles every op. There is one for
// each other CUDA, with the ops that have device code, and one for each higher CPU level, with the ops that have
// vector code. There are none for a CUDA or level that the request sets.
func (t *Tables) Variants(r wheel.Request, first Toolchain) []Toolchain {
	if first.ABI != wheel.StableABI {
		return nil
	}
	var out []Toolchain
	if r.CUDA == "" && first.HasDeviceCode() {
		for _, major := range t.stableCUDAs() {
			if tc, ok := t.forCUDA(r, first, major); ok && major != wheel.Major(first.CUDA) {
				out = append(out, tc)
			}
		}
	}
	vectors := slices.DeleteFunc(slices.Clone(first.Ops), func(o Op) bool { return o.DeviceCode || !wheel.HasLevels(o.Name) })
	if r.CPU == "" && len(vectors) > 0 {
		for _, level := range wheel.CPULevels(first.CPU.Machine())[1:] {
			tc := first
			tc.CPU, tc.Ops, tc.Archs, tc.EveryGPU = level, vectors, nil, false
			out = append(out, tc)
		}
	}
	return out
}

// stableCUDAs lists the major versions of CUDA that torches with the stable ABI are built for, newest torch first.
func (t *Tables) stableCUDAs() []string {
	var majors []string
	for _, torch := range t.Torches {
		if !olderMinor(torch.Version, StableTorch) {
			majors = appendMissing(majors, []string{wheel.Major(torch.CUDA)})
		}
	}
	return majors
}

// forCUDA returns the toolchain for the torches of another CUDA. It omits the ops and the requested archs that this CUDA
// cannot compile; ok is false if none is left.
func (t *Tables) forCUDA(r wheel.Request, first Toolchain, major string) (tc Toolchain, ok bool) {
	for _, name := range SplitNames(r.GPUs) {
		for _, g := range t.GPUsNamed(name) {
			r.Archs = addArch(r.Archs, archOf(g.Arch))
		}
	}
	archs, ops := r.Archs, first.OpNames(true)
	r.GPUs, r.CUDA, r.ABI = nil, major, wheel.StableABI
	r.Torch, r.Python, r.Machine, r.CPU = "", "", first.CPU.Machine(), first.CPU
	hosts := []BuildHost{first.Environment}
	compiles := func(arch ...wheel.Arch) func(op string) bool {
		return func(op string) bool {
			alone := r
			alone.Archs, alone.Ops = arch, []string{op}
			return t.find(attempt{alone, hosts}) != nil
		}
	}
	r.Archs = nil
	for _, arch := range archs {
		code := arch
		code.PTX = false
		switch {
		case slices.ContainsFunc(ops, compiles(arch)):
			r.Archs = append(r.Archs, arch)
		case slices.ContainsFunc(ops, compiles(code)):
			r.Archs = append(r.Archs, code)
		}
	}
	if len(r.Archs) == 0 && len(archs) > 0 {
		return tc, false
	}
	r.Ops = slices.DeleteFunc(ops, func(op string) bool { return !compiles(r.Archs...)(op) })
	if len(r.Ops) == 0 {
		return tc, false
	}
	e := t.find(attempt{r, hosts})
	if e == nil {
		return tc, false
	}
	tc = e.finishedToolchain()
	// An op can imply others, without device code.
	tc.Ops = slices.DeleteFunc(tc.Ops, func(o Op) bool { return !o.DeviceCode })
	return tc, true
}

// VariantsOf describes what the toolchains of one wheel compile several times: the first compiles every op, and each
// additional toolchain, as returned by Variants, recompiles some of them.
func VariantsOf(parts []Toolchain) []wheel.Variant {
	var out []wheel.Variant
	for _, part := range parts[1:] {
		for _, tc := range []Toolchain{parts[0], part} {
			v := wheel.Variant{Name: tc.CPU.Short(), Ops: part.OpNames(false), CPU: string(tc.CPU)}
			if part.HasDeviceCode() {
				v = tc.CUDAVariant()
			}
			if !slices.ContainsFunc(out, func(have wheel.Variant) bool { return have.Name == v.Name }) {
				out = append(out, v)
			}
		}
	}
	slices.SortFunc(out, func(a, b wheel.Variant) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// CUDAVariant returns the variant with the device code that the toolchain compiles.
func (tc Toolchain) CUDAVariant() wheel.Variant {
	_, cuda, _ := tc.Serves()
	v := wheel.Variant{
		Name: "cu" + cuda, Ops: tc.OpNames(true), CUDA: cuda, Toolkit: tc.Toolkit,
		Archs: wheel.Capabilities(tc.Archs, false), PTX: wheel.Capabilities(tc.Archs, true),
		OpArchs: map[string]wheel.DeviceCode{},
	}
	for _, op := range tc.Ops {
		if op.DeviceCode && !slices.Equal(op.Archs, tc.Archs) {
			v.OpArchs[op.Name] = wheel.DeviceCode{
				Archs: wheel.Capabilities(op.Archs, false), PTX: wheel.Capabilities(op.Archs, true),
			}
		}
	}
	return v
}
