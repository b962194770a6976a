package ship_test

import (
	"testing"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/ship"
	"github.com/dsbuild/dsbuild/wheel"
)

// An environment has a folder of its own: a Python that the system manages, as on Debian 12, is no obstacle.
func TestEnvironmentOnAManagedPython(t *testing.T) {
	t.Parallel()
	tables, err := compat.NewTables()
	if err != nil {
		t.Fatal(err)
	}
	assume, err := ship.WithEnvironment("3.11", "2.15.0")
	if err != nil {
		t.Fatal(err)
	}
	bare := node.Facts{
		Platform: "linux_x86_64", Glibc: "2.36", Python: "3.11.2", Tag: "cp311", CPU: "x86-64-v3",
		ExternallyManaged: true,
	}
	for name, facts := range map[string]node.Facts{"with the environment": assume(bare), "without": bare} {
		left := tables.Group([]compat.Member{{Name: "gpu1", Facts: facts}},
			wheel.Request{DeepSpeed: "0.19.8", Ops: []string{"cpu_adam"}}).Unserved
		if refused := len(left) > 0; refused != (name == "without") {
			t.Errorf("%s: left out %+v", name, left)
		}
	}
}

// The torch of the package index has CUDA for aarch64 from 2.11 on: with an older one such a node has a torch without
// CUDA.
func TestEnvironmentWithATorchOfEachMachine(t *testing.T) {
	t.Parallel()
	for torch, want := range map[string][2]string{
		"2.15.0": {"13.2", "13.2"}, "2.10.0": {"12.8", ""}, "2.10.0+cu126": {"12.6", "12.6"},
	} {
		assume, err := ship.WithEnvironment("3.11", torch)
		if err != nil {
			t.Fatal(err)
		}
		for i, machine := range []string{wheel.X86, wheel.Arm} {
			if got := assume(node.Facts{Platform: "linux_" + machine}).TorchCUDA; got != want[i] {
				t.Errorf("torch %s on %s: CUDA %q, want %q", torch, machine, got, want[i])
			}
		}
	}
}
