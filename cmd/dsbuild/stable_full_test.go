//go:build full

package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/ci/python"
	"github.com/dsbuild/dsbuild/wheel"
)

// stableProof is what testdata/stable/proof.py says of an installed DeepSpeed.
type stableProof struct {
	Torch, CUDA, Python, File string

	Compiled float64 // of a function by torch.compile
	Refusals []string
	Together []string // what went wrong with threads and forks
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
		Interpreter: interpreter, Packages: append(deepSpeedNeeds(), "torch=="+torch), Log: func(line string) { t.Log(line) },
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
	cmd.Dir, cmd.Env = t.TempDir(), append(os.Environ(), "PYTHONPATH="+deepspeed, "PYTHONDONTWRITEBYTECODE=1", "DS_ACCELERATOR=cuda")
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
	script, err := filepath.Abs("testdata/stable/proof.py")
	if err != nil {
		t.Fatal(err)
	}
	said, err := runWith(t, interpreter, deepspeed, script)
	var p stableProof
	if err == nil {
		err = json.Unmarshal([]byte(said), &p)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	return p
}

// One wheel of the stable ABI runs with torches and Pythons that are far apart. Its ops compute, to
// the last bit, what those of the wheel for one torch compute, refuse what these refuse, and
// keep out of each other's way in threads and after a fork.
func TestFullStable(t *testing.T) {
	hostPackages(t)
	ops := []string{"--ops", "cpu_adam,cpu_adagrad,cpu_lion,utils", "--builder", "host", "-o", t.TempDir()}
	stable := build(t, append(ops, "--abi", "stable")...)
	if name := filepath.Base(stable.Path); !strings.Contains(name, "+torch2.10.cu13.v3-py3-none-manylinux_2_") {
		t.Error(name)
	}
	if abi := stable.Manifest.TorchABI; abi == nil || *abi != (wheel.TorchABI{Stable: true, Min: "2.10"}) {
		t.Errorf("torch_abi %+v", abi)
	}
	newest := pythonWithTorch(t, "2.15.0", "3.11")
	stock := build(t, append(ops, "--torch", "2.15.0", "--python", "3.11")...)
	want := prove(t, newest, unzipped(t, stock.Path))
	if want.Runs == 0 || len(want.Together) > 0 || !want.OneAtATime {
		t.Fatalf("the wheel for one torch: %+v", want)
	}
	files := unzipped(t, stable.Path)
	for _, interpreter := range []string{newest, pythonWithTorch(t, "2.10.0", "3.13", "3.12", "3.10")} {
		got := prove(t, interpreter, files)
		t.Logf("result: torch %s, CUDA %s, Python %s: %d runs of cpu_adam, cpu_lion and cpu_adagrad equal to the last bit; threads and forks: %d failures",
			got.Torch, got.CUDA, got.Python, got.Runs, len(got.Together))
		same := want
		same.Torch, same.CUDA, same.Python, same.File = got.Torch, got.CUDA, got.Python, "libcpu_adam_op.so"
		if !reflect.DeepEqual(got, same) {
			t.Errorf("stable %+v\nother  %+v", got, want)
		}
	}
	t.Logf("result: wheel %s, %d bytes, built in %.0f s; for one torch %d bytes in %.0f s", stable.Manifest.Name, stable.Size, stable.Seconds, stock.Size, stock.Seconds)
}

// With a torch that cannot have them, ops are refused in words, before anything is loaded. So they
// are by DeepSpeed, which compares the torch of the wheel with the one that runs.
func TestFullStableRefused(t *testing.T) {
	hostPackages(t)
	files := unzipped(t, build(t, "--abi", "stable", "--ops", "utils", "--builder", "host", "-o", t.TempDir()).Path)
	interpreter := pythonWithTorch(t, "2.15.0", "3.11")
	for name, c := range map[string]struct{ torch, want string }{
		"torch":  {"torch.__version__ = '2.9.1'", "Refused: DeepSpeed's op utils needs torch 2.10 or newer, but this environment has torch 2.9.1 hint: "},
		"loaded": {"torch.__version__ = '2.9.1'", "RuntimeError: PyTorch version mismatch!"},
		"CUDA":   {"torch.version.cuda = '12.8'", "loaded"}, // it needs nothing of CUDA's
	} {
		load := "from deepspeed.ops.op_builder.all_ops import ALL_OPS; ALL_OPS['utils'].load()"
		if name == "torch" {
			load = "import deepspeed.ops.utils_op"
		}
		said, err := runWith(t, interpreter, files, "-c", `import torch
`+c.torch+`
try:
    `+load+`
    print("loaded")
except Exception as e:
    print(type(e).__name__ + ":", str(e).replace("\n", " "))
`)
		if err != nil || !strings.HasPrefix(said, c.want) {
			t.Errorf("%s: %v %s\nwant %s", name, err, said, c.want)
		}
		t.Logf("result: %s: %s", name, said)
	}
}
