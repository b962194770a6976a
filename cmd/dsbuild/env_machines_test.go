//go:build linux

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/environment"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/internal/testkit/wheelindex"
	"github.com/dsbuild/dsbuild/wheel"
)

// newSiteOfBothMachines is newEnvSite with gpu1 of this machine and gpu2, which claims to be aarch64.
func newSiteOfBothMachines(t *testing.T) *envSite {
	t.Helper()
	s := newEnvSite(t, 2, sshtest.Options{})
	s.PublishUV(t, wheel.X86, wheel.Arm)
	s.Add(t, wheelindex.Wheel{Name: "torch", Version: "2.15.0", Files: map[string]string{
		"torch/version.py":  "__version__ = '2.15.0+cu132'\ncuda = '13.2'\n",
		"torch/__init__.py": "from . import version\n__version__ = version.__version__\n",
	}})
	inventory := filepath.Join(s.dir, "inventory.yaml")
	text, err := os.ReadFile(inventory)
	if err != nil {
		t.Fatal(err)
	}
	before, after, found := strings.Cut(string(text), "{hosts: gpu2, ")
	if !found {
		t.Fatalf("no gpu2 in %s", text)
	}
	s.write(t, "inventory.yaml", before+"{hosts: gpu2, env: {LD_PRELOAD: "+nodestest.ClaimArm(t)+"}, "+after)
	return s
}

// write writes a file into the folder of the site.
func (s *envSite) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// One command builds the wheels of both machines and locks the environment with them: each kind of node has its own. What it
// sends to a node is of the node's machine, uv too, so that gpu2, whose programs are those of this machine, cannot run it.
func TestShipEnvToBothMachines(t *testing.T) {
	t.Parallel()
	s := newSiteOfBothMachines(t)
	s.write(t, "environment.yaml", builtEnv)
	var plan struct{ Groups []report.Group }
	if err := json.Unmarshal([]byte(s.run(t, 0, "ship", "inventory.yaml", "--env", "environment.yaml", "--dry-run", "--json")), &plan); err != nil || len(plan.Groups) != 2 {
		t.Fatalf("%v, %+v, want a wheel for each machine", err, plan)
	}
	for _, g := range plan.Groups {
		store(t, s.dir, g)
	}
	cmd, out := s.command(t, "ship", "inventory.yaml", "--env", "environment.yaml", "--json")
	failed := cmd.Run() // on a machine that runs programs of aarch64 it does not
	var r report.Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil || len(r.Nodes) != 2 {
		t.Fatalf("%v, %v\n%s", failed, err, out)
	}
	l, err := environment.ReadLock(filepath.Join(s.dir, "environment.lock"))
	if err != nil || len(l.Sets) != 2 {
		t.Fatalf("%v, %+v", err, l)
	}
	for i, machine := range []string{wheel.X86, wheel.Arm} {
		set := l.Sets[slices.IndexFunc(l.Sets, func(s environment.Set) bool { return s.Machine == machine })]
		ds, n := set.File("deepspeed"), r.Nodes[i]
		if ds == nil || !strings.HasSuffix(ds.File, "_"+machine+".whl") || ds.Path != "dist/"+ds.File || !strings.Contains(set.Installer.File, "_"+machine) || n.Wheel != ds.File {
			t.Errorf("%s: %+v, %s; %s gets %s", set.Platform, ds, set.Installer.File, n.Name, n.Wheel)
		}
	}
	if n := r.Nodes[0]; n.Status != report.OK || !n.Changed {
		t.Errorf("%+v", n)
	}
	if n := r.Nodes[1]; n.Status != report.OK && n.Step != "install" {
		t.Errorf("%s at %s: %s; want that uv of aarch64 does not run on this machine", n.Status, n.Step, n.Error)
	}
}

// A companion for x86_64 alone is refused while nothing is locked or sent, in one line. The nodes of each kind are named before.
func TestLockWithoutAWheelForAMachine(t *testing.T) {
	t.Parallel()
	s := newSiteOfBothMachines(t)
	fast := filepath.Base(wheelindex.Make(t, s.dir, wheelindex.Wheel{Name: "fast", Version: "1", Tag: "cp311-cp311-linux_x86_64"}))
	s.write(t, "environment.yaml", "name: train\npython: 3.11\ncompanions:\n  - "+fast+"\n")
	cmd, out := s.command(t, "env", "lock", "--for", "inventory.yaml")
	cmd.Stderr = out
	err := cmd.Run()
	for _, want := range []string{
		"node types: aarch64 with glibc ", " (gpu2), x86_64 with glibc ", " (gpu1)\n",
		"environment.yaml:4:5: fast: no wheel for Python 3.11, aarch64 with glibc ", "; available: " + fast + "\n", "hint: list a wheel of fast for each node type",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	if _, there := os.Stat(filepath.Join(s.dir, "environment.lock")); exitStatus(err) != 2 || there == nil {
		t.Errorf("exit code %d, lock: %v; want 2 and no lock", exitStatus(err), there)
	}
	s.run(t, 0, "env", "lock", "--for", "inventory.yaml", "--limit", "gpu1")
	if text := s.run(t, 3, "env", "deploy", "inventory.yaml"); !strings.Contains(text, "gpu2: fit: lockfile has no files for linux_aarch64") || s.current(0) == "" || s.current(1) != "" {
		t.Errorf("a lock for x86_64 alone:\n%s", text)
	}
}
