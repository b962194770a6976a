package wheel

import (
	"slices"
	"testing"
)

func TestExtensionNames(t *testing.T) {
	for _, c := range []struct{ path, op, variant string }{
		{"deepspeed/ops/adam/libcpu_adam_op.so", "cpu_adam", ""},
		{"deepspeed/ops/adam/libcpu_adam_op.v3.so", "cpu_adam", "v3"},
		{"deepspeed/ops/adam/libfused_adam_op.cu13.so", "fused_adam", "cu13"},
		{"deepspeed/ops/adam/libfused_adam_op.debug.so", "libfused_adam", ""}, // of nobody's wheel, and no variant
		{"deepspeed/ops/adam/cpu_adam_op.cpython-311-x86_64-linux-gnu.so", "cpu_adam", ""},
		{"deepspeed/ops/adam/cpu_adam_op.v3.so", "cpu_adam", ""}, // a module of Python has no variants
		{"deepspeed/inference/v2/kernelsinference_core_ops.so", "inference_core_ops", ""},
		{"torch/lib/libtorch_cpu.so.2", "libtorch_cpu", ""},
	} {
		e := Extension{Path: c.path}
		if e.Op() != c.op || e.Variant() != c.variant {
			t.Errorf("%s is op %q, variant %q, want %q, %q", c.path, e.Op(), e.Variant(), c.op, c.variant)
		}
	}
}

func TestVariantsOfManifest(t *testing.T) {
	code := map[string]DeviceCode{"evoformer": {Archs: []string{"9.0"}}}
	m := Manifest{
		CPU: "x86-64-v2", Archs: []string{"7.0", "9.0"}, PTX: []string{"12.0"}, OpArchs: code,
		Variants: []Variant{
			{Name: "cu13", CUDA: "13", Toolkit: "13.0", Archs: []string{"9.0"}, PTX: []string{"12.0"}},
			{Name: "cu12", CUDA: "12", Toolkit: "12.8", Archs: []string{"7.0"}, OpArchs: code},
			{Name: "v3", CPU: "x86-64-v3"},
			{Name: "v2", CPU: "x86-64-v2"},
		},
	}
	if got := m.CUDAs(); !slices.Equal(got, []string{"12", "13"}) {
		t.Errorf("CUDAs: %v", got)
	}
	if got := m.CPUs(); !slices.Equal(got, []CPULevel{CPUv2, CPUv3}) {
		t.Errorf("CPUs: %v", got)
	}
	old, ok := m.ForCUDA("12.6")
	if !ok || old.CUDA != "12" || old.Toolchain.Toolkit != "12.8" || !slices.Equal(old.Archs, []string{"7.0"}) || len(old.PTX) > 0 || old.OpArchs == nil {
		t.Errorf("for CUDA 12.6: %+v, %t", old, ok)
	}
	if recent, ok := m.ForCUDA("13.2"); !ok || recent.CUDA != "13" || !slices.Equal(recent.PTX, []string{"12.0"}) || recent.OpArchs != nil {
		t.Errorf("for CUDA 13.2: %+v, %t", recent, ok)
	}
	for _, none := range []string{"", "1", "11.8", "130"} {
		if _, ok := m.ForCUDA(none); ok {
			t.Errorf("a variant is for CUDA %q", none)
		}
	}
	m.Ops = []string{"cpu_adam", "fused_adam", "fused_lamb", "utils"}
	m.Variants[0].Ops, m.Variants[1].Ops = []string{"fused_adam", "fused_lamb"}, []string{"fused_adam"}
	m.Variants[2].Ops, m.Variants[3].Ops = []string{"cpu_adam"}, []string{"cpu_adam"}
	for cuda, want := range map[string][]string{
		"13.2": m.Ops, "12.8": {"cpu_adam", "fused_adam", "utils"}, "11.8": {"cpu_adam", "utils"}, "": {"cpu_adam", "utils"},
	} {
		if got := m.OpsFor(cuda); !slices.Equal(got, want) {
			t.Errorf("ops for CUDA %q: %v, want %v", cuda, got, want)
		}
	}
	if v, ok := variantOf(m.Variants, Extension{Path: "deepspeed/ops/adam/libfused_adam_op.cu14.so"}); ok || v.Name != "" {
		t.Errorf("a file for CUDA 14 is of variant %+v", v)
	}
	one := Manifest{CUDA: "13", CPU: "armv8-a", Archs: []string{"9.0"}}
	if got, ok := one.ForCUDA("12.8"); !ok || got.CUDA != "13" || !slices.Equal(one.CUDAs(), []string{"13"}) || !slices.Equal(one.CPUs(), []CPULevel{CPUArm}) {
		t.Errorf("without variants: %+v, %t, %v, %v", got, ok, one.CUDAs(), one.CPUs())
	}
	if got := (Manifest{}).CUDAs(); len(got) > 0 {
		t.Errorf("without device code: %v", got)
	}
}
