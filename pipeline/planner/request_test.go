package planner

import (
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/wheel"
)

// A request with a value that has no meaning is wrong usage, and its hint names what may be meant.
func TestRequestWithoutMeaning(t *testing.T) {
	t.Parallel()
	tables, err := compat.NewTables()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		request    Request
		text, hint string
	}{
		"ABI":              {Request{ABI: "stabel"}, `--abi stabel: must be auto, stable or torch`, "did you mean stable?"},
		"ABI, far":         {Request{ABI: "c"}, `--abi c: must be`, ""},
		"arch":             {Request{Archs: []string{"eight"}}, "eight", ""},
		"GPU as arch":      {Request{Archs: []string{"A100"}}, "A100", "did you mean --gpu A100?"},
		"CPU":              {Request{CPU: "x86-64-v9"}, "--cpu ", ""},
		"CPU, AVX-512":     {Request{CPU: "AVX512F"}, "--cpu ", ""},
		"CPU, AVX2":        {Request{CPU: "avx2"}, "--cpu ", ""},
		"CPU, SSE":         {Request{CPU: "sse4.2"}, "--cpu ", ""},
		"CPU, natvie":      {Request{CPU: "natvie"}, "--cpu ", "did you mean native?"},
		"CPU, none":        {Request{CPU: "v9"}, "--cpu v9: must be x86-64-v2 (SSE4.2), x86-64-v3 (AVX2), x86-64-v4 (AVX-512), armv8-a (of aarch64), or native", ""},
		"torch":            {Request{Torch: "foo"}, "--torch foo: must be X.Y or X.Y.Z", ""},
		"torch, a major":   {Request{Torch: "2"}, "--torch 2: must be X.Y or X.Y.Z", ""},
		"torch of pip":     {Request{Torch: "torch==2.7.1"}, "--torch torch==2.7.1: must be X.Y or X.Y.Z", "did you mean 2.7.1?"},
		"torch, any patch": {Request{Torch: "2.7.*"}, "--torch 2.7.*: must be", "did you mean 2.7?"},
		"torch, nightly":   {Request{Torch: "nightly"}, "with --env PYTHON: that of an environment", ""},
		"torch, two CUDAs": {Request{Torch: "2.5.1+cu121", CUDA: "12.4"}, "--torch 2.5.1+cu121 is for CUDA 12.1, and --cuda says 12.4", "leave --cuda out"},
		"GPU, blanks":      {Request{GPUs: []string{" , "}}, "--gpu: no GPU given", ""},
		"GPU of two words": {Request{Archs: []string{"RTX 4090"}}, "RTX 4090", `did you mean --gpu "RTX 4090"?`},
		"CUDA, digits":     {Request{CUDA: "128"}, "--cuda 128: must be X or X.Y", "did you mean 12.8?"},
		"Python, a tag":    {Request{Python: "cp311"}, "--python cp311: must be X.Y", "did you mean 3.11?"},
		"CUDA":             {Request{CUDA: "cu128"}, "--cuda cu128: must be X or X.Y", "did you mean 12.8?"},
		"Python":           {Request{GPUs: []string{"A100"}, Python: "3"}, "--python 3: must be X.Y, such as 3.12", ""},
		"glibc":            {Request{Glibc: "old"}, "--glibc old: must be X.Y", ""},
		"driver":           {Request{Driver: "x"}, "--driver x: must be a version, as nvidia-smi prints it", ""},
		"machine":          {Request{Machine: "arm64"}, "--machine arm64: must be x86_64 or aarch64", ""},
		"two machines":     {Request{Machine: "aarch64", CPU: "x86-64-v3"}, "--cpu x86-64-v3 is a level of x86_64, and --machine says aarch64", "leave --machine out"},
		"no ops":           {Request{Ops: []string{}}, "--ops: no operator given", ""},
		"GPU all and more": {Request{GPUs: []string{"all,A100"}}, "--gpu all is every GPU: give it alone", ""},
		"GPU all and arch": {Request{GPUs: []string{"all"}, Archs: []string{"8.0"}}, "--gpu all is every GPU: give it alone", ""},
		"first of these":   {Request{ABI: "x", CPU: "y"}, `--abi x:`, ""},
	} {
		_, err := c.request.spec(tables)
		if err == nil || !strings.Contains(err.Error(), c.text) || !strings.Contains(fault.Hint(err), c.hint) || fault.ExitCode(err) != 2 {
			t.Errorf("%s: %v, hint %q, exit code %d", name, err, fault.Hint(err), fault.ExitCode(err))
		}
	}
}

// Each value of a request arrives in the spec.
func TestRequestBecomesSpec(t *testing.T) {
	t.Parallel()
	tables, err := compat.NewTables()
	if err != nil {
		t.Fatal(err)
	}
	r := Request{Archs: []string{"8.0"}, GPUs: []string{"H100"}, Ops: []string{"cpu_adam"}, Torch: "2.15", CUDA: "13", Python: "3.11", CPU: "x86-64-v3", Glibc: "2.28", Driver: "580.1", ABI: "stable"}
	s, err := r.spec(tables)
	if err != nil || len(s.Archs) != 1 || s.Archs[0].String() != "8.0" || !slices.Equal(s.GPUs, r.GPUs) || !slices.Equal(s.Ops, r.Ops) || s.Torch != "2.15" || s.CUDA != "13" || s.Python != "3.11" ||
		s.CPU != wheel.CPUv3 || s.Glibc != "2.28" || s.Driver != "580.1" || s.ABI != wheel.StableABI {
		t.Errorf("%+v, %v", s, err)
	}
	for _, r := range []Request{{Torch: "2.5.1+cu121"}, {Torch: "2.5.1+cu121", CUDA: "12.1"}, {Torch: "2.5.1+cu121", CUDA: "12"}, {Torch: "2.5.1+cuda12.1"}} {
		if s, err := r.spec(tables); err != nil || s.Torch != "2.5.1" || s.CUDA != "12.1" {
			t.Errorf("%+v becomes torch %q for CUDA %q, %v; want 2.5.1 for 12.1", r, s.Torch, s.CUDA, err)
		}
	}
	if s, err := (Request{GPUs: []string{"all"}}).spec(tables); err != nil || len(s.GPUs)+len(s.Archs) != 0 {
		t.Errorf("--gpu all: %+v, %v; want no GPU and no arch", s, err)
	}
	for abi, want := range map[string]wheel.ABI{"": "", "auto": "", "torch": wheel.TorchMinor, "stable": wheel.StableABI} {
		if s, err := (Request{ABI: abi}).spec(tables); err != nil || s.ABI != want || s.CPU != "" || s.Ops != nil {
			t.Errorf("%q: %+v, %v", abi, s, err)
		}
	}
	if s, err := (Request{CPU: "native"}).spec(tables); err == nil && s.CPU == "" || err != nil && fault.ExitCode(err) != 2 {
		t.Errorf("native: %+v, %v", s, err)
	}
}

// Each key of an entry sets its value, as the flag does.
func TestSet(t *testing.T) {
	t.Parallel()
	for _, key := range Keys() {
		var r Request
		r.Set(key, []string{"true"})
		if reflect.DeepEqual(r, Request{}) {
			t.Errorf("%s sets nothing", key)
		}
	}
	r := Request{GPUs: []string{"V100"}}
	r.Set("arch", []string{"8.0", "9.0"})
	r.Set("ops", []string{"a,b", "c"})
	if r.GPUs != nil || !slices.Equal(r.Archs, []string{"8.0", "9.0"}) || !slices.Equal(r.Ops, []string{"a", "b", "c"}) {
		t.Errorf("%+v", r)
	}
}

func TestFlagsAsKeys(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"--torch 2.8.0 has no --python 3.9": "torch: 2.8.0 has no python: 3.9", "--cpu: bad": "cpu: bad", "--retries 3": "--retries 3", "a--torch": "a--torch", "": "",
	} {
		if got := flagsAsKeys(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// dryPlanner is a planner that plans without an engine.
func dryPlanner(t *testing.T) *Planner {
	t.Helper()
	site, err := pipeline.NewSite(pipeline.SiteOptions{}, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	report := ui.New(io.Discard, ui.Options{})
	backend := NewBackend(BackendOptions{Kind: Dagger, Site: site, Environ: os.Environ(), Report: report})
	t.Cleanup(func() { backend.Close() })
	p, err := New(t.Context(), Options{Backend: backend, DryRun: true, Report: report})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// The same request gives the same plan, another one another plan, and neither needs an engine.
func TestPlanWithoutEngine(t *testing.T) {
	t.Parallel()
	p := dryPlanner(t)
	plan := func(r Request) (*pipeline.Plan, string) {
		target, err := p.OpenTarget(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		made, request, err := p.PlanWithoutEngine(t.Context(), r, target)
		if err != nil {
			t.Fatal(err)
		}
		return made, request
	}
	one, key := plan(Request{Archs: []string{"8.0"}})
	same, sameKey := plan(Request{Archs: []string{"8.0"}, CPU: "x86-64-v3"})
	if one.Digest != same.Digest || key != sameKey || key == "" {
		t.Errorf("%s and %s, %s and %s", one.Digest, same.Digest, key, sameKey)
	}
	if other, otherKey := plan(Request{Archs: []string{"9.0"}}); other.Digest == one.Digest || otherKey == key {
		t.Error("another arch gives the same plan")
	}
	target, err := p.OpenTarget(t.Context(), Request{Archs: []string{"8.0"}})
	if err != nil {
		t.Fatal(err)
	}
	again, err := p.Retarget(t.Context(), target, Request{Archs: []string{"9.0"}})
	if err != nil || again.Spec.DeepSpeed != target.Spec.DeepSpeed || again.Spec.Archs[0].String() != "9.0" || target.Spec.Archs[0].String() != "8.0" {
		t.Errorf("%+v, %v", again.Spec, err)
	}
	if _, err := p.Retarget(t.Context(), target, Request{ABI: "x"}); fault.ExitCode(err) != 2 {
		t.Error(err)
	}
	if _, err := p.OpenTarget(t.Context(), Request{Archs: []string{"8.0"}, DeepSpeed: filepath.Join(t.TempDir(), "none")}); err == nil {
		t.Error("sources that are not there are opened")
	}
}

// Lines arrive one by one, however they are written.
func TestLineWriter(t *testing.T) {
	t.Parallel()
	var got []string
	w := &lineWriter{line: func(s string) { got = append(got, s) }}
	for _, part := range []string{"a", "b\n", "\n \nc\r\nd", "e\nrest"} {
		if n, err := w.Write([]byte(part)); n != len(part) || err != nil {
			t.Fatal(n, err)
		}
	}
	if !slices.Equal(got, []string{"ab", "c", "de"}) {
		t.Errorf("%q", got)
	}
}
