//go:build full

package fakecuda

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/internal/testkit/python"
)

// The release of torch that the wheels are built for, and another that the wheel of the stable ABI serves too.
const (
	builtFor   = "2.15.0"
	otherTorch = "2.11.0"
	pythonOf   = "3.11"
)

// environment has torch for CUDA 13, NVIDIA's headers and cuobjdump, and the stand-ins.
type environment struct {
	python    string // its interpreter
	libraries string // the folder of the stand-ins
	path      string // PATH with its cuobjdump
}

func newEnvironment(t *testing.T, torch string) environment {
	t.Helper()
	interpreter, err := python.Find(t.Context(), pythonOf)
	if err != nil {
		t.Fatal(err)
	}
	uv, err := python.GetUV(t.Context(), interpreter, func(line string) { t.Log(line) })
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "torch")
	if err := uv.Venv(t.Context(), interpreter, dir); err != nil {
		t.Fatal(err)
	}
	e := environment{python: filepath.Join(dir, "bin/python"), libraries: filepath.Join(t.TempDir(), "lib")}
	packages := []string{"torch==" + torch, "numpy", "nvidia-curand", "nvidia-cuda-crt", "nvidia-cuda-cuobjdump"}
	if err := uv.Run(t.Context(), append([]string{"pip", "install", "--quiet", "--no-cache", "--python", e.python}, packages...)...); err != nil {
		t.Fatal(err)
	}
	site := filepath.Join(dir, "lib", "python"+pythonOf, "site-packages")
	e.path = filepath.Join(site, "nvidia/cu13/bin") + ":" + os.Getenv("PATH")
	e.run(t, "build.py", site, e.libraries)
	return e
}

// run runs a script of this folder and returns its output. A script that compares ends with 1 if it found differences;
// a program over a mutant may die.
func (e environment) run(t *testing.T, script string, arguments ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), e.python, append([]string{script}, arguments...)...)
	cmd.Env = append(os.Environ(), "PATH="+e.path)
	var out, errors bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errors
	overMutant := script == "record.py" && strings.HasSuffix(arguments[len(arguments)-1], ".so")
	if err := cmd.Run(); err != nil && !overMutant && (script != "compare.py" || cmd.ProcessState.ExitCode() != 1) {
		t.Fatalf("%s %v: %v\n%s%s", script, arguments, err, out.Bytes(), errors.Bytes())
	}
	return out.Bytes()
}

// tableOfKernels writes the table of the kernels of an unpacked wheel.
func (e environment) tableOfKernels(t *testing.T, wheel string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kernels")
	if err := os.WriteFile(file, e.run(t, "devicecode.py", append([]string{"kernels"}, libraries(t, wheel)...)...), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// decode reads the JSON of a script.
func decode[T any](t *testing.T, text []byte) T {
	t.Helper()
	var value T
	if err := json.Unmarshal(text, &value); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return value
}

// opsWithDeviceCode returns the ops with device code, or those that DSBUILD_TEST_OPS names.
func opsWithDeviceCode(t *testing.T) []string {
	t.Helper()
	if some := os.Getenv("DSBUILD_TEST_OPS"); some != "" {
		return strings.Split(some, ",")
	}
	tables, err := compat.NewTables()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, op := range tables.Ops {
		if op.DeviceCode {
			names = append(names, op.Name)
		}
	}
	return names
}

// builtWheel builds a wheel for A100 with dsbuild and unpacks it.
func builtWheel(t *testing.T, abi string, ops []string) string {
	t.Helper()
	out := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "../../bin/dsbuild", "wheel", "--arch", "8.0", "--abi", abi, "--torch", builtFor, "--python", pythonOf,
		"--ops", strings.Join(ops, ","), "-o", out)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("dsbuild wheel --abi %s: %v\n%s", abi, err, text)
	}
	files, err := filepath.Glob(filepath.Join(out, "*.whl"))
	if err != nil || len(files) != 1 {
		t.Fatalf("wheels in %s: %v, %v; want one", out, files, err)
	}
	archive, err := zip.OpenReader(files[0])
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close() //nolint:errcheck // was read
	dir := t.TempDir()
	if err := os.CopyFS(dir, archive); err != nil {
		t.Fatal(err)
	}
	return dir
}

// codeOfOp is what devicecode.py says of an op.
type codeOfOp struct {
	Kernels, Same, Bytes, PTX int
	Differences               []string
}

// callsOfOp is what compare.py says of an op's scenarios.
type callsOfOp struct {
	Cases, Calls, Launches, Errors int
	Unknown                        int `json:"launches with unknown arguments"`
	Kernels                        []string
	Differences                    []string
}

// Wheels of both ABIs hold the same device code, and ask CUDA for the same.
func TestFullStableLaunches(t *testing.T) {
	ops := opsWithDeviceCode(t)
	stock, stable := builtWheel(t, "torch", ops), builtWheel(t, "stable", ops)
	e, other := newEnvironment(t, builtFor), newEnvironment(t, otherTorch)
	code := decode[map[string]codeOfOp](t, e.run(t, "devicecode.py", "compare", stock, stable))
	kernels := e.tableOfKernels(t, stable)
	for _, op := range ops {
		t.Run(op, func(t *testing.T) {
			c := code[op]
			hasKernels := op != "ragged_ops" // which asks CUDA for memory alone
			if len(c.Differences) > 0 || (c.Kernels > 0) != hasKernels || c.Same != c.Kernels {
				t.Errorf("device code: %d of %d kernels are the same; want all: %s", c.Same, c.Kernels, strings.Join(c.Differences, "\n"))
			}
			dir := t.TempDir()
			record := func(e environment, name, wheel string) string {
				path := filepath.Join(dir, name)
				e.run(t, "record.py", e.python, e.libraries, kernels, wheel, op, path)
				return path
			}
			ofStable := record(e, "stable", stable)
			calls := decode[callsOfOp](t, e.run(t, "compare.py", record(e, "torch", stock), ofStable))
			if len(calls.Differences) > 0 || calls.Calls == 0 || (calls.Launches > 0) != hasKernels || calls.Unknown > 0 {
				t.Errorf("%d launches, %d of them with unknown arguments; %d cases differ; want none:\n%s", calls.Launches, calls.Unknown,
					len(calls.Differences), strings.Join(first(calls.Differences, 5), "\n"))
			}
			elsewhere := decode[callsOfOp](t, e.run(t, "compare.py", "--other-torch", ofStable, record(other, "other", stable)))
			if len(elsewhere.Differences) > 0 {
				t.Errorf("under torch %s %d cases differ; want none:\n%s", otherTorch, len(elsewhere.Differences), strings.Join(first(elsewhere.Differences, 5), "\n"))
			}
			t.Logf("result: %s: %d of %d kernels the same (%d bytes of code, %d texts of PTX); %d cases, %d launches of %d of its kernels, equal in both wheels, and under torch %s",
				op, c.Same, c.Kernels, c.Bytes, c.PTX, calls.Cases, calls.Launches, len(calls.Kernels), otherTorch)
		})
	}
}

// Ops over a broken stable ABI are told apart.
func TestFullStableMutants(t *testing.T) {
	const op = "fused_adam"
	stable := builtWheel(t, "stable", []string{op})
	e, dir := newEnvironment(t, builtFor), t.TempDir()
	kernels := e.tableOfKernels(t, stable)
	whole := filepath.Join(dir, "whole")
	e.run(t, "record.py", e.python, e.libraries, kernels, stable, op, whole)
	mutants, err := filepath.Glob("mutants/*.c")
	if err != nil || len(mutants) != 3 {
		t.Fatalf("mutants %v, %v; want 3", mutants, err)
	}
	for _, source := range mutants {
		mutant, record := filepath.Join(dir, filepath.Base(source)+".so"), filepath.Join(dir, filepath.Base(source)+".record")
		if out, err := exec.CommandContext(t.Context(), "gcc", "-shared", "-fPIC", source, "-o", mutant).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", source, err, out)
		}
		e.run(t, "record.py", e.python, e.libraries, kernels, stable, op, record, mutant)
		calls := decode[callsOfOp](t, e.run(t, "compare.py", whole, record))
		if len(calls.Differences) == 0 {
			t.Errorf("%s: no case differs; want some", source)
		}
		t.Logf("result: %s is noticed in %d of %d cases", source, len(calls.Differences), calls.Cases)
	}
}

// libraries returns the libraries of the ops of an unpacked wheel.
func libraries(t *testing.T, wheel string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(filepath.Join(wheel, "deepspeed/ops"), func(path string, entry os.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".so") {
			files = append(files, path)
		}
		return err
	})
	if err != nil || len(files) == 0 {
		t.Fatalf("libraries in %s: %v, %v", wheel, files, err)
	}
	return files
}

func first(texts []string, most int) []string { return texts[:min(most, len(texts))] }
