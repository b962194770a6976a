package wheel

import (
	"slices"
	"strings"
	"testing"
)

func contents() Contents {
	return Contents{Extensions: []Extension{
		{Path: "deepspeed/ops/adam/cpu_adam_op.cpython-311-x86_64-linux-gnu.so", Machine: X86, CPU: CPU{Max: CPUv3}, Floors: Floors{Glibc: "2.34"}, Stripped: true},
		{Path: "deepspeed/ops/adam/fused_adam_op.cpython-311-x86_64-linux-gnu.so", Machine: X86, SASS: []string{"8.0"}, CPU: CPU{Max: CPUv2}, Floors: Floors{Glibc: "2.4"}, Stripped: true},
	}}
}

func want() Want {
	return Want{
		Ops: []string{"cpu_adam", "fused_adam"}, Archs: map[string][]Arch{"fused_adam": {{8, 0, false}}}, CPU: CPUv3,
	}
}

func TestAudit(t *testing.T) {
	if got := Audit(contents(), want()); len(got) > 0 {
		t.Errorf("a wheel that is as asked: %q", got)
	}
	for name, c := range map[string]struct {
		change func(*Contents, *Want)
		want   string
	}{
		"op missing":      {func(c *Contents, _ *Want) { c.Extensions = c.Extensions[1:] }, "op cpu_adam was requested but is missing"},
		"op too many":     {func(_ *Contents, w *Want) { w.Ops = w.Ops[:1] }, "op fused_adam is in the wheel but was not requested"},
		"arch missing":    {func(c *Contents, _ *Want) { c.Extensions[1].SASS = nil }, "op fused_adam has SASS for nothing, requested 8.0"},
		"arch too many":   {func(c *Contents, _ *Want) { c.Extensions[1].SASS = []string{"9.0", "8.0"} }, "op fused_adam has SASS for 8.0, 9.0, requested 8.0"},
		"PTX missing":     {func(_ *Contents, w *Want) { w.Archs["fused_adam"][0].PTX = true }, "op fused_adam has PTX for nothing, requested 8.0"},
		"another's archs": {func(_ *Contents, w *Want) { w.Archs["fused_adam"], w.Archs["other"] = nil, w.Archs["fused_adam"] }, "op fused_adam has SASS for 8.0, requested nothing"},
		"code not asked":  {func(c *Contents, _ *Want) { c.Extensions[0].PTX = []string{"8.0"} }, "op cpu_adam has PTX for 8.0, requested nothing"},
		"CPU too high":    {func(c *Contents, _ *Want) { c.Extensions[0].CPU.Max = CPUv4 }, "op cpu_adam has x86-64-v4 instructions, requested at most x86-64-v3"},
		"no CPU level":    {func(c *Contents, _ *Want) { c.Extensions[0].CPU.Beyond = []string{"avx512_vnni"} }, "op cpu_adam has instructions outside all CPU levels: avx512_vnni"},
		"op twice":        {func(c *Contents, _ *Want) { c.Extensions = append(c.Extensions, c.Extensions[0]) }, "op cpu_adam occurs 2 times"},
		"other machine":   {func(c *Contents, _ *Want) { c.Extensions[0].Machine = Arm }, "op cpu_adam has code for aarch64, requested at most x86-64-v3"},
		"not stripped":    {func(c *Contents, _ *Want) { c.Extensions[0].Stripped = false }, "op cpu_adam is not stripped"},
		"glibc":           {func(_ *Contents, w *Want) { w.Glibc = "2.31" }, "op cpu_adam needs glibc 2.34, requested glibc 2.31"},
		"libstdc++":       {func(c *Contents, w *Want) { c.Extensions[1].GLIBCXX, w.Glibc = "3.4.30", "2.34" }, "op fused_adam needs GLIBCXX 3.4.30, CXXABI nothing and libgcc nothing, which requires manylinux_2_35_x86_64, requested glibc 2.34"},
		"no policy":       {func(c *Contents, w *Want) { c.Extensions[1].GLIBCXX, w.Glibc = "3.4.99", "2.34" }, "op fused_adam: no manylinux policy offers glibc 2.4 with GLIBCXX 3.4.99"},
		"RPATH":           {func(c *Contents, _ *Want) { c.Extensions[0].RPath = []string{"/build/lib"} }, "op cpu_adam has an RPATH: /build/lib"},
	} {
		have, asked := contents(), want()
		c.change(&have, &asked)
		if got := Audit(have, asked); len(got) != 1 || !strings.HasPrefix(got[0], c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// A machine as old as was asked for takes the wheel.
func TestAuditGlibc(t *testing.T) {
	for _, glibc := range []string{"", "2.34", "2.41"} {
		w := want()
		w.Glibc = glibc
		if got := Audit(contents(), w); len(got) > 0 {
			t.Errorf("glibc %q: %q", glibc, got)
		}
	}
	const name = "deepspeed-0.19.8-cp311-cp311-manylinux_2_35_x86_64.whl"
	for glibc, want := range map[string]string{"": "", "2.36": "", "2.35": "", "2.34": "tagged manylinux_2_35_x86_64, requested glibc 2.34"} {
		if got := strings.Join(AuditTags(name, glibc), "; "); got != want {
			t.Errorf("%s for glibc %q: %q, want %q", name, glibc, got, want)
		}
	}
}

func TestSortedArchs(t *testing.T) {
	got := sortedArchs([]string{"10.0", "9.0a", "9.0", "8.0", "9.0"})
	if !slices.Equal(got, []string{"8.0", "9.0", "9.0a", "10.0"}) {
		t.Errorf("%v", got)
	}
}

func TestOpName(t *testing.T) {
	for path, want := range map[string]string{
		"deepspeed/ops/aio/async_io_op.cpython-311-x86_64-linux-gnu.so":                          "async_io",
		"deepspeed/inference/v2/ragged_ops.cpython-311-x86_64-linux-gnu.so":                      "ragged_ops",
		"deepspeed/inference/v2/kernelsinference_core_ops.cpython-311-x86_64-linux-gnu.so":       "inference_core_ops",
		"deepspeed/inference/v2/kernels/cutlass_ops/cutlass_ops.cpython-311-x86_64-linux-gnu.so": "cutlass_ops",
		"elsewhere/kernels_op.so": "kernels",
	} {
		if got := (Extension{Path: path}).Op(); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}
