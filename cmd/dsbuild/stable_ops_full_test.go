//go:build full

package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/wheel"
)

// stableOps returns the ops that claim to be loadable with the stable ABI, and fails if none does.
func stableOps(t *testing.T) []string {
	t.Helper()
	tables, err := compat.NewTables()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, op := range tables.Ops {
		if slices.Contains([]compat.ProofState{compat.Ran, compat.Launched, compat.Loaded}, op.StableState()) {
			names = append(names, op.Name)
		}
	}
	if len(names) == 0 {
		t.Fatal("no op claims it")
	}
	return chosenOps(names)
}

// chosenOps returns the ops that DSBUILD_TEST_OPS names, or all: to compile them takes hours on few cores.
func chosenOps(all []string) []string {
	if some := os.Getenv("DSBUILD_TEST_OPS"); some != "" {
		return strings.Split(some, ",")
	}
	return all
}

// exposedOp is what testdata/stable/exposed.py says of an op.
type exposedOp struct {
	File    string
	Exposed any // the functions, classes and values of its module
	Answers any // what calls without a GPU return
}

// exposedBy loads ops of an unpacked wheel.
func exposedBy(t *testing.T, interpreter, deepspeed string, ops []string) map[string]exposedOp {
	t.Helper()
	told, err := runWith(t, interpreter, deepspeed, append([]string{absolute(t, "testdata/stable/exposed.py")}, ops...)...)
	shown := map[string]exposedOp{}
	if err == nil {
		err = json.Unmarshal([]byte(told), &shown)
	}
	if err != nil || len(shown) != len(ops) {
		t.Fatalf("%d of %d ops: %v\n%s", len(shown), len(ops), err, told)
	}
	return shown
}

// driverStandIn makes a library to load in place of the GPU's driver, which gds is linked with.
func driverStandIn(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	file, source := filepath.Join(dir, "libcuda.so.1"), filepath.Join(dir, "driver.c")
	if err := os.WriteFile(source, []byte("int cuGetErrorName(void) { return 3; /* not initialized */ }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	command(t, ".", "gcc", "-shared", "-fPIC", source, "-Wl,-soname,libcuda.so.1", "-o", file)
	t.Setenv("DSBUILD_DRIVER", file)
}

// auditedTorchABI is what torch-abi-audit says of an extension.
type auditedTorchABI struct {
	Path  string
	Torch struct {
		Stable   bool
		Unstable []string `json:"unstable_symbols"`
		Unknown  []string `json:"unknown_shim_symbols"`
		Min      string   `json:"min_torch_version"`
	}
}

// compareWithAudit checks what dsbuild reads from the symbols of a wheel against torch-abi-audit.
func compareWithAudit(t *testing.T, path, unpacked string) {
	t.Helper()
	var audited struct {
		Extensions, Bundled []auditedTorchABI
	}
	// It prints what it found also where that is not stable.
	out := fullTool(t, "torch-abi-audit", "--json", filepath.Join(unpacked, "deepspeed"))
	if err := json.Unmarshal([]byte(strings.ReplaceAll(out, `"bundled_libs"`, `"bundled"`)), &audited); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	read, err := wheel.Inspect(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	files := slices.Concat(audited.Extensions, audited.Bundled)
	if len(files) != len(read.Extensions) {
		t.Errorf("torch-abi-audit sees %d extensions, dsbuild %d", len(files), len(read.Extensions))
	}
	stable, oldest := true, ""
	for _, f := range files {
		// It takes pin_memory's class, which gds and async_io use, for torch's: its methods have tensors
		// among their parameters. Both libraries come from this build.
		f.Torch.Unstable = slices.DeleteFunc(f.Torch.Unstable, func(name string) bool {
			return strings.HasPrefix(name, "deepspeed_pin_tensor_t::") || strings.Contains(name, "22deepspeed_pin_tensor_t")
		})
		f.Torch.Stable = len(f.Torch.Unstable) == 0
		stable, oldest = stable && f.Torch.Stable, max(oldest, f.Torch.Min)
		if len(f.Torch.Unknown) > 0 {
			t.Errorf("torch-abi-audit: %+v", f)
		}
	}
	if stable != read.TorchABI.IsStable() || stable && oldest != read.TorchABI.Min+".0" {
		t.Errorf("torch-abi-audit says stable %v from torch %s on, dsbuild %+v", stable, oldest, read.TorchABI)
	}
	t.Logf("result: torch-abi-audit: %d extensions of %s: stable %v %s", len(files), filepath.Base(path), stable, oldest)
}

// Every op that claims it is built over the stable ABI, loads with each torch for CUDA 13, shows
// Python the same functions and classes as in the wheel for one torch, and answers the same where no
// GPU is needed. Both programs that read the ABI from the symbols say the same of both wheels.
func TestFullABIOfAllOps(t *testing.T) {
	hostPackages(t, "libaio-dev")
	driverStandIn(t)
	ops := stableOps(t)
	stable, stableFiles := buildForABI(t, "stable", ops)
	var want map[string]exposedOp
	for _, pair := range stablePairs() {
		if pair.torch == "2.10.0" {
			continue // it is for CUDA 12, and refuses device code: TestFullStable
		}
		t.Run("torch"+pair.torch+"-python"+pair.python, func(t *testing.T) {
			env := newStableEnvironment(t, pair, stable.Manifest.Requires...)
			shown := exposedBy(t, env.python, stableFiles, ops)
			t.Logf("result: torch %s, Python %s: %d ops loaded", pair.torch, pair.python, len(shown))
			if pair == stockPair() {
				want = shown
				_, stockFiles := buildForABI(t, "torch", ops)
				compareWithStock(t, want, exposedBy(t, env.python, stockFiles, ops))
			}
			for _, op := range ops {
				if !reflect.DeepEqual(shown[op], want[op]) {
					t.Errorf("%s\nthis torch %v\n%s %v", op, shown[op], stockPair().torch, want[op])
				}
			}
		})
	}
}

// buildForABI builds a wheel of ops for the stock pair, and compares its ABI with torch-abi-audit.
func buildForABI(t *testing.T, abi string, ops []string) (built wheel.Artifact, files string) {
	t.Helper()
	built = build(t, "--abi", abi, "--ops", strings.Join(ops, ","), "--arch", "8.0", "--torch", stockPair().torch, "--python", stockPair().python, "--builder", "host", "-o", t.TempDir())
	files = unzipped(t, built.Path)
	compareWithAudit(t, built.Path, files)
	t.Logf("result: --abi %s: %d ops, %d bytes, built in %.0f s", abi, len(ops), built.Size, built.Seconds)
	return built, files
}

// compareWithStock compares what ops of the stable ABI show to Python with those of the wheel for one torch.
func compareWithStock(t *testing.T, stable, stock map[string]exposedOp) {
	t.Helper()
	for op, shown := range stable {
		if !strings.HasPrefix(filepath.Base(shown.File), "lib") {
			t.Errorf("%s was loaded from %s", op, shown.File)
		}
		want := stock[op]
		want.File = shown.File
		if !reflect.DeepEqual(shown, want) {
			t.Errorf("%s\nstable %v\nstock  %v", op, shown, want)
		}
	}
}

// Tuples, optional values and constructors are bound over the stable ABI as by pybind11: the same
// source answers the same, and refuses the same, by both.
func TestFullStableBindings(t *testing.T) {
	hostPackages(t)
	interpreter := pythonWithTorch(t, stockPair().torch, stockPair().python)
	torch := strings.TrimSpace(command(t, ".", interpreter, "-W", "ignore", "-c", "import os, torch; print(os.path.dirname(torch.__file__))"))
	headers := filepath.Join(torch, "include")
	python := strings.TrimSpace(command(t, ".", interpreter, "-c", "import sysconfig; print(sysconfig.get_path('include'))"))
	scripts, source, program := absolute(t, "../../pipeline/scripts/stable"), absolute(t, "testdata/stable/bound.cpp"), absolute(t, "testdata/stable/bound.py")
	dir := t.TempDir()
	// Of torch's headers only those of the stable ABI, as in a build.
	for _, name := range []string{"torch/headeronly", "torch/csrc/stable", "torch/csrc/inductor/aoti_torch/c", "torch/csrc/inductor/aoti_torch/generated"} {
		link := filepath.Join(dir, "thin", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(link), 0o755), os.Symlink(filepath.Join(headers, name), link)); err != nil {
			t.Fatal(err)
		}
	}
	compile := []string{"-std=c++20", "-shared", "-fPIC", "-O0", "-w", "-DTORCH_EXTENSION_NAME=bound", source, "-L" + filepath.Join(torch, "lib"), "-Wl,--no-as-needed"}
	stable, stock := filepath.Join(dir, "libbound.so"), filepath.Join(dir, "bound.so")
	command(t, ".", "g++", slices.Concat(compile, []string{
		"-o", stable, "-fvisibility=hidden", "-fno-gnu-unique", "-DTORCH_TARGET_VERSION=0x020a000000000000ULL",
		"-I" + filepath.Join(scripts, "include"), "-I" + filepath.Join(dir, "thin"), "-ltorch_cpu",
	})...)
	command(t, ".", "g++", slices.Concat(compile, []string{
		"-o", stock, "-I" + headers, "-I" + filepath.Join(headers, "torch", "csrc", "api", "include"), "-I" + python, "-ltorch_python", "-ltorch_cpu", "-ltorch", "-lc10",
	})...)
	want, err := runWith(t, interpreter, "", program, stock)
	if err != nil {
		t.Fatal(want)
	}
	got, err := runWith(t, interpreter, "", program, stable, filepath.Join(scripts, "loader.py"))
	if err != nil || got != want {
		t.Errorf("%v\nstable   %s\npybind11 %s", err, got, want)
	}
}
