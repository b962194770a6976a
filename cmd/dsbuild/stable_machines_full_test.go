//go:build full && linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/built"
	"github.com/dsbuild/dsbuild/internal/testkit/debian"
	"github.com/dsbuild/dsbuild/internal/testkit/python"
	"github.com/dsbuild/dsbuild/pipeline/planner"
	"github.com/dsbuild/dsbuild/wheel"
)

// machineOp is what testdata/stable/machine.py says of an op: its file and its distance from torch, or the words of its refusal.
type machineOp struct {
	File, Error, Wrong string
	Worst              *float64
}

// machineProof is what it says of a machine.
type machineProof struct {
	Torch, CUDA, Python, Accelerator string
	Ops                              map[string]machineOp
}

// optimizers are the ops of the default wheel with files for each level of CPUs.
func optimizers() []string { return []string{"cpu_adam", "cpu_adagrad", "cpu_lion"} }

// opsWithoutGPU are those that DeepSpeed has for the accelerator of a machine without a GPU, where its fused_adam is another op.
func opsWithoutGPU() []string { return append(optimizers(), "pin_memory", "async_io") }

// onMachine runs machine.py for ops, with the words before it that start Python otherwise, and logs what it says.
func (e stableEnvironment) onMachine(t *testing.T, where string, ops, variables, before []string) machineProof {
	t.Helper()
	dir := t.TempDir()
	args := append([]string{e.python, "-B", "-W", "ignore", absolute(t, "testdata/stable/machine.py"), absolute(t, comparisons)}, ops...)
	args = append(before, args...)
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	var stderr strings.Builder
	cmd.Dir, cmd.Stderr = dir, &stderr
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "OMP_NUM_THREADS=2", "TORCH_EXTENSIONS_DIR=" + dir + "/compiled"}, variables...)
	out, err := cmd.Output()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	var p machineProof
	if err = errors.Join(err, json.Unmarshal([]byte(lines[len(lines)-1]), &p)); err != nil || len(p.Ops) != len(ops) {
		t.Fatalf("%s: %v\n%s%s", where, err, out, &stderr)
	}
	if _, err := os.Stat(dir + "/compiled"); err == nil {
		t.Errorf("%s: an op was compiled", where)
	}
	var told []string
	for _, op := range ops {
		o := p.Ops[op]
		what := o.File
		if o.Wrong != "" {
			t.Errorf("%s: %s: %s", where, op, o.Wrong)
		}
		if o.Worst != nil {
			what += fmt.Sprintf(" (%.0e)", *o.Worst)
		}
		told = append(told, what)
		if o.Error != "" {
			told[len(told)-1] = op + " is refused: " + strings.ReplaceAll(o.Error, "\n", " ")
		}
	}
	t.Logf("result: %s: torch %s, Python %s, accelerator %s: %s", where, p.Torch, p.Python, p.Accelerator, strings.Join(told, ", "))
	return p
}

// loaded checks from which file each op was loaded.
func (p machineProof) loaded(t *testing.T, level, cuda string, ops ...string) {
	t.Helper()
	for _, op := range ops {
		want := "lib" + op + "_op.so"
		switch {
		case op == "fused_adam":
			want = "libfused_adam_op." + cuda + ".so"
		case strings.HasPrefix(op, "cpu_"):
			want = "lib" + op + "_op." + level + ".so"
		}
		if o := p.Ops[op]; o.File != want || o.Error != "" {
			t.Errorf("%s: %s was loaded, %s; want %s", op, o.File, o.Error, want)
		}
	}
}

// The default wheel, which pip installs from an index of files, is right for torches of both CUDAs, for a torch without CUDA, for a
// node without a GPU and a compiler, and for CPUs of levels that qemu-user and the kernel's words claim: each loads its own files of
// the wheel, and they compute what torch does. For aarch64 TestFullAarch64 does that. The package index has no torch without CUDA
// for x86_64: one for CUDA claims to be such a torch, and no file that is loaded then is linked with CUDA's libraries.
func TestFullStableMachines(t *testing.T) {
	index := filepath.Join(t.TempDir(), "index")
	command(t, ".", makeProgram(t), "index", index, "--wheel", filepath.Dir(built.Wheel(t)))
	level := levelHere(t)
	for _, torch := range []string{stockPair().torch, "2.10.0"} {
		cache := filepath.Join(t.TempDir(), "cache")
		if downloads, err := python.Downloads(); err != nil {
			t.Fatal(err)
		} else if torch == stockPair().torch { // hard links to what is there already
			newStableEnvironment(t, stockPair())
			command(t, ".", "cp", "-al", downloads, cache)
		}
		for _, version := range map[string][]string{stockPair().torch: {"3.11", "3.13"}, "2.10.0": {"3.12", "3.10"}}[torch] {
			t.Run("torch"+torch+"-python"+version, func(t *testing.T) {
				env := stableEnvironmentFrom(t, []string{"--cache-dir", cache}, stablePair{torch, version}, "pip", "nvidia-ml-py")
				command(t, t.TempDir(), env.python, "-m", "pip", "install", "--quiet", "--no-cache-dir", "--index-url", "file://"+index+"/", "deepspeed")
				p := env.onMachine(t, "for CUDA", wheel.DefaultOps(), []string{"DS_ACCELERATOR=cuda"}, nil)
				p.loaded(t, level, "cu"+wheel.Major(p.CUDA), wheel.DefaultOps()...)
				p = env.onMachine(t, "without GPU and compiler", opsWithoutGPU(), []string{"PATH=" + t.TempDir()}, nil)
				p.loaded(t, level, "", opsWithoutGPU()...)
				if version == stockPair().python {
					env.levels(t)
				}
				env.withoutCUDA(t, level)
			})
		}
		if err := os.RemoveAll(cache); err != nil {
			t.Fatal(err)
		}
	}
}

// withoutCUDA has torch say that it is built without CUDA.
func (e stableEnvironment) withoutCUDA(t *testing.T, level string) {
	t.Helper()
	site := strings.TrimSpace(command(t, t.TempDir(), e.python, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))"))
	file := filepath.Join(site, "torch", "version.py")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text = regexp.MustCompile(`(?m)^(cuda\b.*) = '.*'$`).ReplaceAll(text, []byte("$1 = None"))
	text = regexp.MustCompile(`\+cu\d+`).ReplaceAll(text, []byte("+cpu"))
	if err := errors.Join(os.Remove(file), os.WriteFile(file, text, 0o644)); err != nil { // a hard link to uv's cache goes first
		t.Fatal(err)
	}
	p := e.onMachine(t, "torch says that it has no CUDA", wheel.DefaultOps(), []string{"DS_ACCELERATOR=cuda"}, nil)
	p.loaded(t, level, "", append(opsWithoutGPU(), "utils")...)
	if want := "Refused: DeepSpeed's op fused_adam needs a torch for CUDA 12 or 13, but this torch "; !strings.HasPrefix(p.Ops["fused_adam"].Error, want) {
		t.Errorf("fused_adam: %+v", p.Ops["fused_adam"])
	}
	for _, o := range p.Ops {
		for _, path := range strings.Fields(command(t, ".", "find", filepath.Join(site, "deepspeed"), "-name", "lib*.so", "-name", o.File)) {
			if needed := command(t, ".", "readelf", "-dW", path); strings.Contains(needed, "cuda") {
				t.Errorf("%s is linked with CUDA:\n%s", path, needed)
			}
		}
	}
}

// levelHere is the level of the default wheel that this machine's CPU has.
func levelHere(t *testing.T) string {
	t.Helper()
	var r wheel.Request
	if err := planner.Set(&r, "cpu", "native"); err != nil {
		t.Fatal(err)
	}
	return r.CPU.Short()
}

// The flags that a kernel would name on the CPUs that qemu-user emulates here.
const (
	core2   = "fpu sse sse2 syscall nx lm pni ssse3 cx16 lahf_lm"
	nehalem = core2 + " sse4_1 sse4_2 popcnt"
)

// levels runs the CPU optimizers on emulated CPUs, whose flags the kernel seems to name, and where it names none.
func (e stableEnvironment) levels(t *testing.T) {
	t.Helper()
	if err := debian.Ensure(t.Context(), debian.OnPath("qemu-x86_64-static"), "qemu-user-static"); err != nil {
		t.Fatal(err)
	}
	onCPU := func(where string, variables []string, before ...string) machineProof {
		return e.onMachine(t, where, optimizers(), append(variables, "DS_ACCELERATOR=cpu"), before)
	}
	onCPU("DSBUILD_CPU_LEVEL=v2", []string{"DSBUILD_CPU_LEVEL=v2"}).loaded(t, "v2", "", optimizers()...)
	onCPU("a kernel that hides the CPU", nil, seemingCPU(t, t.TempDir(), "")...).loaded(t, "v2", "", optimizers()...)
	qemu := []string{"qemu-x86_64-static", "-cpu", "Nehalem"}
	onCPU("under qemu-user, Nehalem", nil, append(seemingCPU(t, t.TempDir(), "flags\t: "+nehalem+"\n"), qemu...)...).loaded(t, "v2", "", optimizers()...)

	// numpy's later wheels are for v2 themselves.
	older := t.TempDir()
	if err := e.uv.Run(t.Context(), "pip", "install", "--quiet", "--no-cache", "--python", e.python, "--target", older, "numpy==2.0.2"); err != nil {
		t.Fatal(err)
	}
	qemu[2] = "core2duo"
	p := onCPU("under qemu-user, Core 2", []string{"PYTHONPATH=" + older}, append(seemingCPU(t, t.TempDir(), "flags\t: "+core2+"\n"), qemu...)...)
	for _, op := range optimizers() {
		if want := "was built for CPUs of level x86-64-v2, but this CPU lacks popcnt sse4_1 sse4_2\nhint: use another machine"; !strings.Contains(p.Ops[op].Error, want) {
			t.Errorf("%s on a CPU of level 1: %+v", op, p.Ops[op])
		}
	}
}
