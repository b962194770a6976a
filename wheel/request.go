package wheel

import (
	"slices"
	"strings"
)

// Request is a request for a wheel. The resolver fills in empty fields.
type Request struct {
	DeepSpeed string   // version of a release
	Archs     []Arch   // sorted; see ParseArchs
	GPUs      []string // names as NVIDIA sells them, for more archs
	Ops       []string // op names as DeepSpeed's builders call them
	Torch     string   // X.Y.Z, or X.Y for its newest release
	CUDA      string   // of torch: X.Y, or X for any X.Y
	Python    string   // X.Y
	Machine   string   // X86 or Arm; if empty, CPU's machine, else the GPUs'
	CPU       CPULevel
	Glibc     string // X.Y of the oldest node
	Driver    string // of the oldest node; limits the CUDA
	ABI       ABI    // of torch; if empty, StableABI if all ops are proven with it, else TorchMinor
	Base      string // an image or a tar to build on; if empty, the toolchain's
	KeepDebug bool   // leave debug information in the extensions
}

// ABI is the interface of torch that the ops of a wheel use.
type ABI string

// The ABIs that a request can have.
const (
	TorchMinor ABI = "torch"  // torch's C++ interface: for one torch minor version and one Python
	StableABI  ABI = "stable" // torch's stable ABI: for a torch and newer, and every Python
)

// DefaultOps are built unless ops are requested: CPU and GPU optimizers, flatten helpers and I/O for NVMe
// offload, which training uses and which compile in seconds.
func DefaultOps() []string {
	return []string{"cpu_adam", "cpu_adagrad", "cpu_lion", "fused_adam", "utils", "async_io", "pin_memory"}
}

// The machines that wheels are made for, as `uname -m` and wheel tags call them.
const (
	X86 = "x86_64"
	Arm = "aarch64"
)

// CPULevel is a CPU feature level: a microarchitecture level of the x86-64 psABI, or Armv8-A. It
// implies the machine.
type CPULevel string

// The levels of x86-64, lowest first; each includes those before it.
const (
	CPUv1 CPULevel = "x86-64"    // every 64-bit x86 CPU: SSE2
	CPUv2 CPULevel = "x86-64-v2" // SSE4.2
	CPUv3 CPULevel = "x86-64-v3" // AVX2, FMA, BMI
	CPUv4 CPULevel = "x86-64-v4" // AVX-512
)

// CPUArm is every 64-bit Arm CPU: NEON. It is the only level of Arm. DeepSpeed's code for SVE
// covers only one data type, rounds differently, and crashes on CPUs without SVE (Neoverse N1).
const CPUArm CPULevel = "armv8-a"

// CPULevels lists the levels that a request for a machine can have, lowest first. In a complete build, ops with vector code
// have a variant for each; other ops are built for the lowest.
func CPULevels(machine string) []CPULevel {
	if machine == Arm {
		return []CPULevel{CPUArm}
	}
	return x86Levels()[1:]
}

func x86Levels() []CPULevel { return []CPULevel{CPUv1, CPUv2, CPUv3, CPUv4} }

// DefaultCPU is the default level of wheels for one torch minor version.
func DefaultCPU(machine string) CPULevel {
	if machine == Arm {
		return CPUArm
	}
	return CPUv3
}

// HasLevels reports whether an op has vector code, which is faster on a higher level.
func HasLevels(op string) bool {
	return slices.Contains([]string{"cpu_adam", "cpu_adagrad", "cpu_lion"}, op)
}

// Machine returns the machine whose CPUs have the level, or "" for no level.
func (l CPULevel) Machine() string {
	switch {
	case l == "":
		return ""
	case strings.HasPrefix(string(l), "arm"):
		return Arm
	}
	return X86
}

// Short returns the level as a part of a version: "v3" for x86-64-v3, "armv8a" for armv8-a.
func (l CPULevel) Short() string {
	return strings.ReplaceAll(strings.TrimPrefix(string(l), "x86-64-"), "-", "")
}

// Includes reports whether a CPU of level l runs code made for other.
// An unknown level includes nothing and is included by nothing.
func (l CPULevel) Includes(other CPULevel) bool {
	if l == CPUArm {
		return other == CPUArm
	}
	i, j := slices.Index(x86Levels(), l), slices.Index(x86Levels(), other)
	return j >= 0 && i >= j
}
