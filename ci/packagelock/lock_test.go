package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/dockerfiles"
)

func newTables(t *testing.T) *compat.Tables {
	t.Helper()
	tables, err := compat.NewTables()
	if err != nil {
		t.Fatal(err)
	}
	return tables
}

// Nobody changes a pin or a table without the lock.
func TestLockIsOfThesePins(t *testing.T) {
	want, err := inputsOf(newTables(t))
	if err != nil {
		t.Fatal(err)
	}
	lock, err := os.ReadFile(filepath.Join("..", "..", "dockerfiles", dockerfiles.LockName))
	if err != nil || !strings.Contains(string(lock), "\n"+inputsMark+want+"\n") {
		t.Errorf("%s is not of the inputs of this program, %.12s (%v): make packages-lock", dockerfiles.LockName, want, err)
	}
}

// The lock has every torch of the tables with each of its Pythons, for every source of CUDA, and
// each package once.
func TestLockHasEveryToolchain(t *testing.T) {
	tables := newTables(t)
	for _, torch := range tables.Torches {
		for _, python := range torch.Pythons {
			q := tableRequest(tables, torch, python)
			for _, source := range []compat.CUDASource{q.Source, compat.Nvcc12, compat.FoundCUDA} {
				ops := q.Ops
				if source != q.Source {
					ops = nil
				}
				got, ok := dockerfiles.LockedPackages(torch.Version, python, string(source), ops, q.Pins)
				if !ok {
					t.Errorf("torch %s, Python %s, %s: not in the lock", torch.Version, python, source)
					continue
				}
				names := map[string]bool{}
				for _, p := range slices.Concat(got.Runtime, got.Build) {
					if names[p.Name] || len(p.SHA256) != 64 {
						t.Errorf("torch %s, Python %s, %s: %+v", torch.Version, python, source, p)
					}
					names[p.Name] = true
				}
				wanted := []string{"torch", "numpy", "ninja", "pydantic", "pydantic-core", "pip", "setuptools", "wheel"}
				if source == q.Source {
					for _, r := range slices.Concat(q.CUDA, q.Ops) {
						wanted = append(wanted, dockerfiles.RequirementName(r))
					}
				}
				for _, name := range wanted {
					if !names[name] {
						t.Errorf("torch %s, Python %s, %s: no %s", torch.Version, python, source, name)
					}
				}
			}
		}
	}
}

// The lock has what the smoke test of a wheel for aarch64 needs, for the Python of each base that builds such wheels.
func TestLockHasSmokeTestsOfAarch64(t *testing.T) {
	requests := armRequests(newTables(t))
	if len(requests) == 0 {
		t.Fatal("no base builds wheels for aarch64")
	}
	for _, q := range requests {
		names := map[string]bool{}
		for _, p := range dockerfiles.LockedForArm(q.Python) {
			if names[p.Name] || len(p.SHA256) != 64 || p.HasStandIn() {
				t.Errorf("Python %s: %+v", q.Python, p)
			}
			names[p.Name] = true
		}
		for _, name := range []string{"torch", "nvidia-cuda-runtime", "numpy", "pydantic-core"} {
			if !names[name] {
				t.Errorf("Python %s: no %s", q.Python, name)
			}
		}
	}
}
