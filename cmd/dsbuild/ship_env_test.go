//go:build linux

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/internal/testkit/wheelindex"
	"github.com/dsbuild/dsbuild/release/nightly"
)

const builtEnv = "name: train\npython: 3.11\ntorch: 2.15.0\ndeepspeed: {version: 0.19.8, ops: [cpu_adam]}\nrequirements: [alpha]\n"

// From nodes with Python alone to one environment by one command: dsbuild plans the wheel for the
// torch that the environment brings, takes it from the store, locks and deploys.
func TestShipEnv(t *testing.T) {
	t.Parallel()
	s := newEnvSite(t, 2, sshtest.Options{})
	s.Add(t, wheelindex.Wheel{Name: "torch", Version: "2.15.0", Files: map[string]string{
		"torch/version.py":  "__version__ = '2.15.0+cu132'\ncuda = '13.2'\n",
		"torch/__init__.py": "from . import version\n__version__ = version.__version__\n",
	}})
	if err := os.WriteFile(filepath.Join(s.dir, "environment.yaml"), []byte(builtEnv), 0o600); err != nil {
		t.Fatal(err)
	}
	s.run(t, 2, "env", "lock", "--for", "inventory.yaml") // there is no wheel yet
	var plan struct{ Groups []report.Group }
	if err := json.Unmarshal([]byte(s.run(t, 0, "ship", "inventory.yaml", "--env", "environment.yaml", "--dry-run", "--json")), &plan); err != nil || len(plan.Groups) != 1 || plan.Groups[0].Torch != "2.10" || plan.Groups[0].Python != "3.10+" {
		t.Fatalf("%v, %+v", err, plan)
	}
	if _, err := os.Stat(filepath.Join(s.dir, "environment.lock")); err == nil {
		t.Error("the dry run has locked")
	}
	store(t, s.dir, plan.Groups[0])
	var r report.Report
	if err := json.Unmarshal([]byte(s.run(t, 0, "ship", "inventory.yaml", "--env", "environment.yaml", "--lock", "shipped.lock", "--json")), &r); err != nil || r.Summary.OK != 2 || !r.Consistent || !r.Nodes[0].Changed || r.Nodes[0].After == nil {
		t.Errorf("%v, %+v", err, r)
	}
	if _, err := os.Stat(filepath.Join(s.dir, "shipped.lock")); err != nil {
		t.Errorf("--lock: %v", err)
	}
	if out := s.run(t, 0, "ship", "inventory.yaml", "--env", "environment.yaml"); !strings.Contains(out, "ok, unchanged") {
		t.Error(out)
	}
	if out := s.run(t, 0, "env", "verify", "inventory.yaml"); !strings.Contains(out, "2 nodes ok, all equal: deepspeed 0.19.8") {
		t.Error(out)
	}
	s.run(t, 2, "ship", "inventory.yaml", "--env", "environment.yaml", "--deps", "bundle")
}

// A night gives its wheel to the nodes as a part of a whole environment, the canary first.
func TestNightlyEnv(t *testing.T) {
	t.Parallel()
	s := newEnvSite(t, 2, sshtest.Options{})
	s.Add(t, wheelindex.Wheel{Name: "torch", Version: "2.15.0", Files: map[string]string{
		"torch/version.py":  "__version__ = '2.15.0+cu132'\ncuda = '13.2'\n",
		"torch/__init__.py": "from . import version\n__version__ = version.__version__\n",
	}})
	out := s.run(t, 0, "wheel", "--ops", "cpu_adam", "--abi", "torch", "--torch", "2.15.0", "--python", "3.11", "--dry-run", "--json")
	var plan struct {
		Digest string `json:"plan_digest"`
	}
	if err := json.Unmarshal([]byte(out), &plan); err != nil || plan.Digest == "" {
		t.Fatalf("%v\n%s", err, out)
	}
	store(t, s.dir, report.Group{Python: "3.11", Torch: "2.15.0", CUDA: "13.2", CPU: "x86-64-v3", PlanDigest: plan.Digest})
	night := "wheels: {wheels: [{name: cpu, ops: cpu_adam, abi: torch, torch: 2.15.0, python: \"3.11\"}]}\ndeploy: {inventory: inventory.yaml, canary: gpu1, env: environment.yaml}\n"
	text := "name: train\npython: 3.11\ntorch: 2.15.0\nrequirements: [alpha]\n"
	for name, text := range map[string]string{"nightly.yaml": night, "environment.yaml": text} {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.run(t, 2, "nightly") // which kinds of nodes there are is not said
	if err := os.WriteFile(filepath.Join(s.dir, "environment.yaml"), []byte(text+"nodes: [{glibc: 2.28}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var r nightly.Report
	if err := json.Unmarshal([]byte(s.run(t, 0, "nightly", "--json")), &r); err != nil || len(r.Deploys) != 2 || r.Deploys[0].Nodes.Changed != 1 || r.Deploys[1].Nodes.OK != 2 || r.Deploys[1].Nodes.Changed != 1 {
		t.Errorf("%v, %+v", err, r)
	}
	if s.current(0) == "" || s.current(0) != s.current(1) {
		t.Error(s.current(0), s.current(1))
	}
}
