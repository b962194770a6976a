package wheel

import (
	"fmt"
	"slices"
	"strings"
)

// Spec is a request for a wheel. The resolver fills in empty fields.
type Spec struct {
	DeepSpeed string   // version of a release
	Foreign   bool     // the sources are the caller's own: DeepSpeed is the version they say
	Archs     []Arch   // sorted; see ParseArchs
	GPUs      []string // names as NVIDIA sells them, for more archs
	Ops       []string // op names as DeepSpeed's builders call them
	Torch     string   // X.Y.Z, or X.Y for the newest of that minor
	CUDA      string   // that torch is built for: X.Y, or X for any of that major
	Python    string   // X.Y
	CPU       CPULevel
	Glibc     string // X.Y of the oldest node
	Driver    string // of the oldest node: which CUDA it runs
	ABI       ABI    // of torch; "" is StableABI where all ops are proven with it, else TorchMinor
}

// ABI is the interface of torch that the ops of a wheel use.
type ABI string

// The ABIs that a wheel can be asked for.
const (
	TorchMinor ABI = "torch"  // torch's C++ interface: for one minor of torch and one Python
	StableABI  ABI = "stable" // torch's stable ABI: for every torch from one on, and every Python
)

// DefaultOps are built if the user names no ops: CPU Adam and the flatten helpers of every
// offload job, and the GPU optimizer of all the others.
func DefaultOps() []string { return []string{"cpu_adam", "utils", "fused_adam"} }

// CPULevel is a micro-architecture level of the x86-64 psABI.
type CPULevel string

// The levels, lowest first; each includes those before it.
const (
	CPUv1 CPULevel = "x86-64"    // every 64-bit x86 CPU: SSE2
	CPUv2 CPULevel = "x86-64-v2" // SSE4.2
	CPUv3 CPULevel = "x86-64-v3" // AVX2, FMA, BMI
	CPUv4 CPULevel = "x86-64-v4" // AVX-512
)

// CPULevels lists the levels a wheel can be asked for, lowest first.
func CPULevels() []CPULevel { return allLevels()[1:] }

func allLevels() []CPULevel { return []CPULevel{CPUv1, CPUv2, CPUv3, CPUv4} }

// ParseCPULevel reads "x86-64-v3" or "v3".
func ParseCPULevel(s string) (CPULevel, error) {
	l := CPULevel(s)
	if !strings.HasPrefix(s, "x86-64-") {
		l = CPULevel("x86-64-" + s)
	}
	if !slices.Contains(CPULevels(), l) {
		return "", fmt.Errorf("cpu level %q is unknown: must be v2 (SSE4.2), v3 (AVX2) or v4 (AVX-512)", s)
	}
	return l, nil
}

// Short returns "v3" for x86-64-v3.
func (l CPULevel) Short() string { return strings.TrimPrefix(string(l), "x86-64-") }

// Includes reports whether a CPU of level l runs code made for other.
// An unknown level includes nothing and is included by nothing.
func (l CPULevel) Includes(other CPULevel) bool {
	i, j := slices.Index(allLevels(), l), slices.Index(allLevels(), other)
	return j >= 0 && i >= j
}

// LocalVersion returns the local part of the version, which names the wheel's targets:
// torch2.15.cu132.sm80.ptx90.v3. If everyGPU is true, "all" stands for the archs. A wheel without
// device code has no archs.
func LocalVersion(torch, cuda string, archs []Arch, everyGPU bool, cpu CPULevel) string {
	// A CUDA X, of the stable ABI, stands for all of that major.
	parts := []string{"torch" + Minor(torch), "cu" + strings.ReplaceAll(Minor(cuda), ".", "")}
	if everyGPU && len(archs) > 0 {
		parts, archs = append(parts, "all"), nil
	}
	for _, a := range archs {
		parts = append(parts, a.SM())
	}
	for _, a := range archs {
		if a.PTX {
			parts = append(parts, strings.Replace(a.SM(), "sm", "ptx", 1))
		}
	}
	return strings.Join(append(parts, cpu.Short()), ".")
}
