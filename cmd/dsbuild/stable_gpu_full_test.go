//go:build full

package main

import (
	"cmp"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/compat"
)

// gpuComparison is a kernel's result beside torch's.
type gpuComparison struct {
	Name        string
	Worst, Most float64 // how far it is from torch's, and may be
}

// gpuProof is what compute.py says of an op.
type gpuProof struct {
	Op, File, Device, Torch, Digest string
	Compared                        []gpuComparison
}

// comparisons is the program that compares ops with torch.
const comparisons = "../../fleet/node/python/dsbuild_node/compute.py"

// worst returns the comparison that uses up most of what is allowed.
func (p gpuProof) worst() gpuComparison {
	return slices.MaxFunc(p.Compared, func(a, b gpuComparison) int { return cmp.Compare(a.Worst*b.Most, b.Worst*a.Most) })
}

// gpuCapability returns the compute capability of this machine's first GPU. Without one the test
// fails: it is run by make test-gpu alone.
func gpuCapability(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader").Output()
	capability, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if err != nil || capability == "" {
		t.Fatalf("this machine has no GPU that nvidia-smi knows: %v %s", err, out)
	}
	return capability
}

// gpuOps returns the ops that compute.py compares. All ops with device code must be among them.
func gpuOps(t *testing.T, interpreter string) []string {
	t.Helper()
	listed, err := runWith(t, interpreter, "", absolute(t, comparisons), "--list")
	var needsGPU map[string]bool
	if err == nil {
		err = json.Unmarshal([]byte(listed), &needsGPU)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, listed)
	}
	tables, err := compat.NewTables()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, op := range tables.Ops {
		if needsGPU[op.Name] != op.DeviceCode {
			t.Errorf("%s: needs a GPU: %v; has device code: %v", op.Name, needsGPU[op.Name], op.DeviceCode)
		}
		if _, ok := needsGPU[op.Name]; ok {
			names = append(names, op.Name)
		}
	}
	if len(names) != len(needsGPU) {
		t.Errorf("compared are %v; known are %v", needsGPU, names)
	}
	return names
}

// TestFullStableGPUReferences runs what compute.py can do without a GPU: it computes torch's side on the CPU, and
// refuses to compare an op that needs a GPU.
func TestFullStableGPUReferences(t *testing.T) {
	interpreter := pythonWithTorch(t, stockPair().torch, stockPair().python)
	program := absolute(t, comparisons)
	told, err := runWith(t, interpreter, "", program, "--references")
	var shapes map[string]map[string][][]int
	if err == nil {
		err = json.Unmarshal([]byte(told), &shapes)
	}
	if ops := gpuOps(t, interpreter); err != nil || len(shapes) != len(ops) {
		t.Errorf("%d of %d ops: %v\n%s", len(shapes), len(ops), err, told)
	}
	t.Setenv("CUDA_VISIBLE_DEVICES", "")
	if said, err := runWith(t, interpreter, "", program, "fused_adam"); err == nil || !strings.Contains(said, "error: fused_adam: not compared: torch finds no GPU") {
		t.Errorf("without a GPU: %v %s", err, said)
	}
}

// TestGPUOps is make test-gpu: each kernel of both kinds of wheels, over the stable ABI and by torch's
// C++ interface, computes on this machine's GPU what torch computes. Ops that are not for this GPU
// are left out.
func TestGPUOps(t *testing.T) {
	capability := gpuCapability(t)
	hostPackages(t)
	ops := chosenOps(gpuOps(t, pythonWithTorch(t, stockPair().torch, stockPair().python)))
	choice := "all" // dsbuild leaves out the ops that are not for this arch
	if os.Getenv("DSBUILD_TEST_OPS") != "" {
		choice = strings.Join(ops, ",")
	}
	digests := map[string]map[string]string{}
	for _, abi := range []string{"stable", "torch"} {
		built := build(t, "--abi", abi, "--ops", choice, "--arch", capability, "--torch", stockPair().torch, "--python", stockPair().python, "--builder", "host", "-o", t.TempDir())
		env := newStableEnvironment(t, stockPair(), built.Manifest.Requires...)
		env.install(t, built.Path)
		digests[abi] = map[string]string{}
		for _, op := range ops {
			// Each in a process of its own: a kernel that fails takes the GPU's context with it.
			t.Run(abi+"/"+op, func(t *testing.T) {
				if !slices.Contains(built.Manifest.Ops, op) {
					t.Skipf("dsbuild does not build it for %s", capability)
				}
				digests[abi][op] = proveOnGPU(t, env, abi, op).Digest
			})
		}
	}
	for op, digest := range digests["stable"] {
		t.Logf("result: %s: the same bits as with torch's C++ interface: %v", op, digest == digests["torch"][op])
	}
}

// proveOnGPU compares an op with torch.
func proveOnGPU(t *testing.T, env stableEnvironment, abi, op string) gpuProof {
	t.Helper()
	told, err := runWith(t, env.python, "", absolute(t, comparisons), op)
	var p gpuProof
	if err == nil {
		err = json.Unmarshal([]byte(told), &p)
	}
	if err != nil || len(p.Compared) == 0 {
		t.Fatalf("%v\n%s", err, told)
	}
	if strings.HasPrefix(filepath.Base(p.File), "lib") != (abi == "stable") {
		t.Errorf("%s was loaded from %s", op, p.File)
	}
	worst := p.worst()
	t.Logf("result: --abi %s: %s on %s: %d comparisons, at most %.1e of torch's largest number (%s; allowed %.1e)", abi, op, p.Device, len(p.Compared), worst.Worst, worst.Name, worst.Most)
	return p
}
