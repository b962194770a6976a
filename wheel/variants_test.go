package wheel_test

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/wheel"
)

// The files of a wheel with two CUDAs and two CPU levels.
const (
	v2File   = "deepspeed/ops/adam/libcpu_adam_op.v2.so"
	v3File   = "deepspeed/ops/adam/libcpu_adam_op.v3.so"
	cu12File = "deepspeed/ops/adam/libfused_adam_op.cu12.so"
	cu13File = "deepspeed/ops/adam/libfused_adam_op.cu13.so"
	oneFile  = "deepspeed/ops/libutils_op.so"
)

// What a wheel with variants has is read from its files, and is what its manifest says.
func TestVariants(t *testing.T) {
	path := wheeltest.Packed(t, t.TempDir(), wheeltest.Variants())
	v, err := wheel.Verify(t.Context(), path)
	if err != nil || v.Err() != nil {
		t.Fatal(err, v.Err())
	}
	m, c := v.Manifest, v.Contents
	want := []wheel.Variant{
		{Name: "cu12", Ops: []string{"fused_adam"}, CUDA: "12", Archs: []string{"7.0", "8.0"}, PTX: []string{}, OpArchs: map[string]wheel.DeviceCode{}},
		{Name: "cu13", Ops: []string{"fused_adam"}, CUDA: "13", Archs: []string{"8.0", "9.0"}, PTX: []string{"9.0"}, OpArchs: map[string]wheel.DeviceCode{}},
		{Name: "v2", Ops: []string{"cpu_adam"}, CPU: "x86-64"}, // what its code needs
		{Name: "v3", Ops: []string{"cpu_adam"}, CPU: "x86-64-v3"},
	}
	if !reflect.DeepEqual(c.Variants, want) {
		t.Errorf("variants of the files\n%+v, want\n%+v", c.Variants, want)
	}
	want[0].Toolkit, want[1].Toolkit, want[2].CPU = "12.4", "13.0", "x86-64-v2" // the plan knows it
	if got, wanted := text(t, m.Variants), text(t, want); got != wanted {
		t.Errorf("variants of the manifest\n%s, want\n%s", got, wanted)
	}
	if m.CUDA != "" || c.CUDA != "" || m.CPU != "x86-64-v2" || c.CPU() != wheel.CPUv1 ||
		!slices.Equal(m.Archs, []string{"7.0", "8.0", "9.0"}) || !slices.Equal(m.PTX, []string{"9.0"}) || len(m.OpArchs) > 0 {
		t.Errorf("manifest %+v, contents for CUDA %q and CPU %s", m, c.CUDA, c.CPU())
	}
	if !slices.Equal(c.Ops, []string{"cpu_adam", "fused_adam", "utils"}) || !slices.Equal(m.Ops, c.Ops) {
		t.Errorf("ops %q, in the manifest %q", c.Ops, m.Ops)
	}
	derived := c.Manifest() // of a wheel whose manifest is gone
	if !slices.Equal(derived.CUDAs(), []string{"12", "13"}) {
		t.Errorf("CUDAs of the files: %q", derived.CUDAs())
	}
}

// A library that is damaged, missing, too many or of another variant is named.
func TestVariantsDamaged(t *testing.T) {
	path := wheeltest.Packed(t, t.TempDir(), wheeltest.Variants())
	good := wheeltest.Read(t, path)
	manifest := wheeltest.Member(t, good, wheel.ManifestName)
	for name, c := range map[string]struct {
		damage func(files map[string]string)
		want   []string
	}{
		"one missing": {
			func(f map[string]string) { delete(f, cu12File) },
			[]string{
				"metadata: the wheel is for CUDA 13, but the manifest says none",
				"ops: " + cu12File + " is missing or not a library, the manifest says cu12, cu13 of op fused_adam",
			},
		},
		"one is empty": {
			func(f map[string]string) { f[v3File] = "" },
			[]string{"ops: " + v3File + " is missing or not a library, the manifest says v2, v3 of op cpu_adam"},
		},
		"all of an op missing": {
			func(f map[string]string) { delete(f, v2File); delete(f, v3File) },
			[]string{"ops: op cpu_adam is missing"},
		},
		"swapped CUDAs": {
			func(f map[string]string) { f[cu12File], f[cu13File] = f[cu13File], f[cu12File] },
			[]string{
				"op fused_adam (libfused_adam_op.cu12.so) has SASS for 8.0, 9.0, the manifest says 7.0, 8.0",
				"op fused_adam (libfused_adam_op.cu12.so) loads the runtime of CUDA 13, but is the variant for CUDA 12",
				"op fused_adam (libfused_adam_op.cu13.so) loads the runtime of CUDA 12, but is the variant for CUDA 13",
			},
		},
		"too new for its level": {
			func(f map[string]string) { f[v2File] = f[v3File] },
			[]string{"CPU level: op cpu_adam (libcpu_adam_op.v2.so) has x86-64-v3 instructions, the manifest says x86-64-v2"},
		},
		"one for every CPU too new": {
			func(f map[string]string) { f[oneFile] = f[v3File] },
			[]string{"CPU level: op utils has x86-64-v3 instructions, the manifest says x86-64-v2"},
		},
		"no device code": {
			func(f map[string]string) { f[cu13File] = f[oneFile] },
			[]string{"archs: op fused_adam (libfused_adam_op.cu13.so) has SASS for nothing, the manifest says 8.0, 9.0"},
		},
		"one more": {
			func(f map[string]string) { f[strings.Replace(v3File, "v3", "v4", 1)] = f[v3File] },
			[]string{"ops: deepspeed/ops/adam/libcpu_adam_op.v4.so is in the wheel, the manifest says v2, v3 of op cpu_adam"},
		},
		"one without its variant": {
			func(f map[string]string) { f[strings.Replace(v3File, ".v3", "", 1)] = f[v3File]; delete(f, v3File) },
			[]string{
				"ops: deepspeed/ops/adam/libcpu_adam_op.so is in the wheel, the manifest says v2, v3 of op cpu_adam",
				"ops: " + v3File + " is missing or not a library, the manifest says v2, v3 of op cpu_adam",
			},
		},
		"a variant of an op with one build": {
			func(f map[string]string) { f[strings.Replace(oneFile, ".so", ".cu12.so", 1)] = f[oneFile] },
			[]string{"ops: deepspeed/ops/libutils_op.cu12.so is in the wheel, the manifest says no variants of op utils"},
		},
		"level of the manifest": {
			func(f map[string]string) {
				f[manifest] = strings.Replace(f[manifest], "\n \"cpu\": \"x86-64-v2\"", "\n \"cpu\": \"x86-64-v3\"", 1)
			},
			[]string{"CPU level: the lowest variant is for x86-64-v2, but the manifest says x86-64-v3"},
		},
		"archs of the manifest": {
			func(f map[string]string) {
				f[manifest] = strings.Replace(f[manifest], "\n  \"7.0\",\n  \"8.0\",\n  \"9.0\"\n ]", "\n  \"8.0\",\n  \"9.0\"\n ]", 1)
			},
			[]string{"archs: all ops have SASS for 7.0, 8.0, 9.0 and PTX for 9.0, but the manifest says 8.0, 9.0 and 9.0"},
		},
	} {
		files := maps.Clone(good)
		c.damage(files)
		wheeltest.Write(t, path, files)
		v, err := wheel.Verify(t.Context(), path)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		found := strings.Join(v.Findings(), "\n")
		for _, want := range c.want {
			if !strings.Contains(found, want) {
				t.Errorf("%s: no %q in\n%s", name, want, found)
			}
		}
	}
	files := maps.Clone(good)
	files[cu12File] = files[cu12File][:len(files[cu12File])/2]
	wheeltest.Write(t, path, files)
	if _, err := wheel.Verify(t.Context(), path); fault.ExitCode(err) != fault.Wheel || !strings.Contains(err.Error(), cu12File) {
		t.Errorf("one is cut off: %v, want an error that names it", err)
	}
}

// An audit compares each build with what was asked of its variant, and two CUDAs in one wheel are right only as variants.
func TestVariantsAudit(t *testing.T) {
	opt := wheeltest.Variants()
	c, err := wheel.Inspect(t.Context(), wheeltest.Packed(t, t.TempDir(), opt))
	if err != nil {
		t.Fatal(err)
	}
	asked := func(change func(v []wheel.Variant)) wheel.Want {
		variants := slices.Clone(opt.Variants)
		variants[0].Archs = []string{"7.0", "8.0"}
		variants[1].Archs, variants[1].PTX = []string{"8.0", "9.0"}, []string{"9.0"}
		change(variants)
		return wheel.Want{Ops: c.Ops, CPU: wheel.CPUv2, Variants: variants, TorchABI: &wheel.TorchABI{Stable: true, Min: "2.10"}}
	}
	for name, want := range map[string]struct {
		change func(v []wheel.Variant)
		want   []string
	}{
		"as asked": {func([]wheel.Variant) {}, nil},
		"another arch": {
			func(v []wheel.Variant) { v[0].Archs = []string{"8.0"} },
			[]string{"op fused_adam (libfused_adam_op.cu12.so) has SASS for 7.0, 8.0, requested 8.0"},
		},
		"another arch of the op": {
			func(v []wheel.Variant) {
				v[1].OpArchs = map[string]wheel.DeviceCode{"fused_adam": {Archs: []string{"8.0", "9.0"}, PTX: []string{}}}
			},
			[]string{"op fused_adam (libfused_adam_op.cu13.so) has PTX for 9.0, requested nothing"},
		},
		"a lower level": {
			func(v []wheel.Variant) { v[3].CPU = "x86-64-v2" },
			[]string{"op cpu_adam (libcpu_adam_op.v3.so) has x86-64-v3 instructions, requested at most x86-64-v2"},
		},
		"one more": {
			func(v []wheel.Variant) { v[3].Name = "v4" },
			[]string{
				"deepspeed/ops/adam/libcpu_adam_op.v3.so is in the wheel, requested v2, v4 of op cpu_adam",
				"deepspeed/ops/adam/libcpu_adam_op.v4.so is missing or not a library, requested v2, v4 of op cpu_adam",
			},
		},
	} {
		got := wheel.Audit(c, asked(want.change))
		for _, w := range want.want {
			if !slices.Contains(got, w) {
				t.Errorf("%s: no %q in %q", name, w, got)
			}
		}
		if want.want == nil && len(got) > 0 {
			t.Errorf("%s: %q", name, got)
		}
	}

	opt.Variants, opt.Ops = nil, []wheeltest.Op{
		{Name: "fused_adam", Dir: "adam", Runtime: "12", SASS: []string{"8.0"}}, {Name: "fused_lamb", Dir: "lamb", Runtime: "13", SASS: []string{"8.0"}},
	}
	v, err := wheel.Verify(t.Context(), wheeltest.Packed(t, t.TempDir(), opt))
	if err != nil {
		t.Fatal(err)
	}
	const mixed = "ops: op fused_adam loads the runtime of CUDA 12 and op fused_lamb of CUDA 13, but they are not variants"
	if !slices.Contains(v.Findings(), mixed) {
		t.Errorf("two CUDAs: no %q in %q", mixed, v.Findings())
	}
}

// An op that only one of the variants has is in a file without the variant's name, and belongs to it all the same.
func TestVariantWithOneBuild(t *testing.T) {
	opt := wheeltest.Variants()
	opt.Ops = append(opt.Ops, wheeltest.Op{Name: "fused_lamb", Dir: "lamb", Runtime: "13", SASS: []string{"9.0"}})
	opt.Variants[1].Ops = []string{"fused_adam", "fused_lamb"}
	v, err := wheel.Verify(t.Context(), wheeltest.Packed(t, t.TempDir(), opt))
	if err != nil || v.Err() != nil {
		t.Fatal(err, v.Err())
	}
	recent, ok := v.Manifest.ForCUDA("13.2")
	if own := recent.OpArchs["fused_lamb"]; !ok || !slices.Equal(own.Archs, []string{"9.0"}) {
		t.Errorf("for CUDA 13: %+v", recent)
	}
	if got := v.Contents.Variants[1].Ops; !slices.Equal(got, []string{"fused_adam", "fused_lamb"}) {
		t.Errorf("ops of cu13: %q", got)
	}
}

// The SBOM and the provenance name the toolkit of each variant.
func TestVariantsProvenance(t *testing.T) {
	path, _, statement := wheeltest.Built(t, t.TempDir(), wheeltest.Variants())
	var s struct {
		Predicate struct {
			BuildDefinition struct {
				InternalParameters struct{ Toolkits map[string]string }
			}
		}
	}
	if err := json.Unmarshal(statement, &s); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"cu12": "12.4", "cu13": "13.0"}
	if got := s.Predicate.BuildDefinition.InternalParameters.Toolkits; !maps.Equal(got, want) {
		t.Errorf("toolkits %v, want %v", got, want)
	}
	files := wheeltest.Read(t, path)
	var bom struct {
		Components []struct {
			Name       string
			Properties []struct{ Name, Value string }
		}
	}
	if err := json.Unmarshal([]byte(files[wheeltest.Member(t, files, "dsbuild.cdx.json")]), &bom); err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, c := range bom.Components {
		for _, p := range c.Properties {
			if p.Name == "dsbuild:toolkit" {
				found[c.Name] = p.Value
			}
		}
	}
	if want := map[string]string{cu12File: "12.4", cu13File: "13.0"}; !maps.Equal(found, want) {
		t.Errorf("toolkits of files %v, want %v", found, want)
	}
}
