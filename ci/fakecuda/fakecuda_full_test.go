//go:build full

package fakecuda

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/compat"
)

// otherTorch is another release that the wheel of the stable ABI serves too.
const otherTorch = "2.11.0"

// launchedOps returns the ops with device code whose launches are said to be the same, or those that DSBUILD_TEST_OPS names, and the
// packages without which they do not load.
func launchedOps(t *testing.T) (names, packages []string) {
	t.Helper()
	tables, err := compat.NewTables()
	if err != nil {
		t.Fatal(err)
	}
	some := os.Getenv("DSBUILD_TEST_OPS")
	for _, op := range tables.Ops {
		chosen := op.Stable != nil && op.Stable.State == compat.Launched
		if some != "" {
			chosen = slices.Contains(strings.Split(some, ","), op.Name)
		}
		switch {
		case chosen:
			names, packages = append(names, op.Name), append(packages, op.Needs.Node...)
		case some == "" && op.Stable != nil && op.DeviceCode:
			t.Logf("result: %s is not compared: %s", op.Name, op.Stable.How)
		}
	}
	return names, packages
}

// builtWheel builds all ops for A100 with dsbuild, or takes what another test has built, and unpacks the wheel.
func builtWheel(t *testing.T, abi string) string {
	t.Helper()
	out := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "../../bin/dsbuild", "wheel", "--arch", "8.0", "--abi", abi, "--torch", builtWith, "--python", pythonOf,
		"--ops", cmp.Or(os.Getenv("DSBUILD_TEST_OPS"), "all"), "-o", out)
	if release := os.Getenv("DSBUILD_TEST_DEEPSPEED"); release != "" { // ci/prove names one
		cmd.Args = append(cmd.Args, "--deepspeed", release)
	}
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("dsbuild wheel --abi %s: %v\n%s", abi, err, text)
	}
	files, err := filepath.Glob(filepath.Join(out, "*.whl"))
	if err != nil || len(files) != 1 {
		t.Fatalf("wheels in %s: %v, %v; want one", out, files, err)
	}
	return unpacked(t, files[0])
}

// Wheels of both ABIs hold the same device code, and ask CUDA for the same.
func TestFullStableLaunches(t *testing.T) {
	ops, packages := launchedOps(t)
	stock, stable := builtWheel(t, "torch"), builtWheel(t, "stable")
	e, other := newEnvironment(t, builtWith, packages...), newEnvironment(t, otherTorch, packages...)
	code := decode[map[string]codeOfOp](t, e.run(t, "devicecode.py", "compare", stock, stable))
	table := e.tableOfKernels(t, stable)
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
				e.run(t, "record.py", e.python, e.libraries, table, wheel, op, path)
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
	stable := builtWheel(t, "stable")
	e, dir := newEnvironment(t, builtWith), t.TempDir()
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
