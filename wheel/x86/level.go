// Package x86 reads 64-bit x86 machine code: the length of each instruction and the CPU that it
// needs. It knows no operands and no addresses: it scans code to find out whether an older CPU
// could run all of it.
package x86

import "fmt"

// Level is a micro-architecture level of x86-64: V1 is the baseline (SSE2), and
// each level holds those below it. Source: System V ABI, AMD64 supplement,
// "Micro-Architecture Levels".
type Level uint8

// The levels.
const (
	V1 Level = iota
	V2       // CMPXCHG16B, LAHF, POPCNT, SSE3 to SSE4.2
	V3       // AVX, AVX2, BMI1, BMI2, F16C, FMA, LZCNT, MOVBE, OSXSAVE
	V4       // AVX512F, BW, CD, DQ, VL

	// Levels is how many there are.
	Levels = int(V4) + 1
)

// String returns the name that compilers take for -march: "x86-64",
// "x86-64-v2" and so on.
func (l Level) String() string {
	if l == V1 {
		return "x86-64"
	}
	return fmt.Sprintf("x86-64-v%d", int(l)+1)
}
