//go:build linux

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/ci/wheelindex"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/remote/sshtest"
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
	if err := json.Unmarshal([]byte(s.run(t, 0, "ship", "inventory.yaml", "--env", "environment.yaml", "--dry-run", "--json")), &plan); err != nil || len(plan.Groups) != 1 || plan.Groups[0].Torch != "2.15.0" || plan.Groups[0].Python != "3.11" {
		t.Fatalf("%v, %+v", err, plan)
	}
	if _, err := os.Stat(filepath.Join(s.dir, "environment.lock")); err == nil {
		t.Error("the dry run has locked")
	}
	store(t, s.dir, plan.Groups[0])
	var r report.Report
	if err := json.Unmarshal([]byte(s.run(t, 0, "ship", "inventory.yaml", "--env", "environment.yaml", "--json")), &r); err != nil || r.Summary.OK != 2 || !r.Consistent || !r.Nodes[0].Changed || r.Nodes[0].After == nil {
		t.Errorf("%v, %+v", err, r)
	}
	if out := s.run(t, 0, "ship", "inventory.yaml", "--env", "environment.yaml"); !strings.Contains(out, "ok, unchanged") {
		t.Error(out)
	}
	if out := s.run(t, 0, "env", "verify", "inventory.yaml"); !strings.Contains(out, "2 nodes ok, all equal: deepspeed 0.19.8") {
		t.Error(out)
	}
	s.run(t, 2, "ship", "inventory.yaml", "--env", "environment.yaml", "--deps", "bundle")
}
