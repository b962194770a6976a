package planner

import (
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/wheel"
)

// requestOf sets what the lines say, KEY TEXT each, as the flags do.
func requestOf(lines ...string) (r wheel.Request, err error) {
	for _, key := range Keys() {
		for _, line := range lines {
			if of, text, _ := strings.Cut(line, " "); of == key && err == nil {
				err = Set(&r, key, text)
			}
		}
	}
	return r, err
}

// A request with a value that has no meaning is wrong usage, and its hint names what may be meant.
func TestRequestWithoutMeaning(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lines      []string
		text, hint string
	}{
		"ABI":              {[]string{"abi stabel"}, `invalid value "stabel" for --abi: want auto, stable or torch`, "did you mean stable?"},
		"ABI, far":         {[]string{"abi c"}, `invalid value "c" for --abi: want`, ""},
		"arch":             {[]string{"arch eight"}, "eight", ""},
		"GPU as arch":      {[]string{"arch A100"}, "A100", "did you mean --gpu A100?"},
		"CPU":              {[]string{"cpu x86-64-v9"}, " for --cpu: want ", ""},
		"CPU, AVX-512":     {[]string{"cpu AVX512F"}, " for --cpu: want ", ""},
		"CPU, AVX2":        {[]string{"cpu avx2"}, " for --cpu: want ", ""},
		"CPU, SSE":         {[]string{"cpu sse4.2"}, " for --cpu: want ", ""},
		"CPU, natvie":      {[]string{"cpu natvie"}, " for --cpu: want ", "did you mean native?"},
		"CPU, none":        {[]string{"cpu v9"}, "invalid value \"v9\" for --cpu: want x86-64-v2 (SSE4.2), x86-64-v3 (AVX2), x86-64-v4 (AVX-512), armv8-a (aarch64) or native", ""},
		"torch":            {[]string{"torch foo"}, "invalid value \"foo\" for --torch: want X.Y or X.Y.Z", ""},
		"torch, a major":   {[]string{"torch 2"}, "invalid value \"2\" for --torch: want X.Y or X.Y.Z", ""},
		"torch of pip":     {[]string{"torch torch==2.7.1"}, "invalid value \"torch==2.7.1\" for --torch: want X.Y or X.Y.Z", "did you mean 2.7.1?"},
		"torch, any patch": {[]string{"torch 2.7.*"}, "invalid value \"2.7.*\" for --torch: want", "did you mean 2.7?"},
		"torch, nightly":   {[]string{"torch nightly"}, "with --env PYTHON: the environment's", ""},
		"torch, two CUDAs": {[]string{"torch 2.5.1+cu121", "cuda 12.4"}, "--torch 2.5.1+cu121 is for CUDA 12.1, but --cuda is 12.4", "omit --cuda"},
		"GPU, blanks":      {[]string{"gpu  , "}, "--gpu: empty value", ""},
		"GPU of two words": {[]string{"arch RTX 4090"}, "RTX 4090", `did you mean --gpu "RTX 4090"?`},
		"CUDA, digits":     {[]string{"cuda 128"}, "invalid value \"128\" for --cuda: want X or X.Y", "did you mean 12.8?"},
		"Python, a tag":    {[]string{"python cp311"}, "invalid value \"cp311\" for --python: want X.Y", "did you mean 3.11?"},
		"CUDA":             {[]string{"cuda cu128"}, "invalid value \"cu128\" for --cuda: want X or X.Y", "did you mean 12.8?"},
		"Python":           {[]string{"gpu A100", "python 3"}, "invalid value \"3\" for --python: want X.Y, such as 3.12", ""},
		"glibc":            {[]string{"target-glibc old"}, "invalid value \"old\" for --target-glibc: want X.Y", ""},
		"driver":           {[]string{"min-driver x"}, "invalid value \"x\" for --min-driver: want a version, as nvidia-smi prints it", ""},
		"machine":          {[]string{"machine arm64"}, "invalid value \"arm64\" for --machine: want x86_64, aarch64 or all", ""},
		"two machines":     {[]string{"machine aarch64", "cpu x86-64-v3"}, "--cpu x86-64-v3 is a level of x86_64, but --machine is aarch64", "omit --machine"},
		"no ops":           {[]string{"ops ,"}, "--ops: empty value", ""},
		"GPU all and more": {[]string{"gpu all,A100"}, "--gpu all cannot be combined", ""},
		"GPU more and all": {[]string{"gpu A100", "gpu all"}, "--gpu all cannot be combined", ""},
		"GPU all and arch": {[]string{"gpu all", "arch 8.0"}, "--gpu all cannot be combined", ""},
	} {
		_, err := requestOf(c.lines...)
		if err == nil || !strings.Contains(err.Error(), c.text) || !strings.Contains(fault.Hint(err), c.hint) || fault.ExitCode(err) != 2 {
			t.Errorf("%s: %v, hint %q, exit code %d", name, err, fault.Hint(err), fault.ExitCode(err))
		}
	}
}

// The words of an error for a file are those of its keys.
func TestFileText(t *testing.T) {
	t.Parallel()
	_, wrong := requestOf("torch torch==2.7.1")
	_, arch := requestOf("arch A100")
	_, cpu := requestOf("cpu x86-64-v3", "machine aarch64")
	tables, err := compat.NewTables()
	if err != nil {
		t.Fatal(err)
	}
	for err, want := range map[error][2]string{
		wrong: {`invalid value "torch==2.7.1" for torch: want X.Y or X.Y.Z (default: the newest compatible release`, "did you mean 2.7.1?"},
		arch:  {`arch "A100": not a compute capability`, "did you mean gpu: A100?"},
		cpu:   {"cpu: x86-64-v3 is a level of x86_64, but machine: is aarch64", "omit machine:"},

		tables.CheckGPU("A10O"): {`GPU "A10O" is not in dsbuild's tables`, "did you mean A100?"},
	} {
		if text, hint := FileText(err); !strings.HasPrefix(text, want[0]) || !strings.Contains(hint, want[1]) {
			t.Errorf("%v: %q, hint %q", err, text, hint)
		}
	}
}

// Each key sets its value. Texts of a list are added, and torch may name its CUDA.
func TestSet(t *testing.T) {
	t.Parallel()
	r, err := requestOf("arch 8.0", "arch 9.0;8.6+PTX", "gpu H100", "gpu A100, L4", "ops cpu_adam, utils", "ops fused_adam", "torch 2.15", "cuda 13", "python 3.11", "cpu x86-64-v3", "machine x86_64",
		"target-glibc 2.28", "min-driver 580.1", "abi stable", "base debian:12", "keep-debug true")
	want := wheel.Request{
		Archs: []wheel.Arch{{Major: 8}, {Major: 8, Minor: 6, PTX: true}, {Major: 9}}, GPUs: []string{"H100", "A100", "L4"}, Ops: []string{"cpu_adam", "utils", "fused_adam"},
		Torch: "2.15", CUDA: "13", Python: "3.11", Machine: wheel.X86, CPU: wheel.CPUv3, Glibc: "2.28", Driver: "580.1", ABI: wheel.StableABI, Base: "debian:12", KeepDebug: true,
	}
	if err != nil || !reflect.DeepEqual(r, want) {
		t.Errorf("%+v, %v", r, err)
	}
	for _, lines := range [][]string{{"torch 2.5.1+cu121"}, {"torch 2.5.1+cu121", "cuda 12.1"}, {"torch 2.5.1+cu121", "cuda 12"}, {"torch 2.5.1+cuda12.1"}} {
		r, err := requestOf(lines...)
		if r = narrowed(r); err != nil || r.Torch != "2.5.1" || r.CUDA != "12.1" {
			t.Errorf("%q becomes torch %q for CUDA %q, %v; want 2.5.1 for 12.1", lines, r.Torch, r.CUDA, err)
		}
	}
	if r, err := requestOf("gpu all"); err != nil || len(narrowed(r).GPUs)+len(r.Archs) != 0 {
		t.Errorf("--gpu all: %+v, %v; want no GPU and no arch", r, err)
	}
	for abi, want := range map[string]wheel.ABI{"auto": "", "torch": wheel.TorchMinor, "stable": wheel.StableABI} {
		if r, err := requestOf("abi " + abi); err != nil || !reflect.DeepEqual(r, wheel.Request{ABI: want}) {
			t.Errorf("%q: %+v, %v", abi, r, err)
		}
	}
	if r, err := requestOf("machine aarch64"); err != nil || r.Machine != wheel.Arm {
		t.Errorf("%+v, %v", r, err)
	}
	for text, want := range map[string]wheel.CPULevel{"x86-64-v2": wheel.CPUv2, "v4": wheel.CPUv4, "armv8-a": wheel.CPUArm} {
		if r, err := requestOf("cpu " + text); err != nil || r.CPU != want {
			t.Errorf("cpu %s: %q, %v; want %s", text, r.CPU, err, want)
		}
	}
	if r, err := requestOf("cpu native"); err == nil && r.CPU == "" || err != nil && fault.ExitCode(err) != 2 {
		t.Errorf("native: %+v, %v", r, err)
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

// openPlanner plans for a kind of backend.
func openPlanner(t *testing.T, kind, source string) (*Planner, error) {
	t.Helper()
	network, err := pipeline.NewNetwork(pipeline.NetworkOptions{}, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	report := ui.New(io.Discard, ui.Options{})
	backend := NewBackend(BackendOptions{Kind: kind, Network: network, Environ: os.Environ(), Report: report})
	t.Cleanup(backend.Close)
	p, err := Open(t.Context(), Options{Report: report}, backend, source)
	if err == nil {
		t.Cleanup(p.Close)
	}
	return p, err
}

// The same request gives the same plan, another one another plan, and neither needs an engine.
func TestSketch(t *testing.T) {
	t.Parallel()
	p, err := openPlanner(t, Dagger, "")
	if err != nil {
		t.Fatal(err)
	}
	sketch := func(lines ...string) *pipeline.Plan {
		r, err := requestOf(lines...)
		if err != nil {
			t.Fatal(err)
		}
		plan, err := p.Sketch(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		return plan
	}
	one, same, other := sketch("arch 8.0"), sketch("arch 8.0", "machine x86_64", "torch 2.10"), sketch("arch 9.0")
	if one.Digest != same.Digest || one.Key != same.Key || one.Key == "" || one.Source.Version == "" {
		t.Errorf("%s and %s, %s and %s", one.Digest, same.Digest, one.Key, same.Key)
	}
	if other.Digest == one.Digest || other.Key == one.Key {
		t.Error("another arch gives the same plan")
	}
	if here := p.SketchHere(t.Context(), wheel.Request{}); here != nil {
		t.Errorf("an engine builds, but there is a plan for this machine: %+v", here.Base)
	}
	if p, err = openPlanner(t, Host, ""); err != nil {
		t.Fatal(err)
	}
	if here := p.SketchHere(t.Context(), wheel.Request{}); here == nil || !here.Base.Host {
		t.Errorf("this machine builds, but its plan is %+v", here)
	}
	if _, err := openPlanner(t, Dagger, filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("sources that are not there are opened")
	}
}
