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
	avx := x86.Usage{CPUID: true, XGETBV: true}
	avx.Levels[x86.V3] = 5000
	if chooses(avx, false) {
		t.Error("AVX2 without anything beside it counts as selected at run time")
	}
}
