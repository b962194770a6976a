package wheel

import (
	"regexp"
	"slices"
	"strings"
)

// Variant is one of several builds of some ops in a wheel. The loader takes the variant for the running torch and CPU.
//
// Its name is a part of the names of its files: libfused_adam_op.cu13.so. An op that only one of the variants has, and
// an op without variants, are in a file without that part.
//
// The manifest of a wheel with variants has in Archs, PTX and OpArchs what all of them have together, in CPU the lowest
// level, and in CUDA nothing if several variants have device code: each of them names its own, and Manifest.CUDAs lists
// them. In this way no reader takes one of several for the only one. CUDA is also empty if the wheel has no device code.
type Variant struct {
	Name    string                `json:"name"` // cu12, cu13, v2, v3
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

// CUDAs returns the CUDAs for which the wheel has device code, oldest first: those of its variants, or else its own.
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

// CPUs returns the CPU levels of the wheel, lowest first: those of its variants, or else its own.
func (m Manifest) CPUs() []CPULevel {
	var out []CPULevel
	for _, v := range m.Variants {
		if v.CPU != "" {
			out = append(out, CPULevel(v.CPU))
		}
	}
	if out == nil && m.CPU != "" {
		out = []CPULevel{CPULevel(m.CPU)}
	}
	slices.SortFunc(out, func(a, b CPULevel) int { return strings.Compare(string(a), string(b)) })
	return out
}

// ForCUDA returns the manifest as a torch with that CUDA finds the wheel: of several variants with device code only the
// selected one. ok is false if none is for this CUDA; a wheel without such variants is returned unchanged.
func (m Manifest) ForCUDA(cuda string) (selected Manifest, ok bool) {
	if len(m.CUDAs()) < 2 {
		return m, true
	}
	major, _, _ := strings.Cut(cuda, ".")
	i := slices.IndexFunc(m.Variants, func(v Variant) bool { return v.CUDA != "" && v.CUDA == major })
	if i < 0 {
		return m, false
	}
	v := m.Variants[i]
	m.CUDA, m.Toolchain.Toolkit, m.Archs, m.PTX, m.OpArchs = v.CUDA, v.Toolkit, v.Archs, v.PTX, v.OpArchs
	return m, true
}
