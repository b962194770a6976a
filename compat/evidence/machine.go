package evidence

import (
	"slices"
	"strings"
)

// knows reports whether a compiler for a machine defines a macro (as 1), and whether that is certain. Wheels are
// only for NVIDIA's GPUs on Linux. Macros that depend on a builder or a flag (AVX, BF16, the GPU's arch) are not certain, but
// DeepSpeed's builders define macros of AVX only on x86_64, and macros of NEON and SVE only on Arm.
func knows(machine, macro string) (defined, certain bool) {
	always := []string{"__linux__", "__linux", "__unix__", "__unix", "__LP64__", "_LP64"}
	never := []string{
		"_WIN32", "_WIN64", "_MSC_VER", "__APPLE__", "__MACH__", "USE_ROCM", "USE_XPU", "__ENABLE_CANN__",
		"__i386__", "__i386", "__arm__", "SYCL_LANGUAGE_VERSION",
	}
	neverWith := []string{"__riscv", "__powerpc", "__PPC", "__ppc", "__s390", "__mips", "__HIP", "HIP_", "HIPBLAS_", "ROCM_", "__METAL_"}
	ofX86, ofArm := []string{"__x86_64__", "__x86_64", "__amd64__", "__amd64"}, []string{"__aarch64__", "__AARCH64EL__"}
	switch machine {
	case x86:
		always, never = append(always, ofX86...), append(never, ofArm...)
		neverWith = append(neverWith, "__ARM_", "__NEON", "__SVE")
	case arm:
		always, never = append(always, ofArm...), append(never, ofX86...)
		neverWith = append(neverWith, "__AVX", "__SSE", "__FMA__", "__F16C__")
	}
	if slices.Contains(always, macro) {
		return true, true
	}
	return false, slices.Contains(never, macro) ||
		slices.ContainsFunc(neverWith, func(prefix string) bool { return strings.HasPrefix(macro, prefix) })
}
