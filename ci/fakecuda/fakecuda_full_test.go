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
	"github.com/dsbuild/dsbuild/wheel"
)

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

// builtWheel builds ops for A100 with dsbuild, or takes what another test has built, and unpacks the wheel.
func builtWheel(t *testing.T, abi, torch, ops string) string {
	t.Helper()
	out := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "../../bin/dsbuild", "wheel", "--arch", "8.0", "--abi", abi, "--torch", torch, "--python", pythonOf,
		"--ops", ops, "-o", out)
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

// comparison compares the ops of two wheels for a CUDA.
type comparison struct {
	side
	stock, stable string // unpacked wheels
	code          map[string]codeOfOp
	kernels       string // the table of the stable wheel's
	here, other   environment
}

func newComparison(t *testing.T, s side, ops, stable string, packages []string) comparison {
	t.Helper()
	c := comparison{side: s, stock: builtWheel(t, "torch", s.torch, ops), stable: stable, here: newEnvironment(t, s, s.torch, packages...)}
	c.code = decode[map[string]codeOfOp](t, c.here.run(t, "devicecode.py", "compare", c.stock, c.stable, c.cuda))
	c.kernels = c.here.tableOfKernels(t, stable)
	if s.other != "" {
		c.other = newEnvironment(t, s, s.other, packages...)
	}
	return c
}

// compare compares an op's device code and its calls to CUDA.
func (c comparison) compare(t *testing.T, op string) {
	t.Helper()
	code, found := c.code[op]
	hasKernels := op != "ragged_ops" // which asks CUDA for memory alone
	if !found || len(code.Differences) > 0 || (code.Kernels > 0) != hasKernels || code.Same != code.Kernels {
		t.Errorf("device code for %s: %d of %d kernels are the same; want all: %s", c.cuda, code.Same, code.Kernels, strings.Join(code.Differences, "\n"))
	}
	dir := t.TempDir()
	record := func(e environment, name, wheel string) string {
		path := filepath.Join(dir, name)
		e.run(t, "record.py", e.python, e.libraries, c.kernels, wheel, op, path)
		return path
	}
	ofStable := record(c.here, "stable", c.stable)
	calls := decode[callsOfOp](t, c.here.run(t, "compare.py", record(c.here, "torch", c.stock), ofStable))
	if len(calls.Differences) > 0 || calls.Calls == 0 || (calls.Launches > 0) != hasKernels || calls.Unknown > 0 {
		t.Errorf("%s: %d launches, %d of them with unknown arguments; %d cases differ; want none:\n%s", c.cuda, calls.Launches, calls.Unknown,
			len(calls.Differences), strings.Join(first(calls.Differences, 5), "\n"))
	}
	torches := "torch " + c.torch
	if c.other.python != "" {
		torches += " and " + c.side.other
		elsewhere := decode[callsOfOp](t, c.here.run(t, "compare.py", "--other-torch", ofStable, record(c.other, "other", c.stable)))
		if len(elsewhere.Differences) > 0 {
			t.Errorf("under torch %s %d cases differ; want none:\n%s", c.side.other, len(elsewhere.Differences), strings.Join(first(elsewhere.Differences, 5), "\n"))
		}
	}
	t.Logf("result: %s, %s: %d of %d kernels the same (%d bytes of code, %d texts of PTX); %d cases, %d launches of %d of its kernels, equal in both wheels, under %s",
		op, c.cuda, code.Same, code.Kernels, code.Bytes, code.PTX, calls.Cases, calls.Launches, len(calls.Kernels), torches)
}

// Wheels of both ABIs hold the same device code, and ask CUDA for the same: all ops for CUDA 13, and for CUDA 12
// those of the default wheel, or those that DSBUILD_TEST_OPS names.
func TestFullStableLaunches(t *testing.T) {
	ops, packages := launchedOps(t)
	chosen := os.Getenv("DSBUILD_TEST_OPS")
	ofCUDA12 := cmp.Or(chosen, strings.Join(slices.DeleteFunc(wheel.DefaultOps(), func(op string) bool { return !slices.Contains(ops, op) }), ","))
	stable := builtWheel(t, "stable", cuda13().torch, cmp.Or(chosen, "all"))
	for13 := newComparison(t, cuda13(), cmp.Or(chosen, "all"), stable, packages)
	for12 := newComparison(t, cuda12(), ofCUDA12, stable, packages)
	for _, op := range ops {
		t.Run(op, func(t *testing.T) {
			for13.compare(t, op)
			if slices.Contains(strings.Split(ofCUDA12, ","), op) {
				for12.compare(t, op)
			}
		})
	}
}

// Ops over a broken stable ABI are told apart.
func TestFullStableMutants(t *testing.T) {
	const op = "fused_adam"
	s := cuda13()
	stable := builtWheel(t, "stable", s.torch, cmp.Or(os.Getenv("DSBUILD_TEST_OPS"), "all"))
	e, dir := newEnvironment(t, s, s.torch), t.TempDir()
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
