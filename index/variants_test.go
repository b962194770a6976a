package index_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/index"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/wheel"
)

const variantFolder = "torch2.15-cu132-variants"

func TestVariants(t *testing.T) {
	cpuOnly := []wheeltest.Op{{Name: "cpu_adam", Dir: "adam"}}
	wheels := []string{
		build(t, t.TempDir(), wheeltest.Options{Ops: device("8.0", "8.6")}, evening),
		build(t, t.TempDir(), wheeltest.Options{Ops: []wheeltest.Op{{Name: "fused_adam", Dir: "adam", SASS: []string{"9.0"}, PTX: []string{"9.0"}}}}, evening),
		build(t, t.TempDir(), wheeltest.Options{Ops: cpuOnly, CPU: wheel.CPUv2}, evening),
		build(t, t.TempDir(), wheeltest.Options{Ops: cpuOnly, CPU: wheel.CPUv3, Commit: strings.Repeat("1f", 20)}, evening),
	}
	dir := t.TempDir()
	opt := index.Options{Dir: dir, Wheels: wheels, Variants: true, URL: "https://wheels.example.org/"}
	sum := write(t, opt)
	if len(sum.Variants) != 1 || sum.Variants[0].Name != variantFolder || sum.Variants[0].URL != "https://wheels.example.org/"+variantFolder+"/" {
		t.Fatalf("%+v", sum.Variants)
	}
	var labels []string
	for _, v := range sum.Variants[0].Variants {
		labels = append(labels, v.Label)
	}
	slices.Sort(labels)
	if want := []string{"", "cpu.v2", "ptx90.v3", "sm80.sm86.v3", "sm90.v3"}; !slices.Equal(labels, want) {
		t.Errorf("labels %q, want %q", labels, want)
	}
	folder := filepath.Join(dir, variantFolder, "deepspeed")
	checkVariantFiles(t, folder, sum.Variants[0])

	// The plain wheel is as good as the one that it was made of, under its own name and version.
	plain := filepath.Join(folder, "deepspeed-0.19.8+torch2.15.cu132-cp311-cp311-manylinux_2_17_x86_64.whl")
	v, err := wheel.Verify(t.Context(), plain)
	if err != nil || v.Err() != nil || v.Manifest.Version != "0.19.8+torch2.15.cu132" || v.Contents.Version != v.Manifest.Version {
		t.Errorf("%+v, %v", v.Findings(), err)
	}

	before := tree(t, dir)
	if again := write(t, opt); again.Written+again.Removed != 0 {
		t.Errorf("again: %d written, %d removed", again.Written, again.Removed)
	}
	more, err := index.Add(t.Context(), index.Options{Dir: dir, Wheels: wheels[:1]})
	if err != nil || more.Written+more.Removed != 0 || len(tree(t, dir)) != len(before) {
		t.Errorf("added once more: %+v, %v", more, err)
	}
	opt.Variants = false
	write(t, opt)
	if _, err := os.Stat(filepath.Join(dir, variantFolder)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("variants that are no longer wanted are left: %v", err)
	}
}

// variantJSON is the part of the documents that the tests read.
type variantJSON struct {
	Priorities struct{ Namespace []string } `json:"default-priorities"`
	Variants   map[string]map[string]map[string][]string
}

// checkVariantFiles compares the documents in the wheels with that of the index, and the page with
// the files.
func checkVariantFiles(t *testing.T, folder string, x index.VariantIndex) {
	t.Helper()
	var all variantJSON
	if err := json.Unmarshal(readFile(t, filepath.Join(folder, "deepspeed-0.19.8+torch2.15.cu132-variants.json")), &all); err != nil {
		t.Fatal(err)
	}
	want := map[string]map[string]map[string][]string{
		"cpu.v2":       {"x86_64": {"level": {"v2"}}},
		"sm80.sm86.v3": {"nvidia": {"sm_arch": {"80_real", "86_real"}, "cuda_version_lower_bound": {"13.0", "13.2"}}, "x86_64": {"level": {"v3"}}},
		"sm90.v3":      {"nvidia": {"sm_arch": {"90_real"}, "cuda_version_lower_bound": {"13.0", "13.2"}}, "x86_64": {"level": {"v3"}}},
		"ptx90.v3": {"nvidia": {
			"sm_arch":                  {"90_virtual", "100_virtual", "110_virtual", "120_virtual", "130_virtual", "140_virtual", "150_virtual"},
			"cuda_version_lower_bound": {"13.2"},
		}, "x86_64": {"level": {"v3"}}},
	}
	if !reflect.DeepEqual(all.Variants, want) || !slices.Equal(all.Priorities.Namespace, []string{"nvidia", "x86_64"}) {
		t.Errorf("%+v", all)
	}
	page := string(readFile(t, filepath.Join(folder, "index.html")))
	for _, v := range x.Variants {
		if !strings.Contains(page, `href="`+strings.ReplaceAll(v.Name, "+", "%2B")+"#sha256="+v.SHA256) {
			t.Errorf("the page lacks %s", v.Name)
		}
		text, inside := wheeltest.Read(t, filepath.Join(folder, v.Name))["deepspeed-0.19.8+torch2.15.cu132.dist-info/variant.json"]
		if v.Label == "" {
			if inside {
				t.Error("the plain wheel has a variant.json")
			}
			continue
		}
		if !strings.HasSuffix(v.Name, "-"+v.Label+".whl") {
			t.Error(v.Name)
		}
		var own variantJSON
		if err := json.Unmarshal([]byte(text), &own); err != nil {
			t.Fatal(err)
		}
		if len(own.Variants) != 1 || !reflect.DeepEqual(own.Variants[v.Label], all.Variants[v.Label]) {
			t.Errorf("%s says %+v", v.Name, own.Variants)
		}
	}
}

// Wheels among which an installer of variants would choose otherwise than dsbuild are refused.
func TestVariantsRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "www")
	opt := index.Options{Dir: dir, Variants: true, Wheels: []string{
		build(t, t.TempDir(), wheeltest.Options{Ops: device("8.0"), CPU: wheel.CPUv4}, evening),
		build(t, t.TempDir(), wheeltest.Options{Ops: device("8.6"), CPU: wheel.CPUv3}, evening),
	}}
	_, err := index.Write(t.Context(), opt)
	conflict := new(index.ConflictError)
	if !errors.As(err, &conflict) || !strings.Contains(err.Error(), "is for a nearer GPU and") {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was written: %v", err)
	}
	opt.Wheels = append(opt.Wheels, build(t, t.TempDir(), wheeltest.Options{Ops: device("8.6"), CPU: wheel.CPUv4}, evening))
	write(t, opt)
}
