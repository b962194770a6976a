//go:build full

package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/python"
	"github.com/dsbuild/dsbuild/wheel"
)

// stableProof is what testdata/stable/proof.py says of an installed DeepSpeed.
type stableProof struct {
	Torch, CUDA, Python, File string

	Compiled   float64 // of a function by torch.compile
	Optimizers string  // digest of what DeepSpeed's CPU optimizers compute
	Files      []any   // what async_io and pin_memory answered
	Refusals   []string
	Together   []string // what went wrong with threads and forks
	// OneAtATime is whether a call waits for one of another thread.
	OneAtATime bool   `json:"one_at_a_time"`
	Results    string // digest of all numbers
	Words      string // digest of the words of errors
	Runs       int
}

// deepSpeedNeeds are the packages that DeepSpeed imports.
func deepSpeedNeeds() []string {
	return []string{"numpy", "setuptools", "pydantic", "einops", "hjson", "msgpack", "packaging", "psutil", "py-cpuinfo", "tqdm", "ninja"}
}

// pythonWithTorch returns the interpreter of an environment with a torch, for the first of some
// Pythons that this machine has.
func pythonWithTorch(t *testing.T, torch string, versions ...string) string {
	t.Helper()
	return pythonWithPackages(t, []string{"torch==" + torch}, versions...)
}

// pythonWithPackages is pythonWithTorch with other packages beside those that DeepSpeed needs.
func pythonWithPackages(t *testing.T, packages []string, versions ...string) string {
	t.Helper()
	var interpreter string
	err := errors.New("no Python asked for")
	for _, version := range versions {
		if interpreter, err = python.Find(t.Context(), version); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	dir, err := python.Environment(t.Context(), python.EnvironmentOptions{
		Interpreter: interpreter, Packages: append(deepSpeedNeeds(), packages...), Log: func(line string) { t.Log(line) },
	})
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "bin", "python")
}

// unzipped returns a folder with the files of a wheel, as an installer lays them out.
func unzipped(t *testing.T, path string) string {
	t.Helper()
	dir := t.TempDir()
	command(t, ".", "python3", "-m", "zipfile", "-e", path, dir)
	return dir
}

// runWith runs a program of Python with the DeepSpeed in a folder, and returns what it printed last.
func runWith(t *testing.T, interpreter, deepspeed string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command(interpreter, append([]string{"-W", "ignore"}, args...)...)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "PYTHONPATH="+deepspeed, "PYTHONDONTWRITEBYTECODE=1", "DS_ACCELERATOR=cuda",
		"DSBUILD_CPU_LEVEL=v3") // of the wheel for one torch: on another level the last bits differ
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return stderr.String(), err
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1], nil
}

func prove(t *testing.T, interpreter, deepspeed string) stableProof {
	t.Helper()
	said, err := runWith(t, interpreter, deepspeed, absolute(t, "testdata/stable/proof.py"))
	var p stableProof
	if err == nil {
		err = json.Unmarshal([]byte(said), &p)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	return p
}

// stableCPUOps returns the ops that compute without a GPU, or those of them that DSBUILD_TEST_OPS names.
func stableCPUOps() string {
	all := []string{"cpu_adam", "cpu_adagrad", "cpu_lion", "utils", "pin_memory", "async_io"}
	some := chosenOps(all)
	return strings.Join(slices.DeleteFunc(all, func(op string) bool { return !slices.Contains(some, op) }), ",")
}

// stablePair is a torch and a Python.
type stablePair struct{ torch, python string }

// stockPair is the torch and the Python of the wheel that others are compared with.
func stockPair() stablePair { return stablePair{"2.15.0", "3.11"} }

// stablePairs returns every minor of torch and every Python that a wheel of the stable ABI is for,
// each at least once, the pair of the stock wheel first. Ops of another release are proven with the newest torch and the oldest.
func stablePairs() []stablePair {
	if len(ofRelease()) > 0 {
		return []stablePair{stockPair(), {"2.10.0", stockPair().python}}
	}
	return []stablePair{
		stockPair(), {"2.10.0", "3.14"}, {"2.11.0", "3.12"}, {"2.12.1", "3.13"}, {"2.13.0", "3.14"}, {"2.14.1", "3.10"},
	}
}

// stableEnvironment is a Python environment of one test.
type stableEnvironment struct {
	uv     python.UV
	python string
}

// newStableEnvironment installs packages, and the torch of a pair, for the pair's Python. What was
// downloaded for it is removed with it, if it is not of the stock wheel: each torch with the
// packages that it requires takes 5 GB.
func newStableEnvironment(t *testing.T, pair stablePair, packages ...string) stableEnvironment {
	t.Helper()
	return stableEnvironmentFrom(t, []string{"--no-cache"}, pair, packages...)
}

// stableEnvironmentFrom is newStableEnvironment with uv's flags for a cache of what is not of the stock wheel.
func stableEnvironmentFrom(t *testing.T, cache []string, pair stablePair, packages ...string) stableEnvironment {
	t.Helper()
	interpreter, err := python.Find(t.Context(), pair.python)
	if err != nil {
		t.Fatal(err)
	}
	uv, err := python.GetUV(t.Context(), interpreter, func(line string) { t.Log(line) })
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "environment")
	if err := uv.Venv(t.Context(), interpreter, dir); err != nil {
		t.Fatal(err)
	}
	env := stableEnvironment{uv, filepath.Join(dir, "bin", "python")}
	packages = slices.Concat(deepSpeedNeeds(), packages, []string{"torch==" + pair.torch})
	if pair == stockPair() {
		err = uv.Install(t.Context(), env.python, func(line string) { t.Log(line) }, packages...)
	} else {
		err = uv.Run(t.Context(), slices.Concat([]string{"pip", "install", "--quiet", "--python", env.python}, cache, packages)...)
	}
	if err != nil {
		t.Fatal(err)
	}
	return env
}

// install puts a wheel of DeepSpeed in place of another.
func (e stableEnvironment) install(t *testing.T, path string) {
	t.Helper()
	if err := e.uv.Run(t.Context(), "pip", "install", "--quiet", "--no-cache", "--no-deps", "--reinstall", "--python", e.python, path); err != nil {
		t.Fatal(err)
	}
}

// stableCPUWheel is a wheel of the stable ABI without device code, which the host builder makes.
func stableCPUWheel(t *testing.T) wheel.Artifact {
	t.Helper()
	hostPackages(t)
	return build(t, append(ofRelease(), "--ops", stableCPUOps(), "--abi", "stable", "--builder", "host", "-o", t.TempDir())...)
}

// One wheel of the stable ABI serves every torch and every Python that it is for. Its ops and the
// optimizers of DeepSpeed that use them compute, to the last bit, what those of the wheel for one torch
// compute, refuse what these refuse, and keep out of each other's way in threads and after a fork.
// Of a wheel with device code for CUDA 12 and 13, every op that claims it loads with each torch, shows Python the same functions
// and classes as in the wheel for one torch, and answers the same where no GPU is needed. Both programs
// that read the ABI from the symbols say the same of both wheels.
func TestFullStable(t *testing.T) {
	stable := stableCPUWheel(t)
	if name := filepath.Base(stable.Path); !strings.Contains(name, "-py3-none-manylinux_2_") {
		t.Error(name)
	}
	if abi := stable.Manifest.TorchABI; abi == nil || *abi != (wheel.TorchABI{Stable: true, Min: "2.10"}) {
		t.Errorf("torch_abi %+v", abi)
	}
	stock, withDeviceCode := allOps(t, "torch"), allOps(t, "stable")
	stockEnv := newStableEnvironment(t, stockPair(), withDeviceCode.Manifest.Requires...)
	stockEnv.install(t, stock.Path)
	want := prove(t, stockEnv.python, "")
	if want.Runs == 0 || len(want.Together) > 0 || !want.OneAtATime {
		t.Fatalf("the wheel for one torch: %+v", want)
	}
	shown := newExposure(t, stockEnv.python, withDeviceCode, stock)
	for _, pair := range stablePairs() {
		t.Run("torch"+pair.torch+"-python"+pair.python, func(t *testing.T) {
			env := stockEnv
			if pair != stockPair() {
				env = newStableEnvironment(t, pair, withDeviceCode.Manifest.Requires...)
			}
			env.install(t, stable.Path)
			compareProofs(t, prove(t, env.python, ""), want, pair)
			env.install(t, withDeviceCode.Path)
			shown.prove(t, env.python, pair, proveDeviceCode(t, env, pair))
		})
	}
	t.Logf("result: wheel %s, %d bytes, built in %.0f s; all %d ops %d bytes in %.0f s; for one torch %d bytes in %.0f s", stable.Manifest.Name, stable.Size, stable.Seconds,
		len(shown.ops), withDeviceCode.Size, withDeviceCode.Seconds, stock.Size, stock.Seconds)
}

// compareProofs compares what a wheel of the stable ABI did with what the wheel for one torch did.
func compareProofs(t *testing.T, got, want stableProof, pair stablePair) {
	t.Helper()
	if got.Torch != pair.torch || !strings.HasPrefix(got.Python, pair.python+".") {
		t.Errorf("proven with torch %s and Python %s", got.Torch, got.Python)
	}
	t.Logf("result: torch %s, CUDA %s, Python %s: %d runs of cpu_adam, cpu_lion and cpu_adagrad and DeepSpeed's optimizers equal to the last bit; threads and forks: %d failures",
		got.Torch, got.CUDA, got.Python, got.Runs, len(got.Together))
	same := want
	same.Torch, same.CUDA, same.Python, same.File = got.Torch, got.CUDA, got.Python, "libcpu_adam_op.v3.so"
	if !reflect.DeepEqual(got, same) {
		t.Errorf("stable %+v\nother  %+v", got, want)
	}
}

// proveDeviceCode loads DeepSpeed's default ops, one of which has device code, by DeepSpeed, which compares CUDA too. It returns
// torch's CUDA.
func proveDeviceCode(t *testing.T, env stableEnvironment, pair stablePair) string {
	t.Helper()
	told, err := runWith(t, env.python, "", "-c", `
import json, torch
from deepspeed.ops.op_builder.all_ops import ALL_OPS

def tried(do):
    try:
        do()
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    return "loaded"

lists = lambda count: [[torch.zeros(1)]] * count
told = {"cuda": torch.version.cuda, "ops": {op: tried(ALL_OPS[op].load) for op in ("cpu_adam", "utils", "fused_adam")}}
told["cpu"], told["three"] = (tried(lambda: ALL_OPS["fused_adam"].load().multi_tensor_adam(1, torch.zeros(1), lists(n), 1e-3, 0.9, 0.99, 1e-8, 1, 1, 1, 0.0)) for n in (4, 3))
print(json.dumps(told))
`)
	var said struct {
		CUDA       string
		Ops        map[string]string
		CPU, Three string // of tensors that are not on a GPU, and of too few lists of them
	}
	if err == nil {
		err = json.Unmarshal([]byte(told), &said)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, told)
	}
	t.Logf("result: default ops, torch %s, CUDA %s, Python %s: %v", pair.torch, said.CUDA, pair.python, said.Ops)
	for op, how := range said.Ops {
		if how != "loaded" {
			t.Errorf("%s: %s", op, how)
		}
	}
	if !strings.HasPrefix(said.CPU, "RuntimeError: ") || !strings.HasPrefix(said.Three, "RuntimeError: ") {
		t.Errorf("%+v", said)
	}
	return said.CUDA
}

// With a torch that cannot have them, ops are refused in words, before anything is loaded. So they
// are by DeepSpeed, which compares the torch of the wheel with the one that runs. A nightly of a
// newer torch has them. An object that is gone, or was never made, is no argument.
func TestFullStableRefused(t *testing.T) {
	files := unzipped(t, stableCPUWheel(t).Path)
	interpreter := pythonWithTorch(t, "2.15.0", "3.11")
	const (
		byDeepSpeed = "from deepspeed.ops.op_builder.all_ops import ALL_OPS; op = ALL_OPS['utils'].load()"
		handle      = "from deepspeed.ops.op_builder.all_ops import ALL_OPS; handle = ALL_OPS['async_io'].load().aio_handle; "
		noHandle    = "TypeError: get_block_size(): incompatible function arguments."
	)
	for name, c := range map[string]struct{ torch, do, want string }{
		"torch":   {"torch.__version__ = '2.9.1'", "import deepspeed.ops.utils_op", "Refused: DeepSpeed's op utils needs torch 2.10 or newer, but this environment has torch 2.9.1 hint: "},
		"loaded":  {"torch.__version__ = '2.9.1'", byDeepSpeed, "Refused: DeepSpeed's op utils needs torch 2.10 or newer, but this environment has torch 2.9.1 hint: "},
		"CUDA":    {"torch.version.cuda = '12.8'", byDeepSpeed, "done"}, // it needs nothing of CUDA's
		"nightly": {"torch.__version__ = '2.16.0.dev20261120+cu132'", byDeepSpeed, "done"},
		"probe": {
			"torch.tensor = lambda given, device: torch.ones(len(given), 2)", "import deepspeed.ops.utils_op",
			"Refused: DeepSpeed's op utils does not work with torch 2.15.0+cu132, whose stable ABI differs from torch 2.10's: got 'another tensor, ",
		},
		"never made": {"", handle + "handle.__new__(handle).get_block_size()", noHandle},
		"gone":       {"", handle + "h = handle(); h.__del__(); h.__del__(); h.get_block_size()", noHandle},
		"not one":    {"", handle + "handle.get_block_size(5)", noHandle},
	} {
		said, err := runWith(t, interpreter, files, "-c", `import torch
`+c.torch+`
try:
    `+c.do+`
    print("done")
except Exception as e:
    print(type(e).__name__ + ":", str(e).replace("\n", " "))
`)
		if err != nil || !strings.HasPrefix(said, c.want) {
			t.Errorf("%s: %v %s\nwant %s", name, err, said, c.want)
		}
		t.Logf("result: %s: %.160s", name, said)
	}
}
