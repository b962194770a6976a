package wheel

import (
	"testing"

	"github.com/dsbuild/dsbuild/wheel/x86"
)

// The counts are those of the files named. A file that is compiled for AVX2 and selects AVX-512 at run time needs v3.
func TestLevelOfCodeThatSelects(t *testing.T) {
	for name, c := range map[string]struct {
		sse, v2, v3, v4 int64
		want            CPULevel
	}{
		"polars 2.1.0: AVX2 everywhere":          {11337, 5029, 2306956, 108487, CPUv3},
		"numpy 2.4.6: everything selected":       {102640, 12882, 268451, 187783, CPUv2},
		"AVX2 everywhere, AVX-512 selected":      {0, 0, 5000, 900, CPUv3},
		"a few functions selected, no SSE4 used": {16222, 0, 44520, 3978, CPUv1},
	} {
		u := x86.Usage{CPUID: true, XGETBV: true, SSE: c.sse}
		u.Levels[x86.V2], u.Levels[x86.V3], u.Levels[x86.V4] = c.v2, c.v3, c.v4
		if !chooses(u, false) || baseLevel(u) != c.want {
			t.Errorf("%s: selects %t, needs %s, want %s", name, chooses(u, false), baseLevel(u), c.want)
		}
	}
	for name, levels := range map[string][x86.Levels]int64{
		"simsimd 6.5.16": {28140, 30, 5249, 2158}, "numkong 7.8.6": {456998, 419, 136193, 81204},
	} {
		u := x86.Usage{CPUID: true, Levels: levels, SSE: map[string]int64{"simsimd 6.5.16": 4402, "numkong 7.8.6": 59138}[name]}
		if !chooses(u, false) || baseLevel(u) != CPUv2 {
			t.Errorf("%s: selects %t, needs %s; it asks by cpuid alone and runs on x86-64-v2", name, chooses(u, false), baseLevel(u))
		}
	}
	avx := x86.Usage{CPUID: true, XGETBV: true}
	avx.Levels[x86.V3] = 5000
	if chooses(avx, false) {
		t.Error("AVX2 without anything beside it counts as selected at run time")
	}
	for name, c := range map[string]struct {
		usage x86.Usage
		want  bool
	}{
		"cuobjdump 13.5: BMI2 selected by cpuid alone": {x86.Usage{Levels: [x86.Levels]int64{104523, 0, 426}, General: 426, CPUID: true, SSE: 3053}, true},
		"BMI2 everywhere, and cpuid for another use":   {x86.Usage{Levels: [x86.Levels]int64{20000, 0, 426}, General: 426, CPUID: true, SSE: 3053}, false},
		"BMI2 without a question":                      {x86.Usage{Levels: [x86.Levels]int64{104523, 0, 426}, General: 426, SSE: 3053}, false},
		"AVX2 in most code, and cpuid for another use": {x86.Usage{Levels: [x86.Levels]int64{104523, 0, 12639}, General: 426, CPUID: true, SSE: 3053}, false},
	} {
		if chooses(c.usage, false) != c.want || c.want && baseLevel(c.usage) != CPUv1 {
			t.Errorf("%s: selects %t, needs %s", name, !c.want, baseLevel(c.usage))
		}
	}
}
