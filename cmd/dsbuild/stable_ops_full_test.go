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

// exposure is what the ops of the stable ABI show to Python under the stock torch, as they must under every other.
type exposure struct {
	ops      []string
	manifest wheel.Manifest // of the wheel with all ops
	files    string
	want     map[string]exposedOp
}

// newExposure checks that both wheels with all ops have what torch-abi-audit finds in them, and that each op that claims the
// stable ABI is in one, and compares what the ops of both show to Python.
func newExposure(t *testing.T, interpreter string, stable, stock wheel.Artifact) exposure {
	t.Helper()
	driverStandIn(t)
	x := exposure{ops: stableOps(t), manifest: stable.Manifest, files: unzipped(t, stable.Path)}
	for _, op := range x.ops {
		if !slices.Contains(stable.Manifest.Ops, op) {
			t.Errorf("op %s is not in %s", op, filepath.Base(stable.Path))
		}
	}
	stockFiles := unzipped(t, stock.Path)
	compareWithAudit(t, stable.Path, x.files)
	compareWithAudit(t, stock.Path, stockFiles)
	x.want = exposedBy(t, interpreter, x.files, x.ops)
	compareWithStock(t, x.want, exposedBy(t, interpreter, stockFiles, x.ops))
	return x
}

// prove compares what the ops show under another torch. Those that the wheel has for its CUDA must load.
func (x exposure) prove(t *testing.T, interpreter string, pair stablePair, cuda string) {
	t.Helper()
	loadable := x.manifest.OpsFor(cuda)
	ops := slices.DeleteFunc(slices.Clone(x.ops), func(op string) bool { return !slices.Contains(loadable, op) })
	shown := exposedBy(t, interpreter, x.files, ops)
	t.Logf("result: torch %s, CUDA %s, Python %s: %d of %d ops loaded", pair.torch, cuda, pair.python, len(shown), len(x.ops))
	for _, op := range ops {
		want := x.want[op]
		want.File = strings.Replace(want.File, ".cu13.", ".cu"+wheel.Major(cuda)+".", 1)
		if !reflect.DeepEqual(shown[op], want) {
			t.Errorf("%s\nthis torch %v\n%s %v", op, shown[op], stockPair().torch, want)
		}
	}
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
