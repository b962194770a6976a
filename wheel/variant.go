package wheel

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/lists"
)

// Variant is what a wheel of the stable ABI has for one CUDA or for one CPU level. The loader takes the variant for the
// running torch and CPU. Ops that are in no variant serve all.
//
// Its name is a part of the names of its files: libfused_adam_op.cu13.so. An op that only one of the variants has is in a
// file without that part.
//
// In a manifest, Archs, PTX and OpArchs are the union of all variants, CPU is the lowest level, and CUDA is empty if
// there are several, so that no reader takes one of several for the only one: each variant has its own, and
// Manifest.CUDAs lists them. CUDA is also empty if no op needs it.
type Variant struct {
	Name    string                `json:"name"` // cu12, cu13, v2, v3, v4
	Ops     []string              `json:"ops"`
	CUDA    string                `json:"cuda,omitempty"`    // the major version, if the variant has device code
	Toolkit string                `json:"toolkit,omitempty"` // X.Y of nvcc and headers
	Archs   []string              `json:"archs,omitempty"`   // this and the next two as in Manifest
	PTX     []string              `json:"ptx,omitempty"`
	OpArchs map[string]DeviceCode `json:"op_archs,omitempty"`
	CPU     string                `json:"cpu,omitempty"` // the level, if the ops have a variant for each of several
}

// libraryName matches the file name of a library of the stable ABI, which is no module of Python.
var libraryName = regexp.MustCompile(`^lib([^.]+)(?:\.(cu\d+|v\d))?\.so$`)

// CUDAs returns the CUDA versions of the wheel's device code, oldest first.
func (m Manifest) CUDAs() []string {
	var out []string
	for _, v := range m.Variants {
		if v.CUDA != "" {
			out = append(out, v.CUDA)
		}
	}
	if out == nil && m.CUDA != "" {
		out = []string{m.CUDA}
	}
	slices.SortFunc(out, CompareVersions)
	return out
}

// CPUs returns the CPU levels of the wheel, lowest first, its variants included.
func (m Manifest) CPUs() []CPULevel {
	out := []CPULevel{CPULevel(m.CPU)}
	for _, v := range m.Variants {
		out = append(out, CPULevel(v.CPU))
	}
	slices.Sort(out)
	return slices.DeleteFunc(slices.Compact(out), func(l CPULevel) bool { return l == "" })
}

// OpsFor returns the ops that load under a torch with that CUDA, or without one if it is "": those that need no CUDA, and
// those with a variant for it.
func (m Manifest) OpsFor(cuda string) []string {
	return slices.DeleteFunc(slices.Clone(m.Ops), func(op string) bool {
		own := withOp(m.Variants, op)
		needs := slices.ContainsFunc(own, func(v Variant) bool { return v.CUDA != "" })
		return needs && !slices.ContainsFunc(own, func(v Variant) bool { return v.CUDA == Major(cuda) })
	})
}

// ForCUDA returns the manifest as a torch with that CUDA finds the wheel: of several variants with device code only the
// selected one. ok is false if none is for this CUDA; a wheel without such variants is returned unchanged.
func (m Manifest) ForCUDA(cuda string) (selected Manifest, ok bool) {
	if len(m.CUDAs()) < 2 {
		return m, true
	}
	i := slices.IndexFunc(m.Variants, func(v Variant) bool { return v.CUDA != "" && v.CUDA == Major(cuda) })
	if i < 0 {
		return m, false
	}
	v := m.Variants[i]
	m.CUDA, m.Toolchain.Toolkit, m.Archs, m.PTX, m.OpArchs = v.CUDA, v.Toolkit, v.Archs, v.PTX, v.OpArchs
	return m, true
}

// code returns the device code of an op of the variant that has some.
func (v Variant) code(op string) DeviceCode {
	if own, ok := v.OpArchs[op]; ok {
		return own
	}
	return DeviceCode{v.Archs, v.PTX}
}

// withOp returns the variants that have an op.
func withOp(all []Variant, op string) []Variant {
	return slices.DeleteFunc(slices.Clone(all), func(v Variant) bool { return !slices.Contains(v.Ops, op) })
}

// variantOf returns an extension's variant, or the zero Variant for an op without variants. ok is false for a file
// that no variant has.
func variantOf(all []Variant, e Extension) (v Variant, ok bool) {
	own := withOp(all, e.Op())
	if len(own) < 2 {
		return append(own, Variant{})[0], e.Variant() == ""
	}
	i := slices.IndexFunc(own, func(v Variant) bool { return v.Name == e.Variant() })
	if i < 0 {
		return Variant{}, false
	}
	return own[i], true
}

// compareVariants compares the files of the ops with the variants of the wheel. says precedes the variants in a
// finding and names their source.
func (c Contents) compareVariants(says string, variants []Variant) []string {
	var findings []string
	add := func(file, what, op string) {
		names := strings.Join(lists.Map(withOp(variants, op), func(v Variant) string { return v.Name }), ", ")
		findings = append(findings, fmt.Sprintf("%s %s, %s %s of op %s", file, what, says, cmp.Or(names, "no variants"), op))
	}
	stems := map[string]string{} // paths of the ops' files, without their endings
	have := map[string]bool{}
	for _, e := range c.Extensions {
		if _, ok := variantOf(variants, e); !ok {
			add(e.Path, "is in the wheel", e.Op())
		}
		have[e.Path] = true
		if stem, library := strings.CutSuffix(e.Path, ".so"); library {
			stems[e.Op()] = strings.TrimSuffix(stem, "."+e.Variant())
		}
	}
	for op, stem := range stems { // an op without any file is missing as a whole
		for _, v := range withOp(variants, op) {
			if file := stem + "." + v.Name + ".so"; len(withOp(variants, op)) > 1 && !have[file] {
				add(file, "is missing or not a library", op)
			}
		}
	}
	slices.Sort(findings)
	return append(findings, c.compareRuntimes(variants)...)
}

// compareRuntimes compares the CUDA whose runtime each extension loads with its variant. Without variants for several
// CUDAs, all load the same.
func (c Contents) compareRuntimes(variants []Variant) []string {
	var findings []string
	var first *Extension // without a variant
	for _, e := range c.Extensions {
		v, _ := variantOf(variants, e)
		switch cuda := e.runtime(); {
		case cuda == "":
		case v.CUDA != "" && v.CUDA != Major(cuda):
			findings = append(findings, fmt.Sprintf("%s loads the runtime of CUDA %s, but is the variant for CUDA %s", e.title(), cuda, v.CUDA))
		case v.CUDA == "" && first == nil:
			first = &e
		case v.CUDA == "" && first.runtime() != cuda:
			findings = append(findings, fmt.Sprintf("%s loads the runtime of CUDA %s and %s of CUDA %s, but they are not variants",
				first.title(), first.runtime(), e.title(), cuda))
		}
	}
	return findings
}

// findVariants returns the variants, as shown by the names of the files and the CUDA runtimes that they load. Only a
// wheel of the stable ABI has some.
func (c Contents) findVariants() []Variant {
	builds := map[string][]Extension{}
	for _, e := range c.Extensions {
		name := e.Variant()
		if cuda := e.runtime(); cuda != "" {
			name = cmp.Or(name, "cu"+Major(cuda))
		}
		if name != "" && c.TorchABI.IsStable() {
			builds[name] = append(builds[name], e)
		}
	}
	out := []Variant{}
	for _, name := range slices.Sorted(maps.Keys(builds)) {
		all := builds[name]
		v := Variant{Name: name, Ops: slices.Sorted(slices.Values(lists.Map(all, Extension.Op)))}
		if cuda, ok := strings.CutPrefix(name, "cu"); ok {
			v.CUDA = cuda
			v.Archs, v.PTX, v.OpArchs = codeOf(all)
			for _, e := range all {
				if len(e.SASS)+len(e.PTX) == 0 && len(v.Archs)+len(v.PTX) > 0 {
					v.OpArchs[e.Op()] = DeviceCode{Archs: []string{}, PTX: []string{}}
				}
			}
		} else {
			v.CPU = string(Contents{Extensions: all}.CPU())
		}
		out = append(out, v)
	}
	return out
}

// codeOf returns the device code that extensions have together, and lists the ops that lack a part of it with their own.
func codeOf(all []Extension) (archs, ptx []string, lacking map[string]DeviceCode) {
	lacking = map[string]DeviceCode{}
	for _, e := range all {
		archs, ptx = append(archs, e.SASS...), append(ptx, e.PTX...)
		if own := lacking[e.Op()]; len(e.SASS)+len(e.PTX) > 0 {
			lacking[e.Op()] = DeviceCode{sortedArchs(slices.Concat(own.Archs, e.SASS)), sortedArchs(slices.Concat(own.PTX, e.PTX))}
		}
	}
	archs, ptx = sortedArchs(archs), sortedArchs(ptx)
	maps.DeleteFunc(lacking, func(_ string, own DeviceCode) bool {
		return slices.Equal(own.Archs, archs) && slices.Equal(own.PTX, ptx)
	})
	return archs, ptx, lacking
}
