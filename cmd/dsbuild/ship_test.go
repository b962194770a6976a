//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/wheel"
)

// program runs dsbuild as a process of its own with another home, and returns
// what it printed. It must exit with this code.
func program(t *testing.T, home string, code int, args ...string) (stdout, stderr string) {
	t.Helper()
	return programWith(t, home, "http://127.0.0.1:9", code, args...)
}

// programWith is program where the package index is url/simple, and torch's own url/whl.
func programWith(t *testing.T, home, url string, code int, args ...string) (stdout, stderr string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Args = append([]string{"dsbuild"}, args...)
	cmd.Dir = home
	// No engine: whoever asks for one is seen.
	cmd.Env = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH"), "LC_ALL=C.UTF-8", "DSBUILD_ENGINE=unix://" + filepath.Join(home, "nowhere.sock"), "PIP_INDEX_URL=" + url + "/simple", "DSBUILD_TORCH_INDEX=" + url + "/whl"}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	if got := cmd.ProcessState.ExitCode(); got != code {
		t.Fatalf("dsbuild %s: exit %d (%v), want %d\n%s\n%s", strings.Join(args, " "), got, err, code, &out, &errs)
	}
	checkDocument(t, args, out.String())
	return out.String(), errs.String()
}

// A wheel that the store has is shipped with no engine: the plan that two nodes
// lead to names it. Then there is nothing to do.
func TestShipFromTheStore(t *testing.T) {
	t.Parallel()
	fleet := nodestest.Up(t, nodes.Options{Count: 2, Env: nodes.FakeTorch, QuickPip: true})
	home := t.TempDir()
	inv := fleet.Inventory
	store(t, home, plannedFor(t, home, inv))
	if out, _ := program(t, home, 0, "ship", inv, "--dry-run", "--ops", "cpu_adam"); !strings.HasPrefix(out, "2 nodes, 1 wheel: 1 cached\n") || !strings.Contains(out, "\nnode[1-2]  install  deepspeed-0.19.8") {
		t.Errorf("the plan is\n%s", out)
	}

	out, _ := program(t, home, 0, "ship", inv, "--ops", "cpu_adam", "--json", "--report", "r.html")
	var r report.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil || r.Summary.OK != 2 || !r.Nodes[1].Changed || len(r.Groups) != 1 || r.Groups[0].State != "store" || len(r.Groups[0].Why) == 0 {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := os.Stat(filepath.Join(home, "dist", r.Groups[0].Wheel)); err != nil {
		t.Error(err)
	}
	if page, err := os.ReadFile(filepath.Join(home, "r.html")); err != nil || !bytes.Contains(page, []byte("dsbuild ship")) {
		t.Error("no page about dsbuild ship", err)
	}

	out, said := program(t, home, 0, "ship", inv, "--ops", "cpu_adam")
	if !strings.HasSuffix(out, "\nnothing to do: 2 nodes already run their wheels\n") || !strings.Contains(said, "\n2 nodes, 1 wheel: 1 already running\n") || strings.Contains(said, "engine") {
		t.Errorf("%s\n%s", out, said)
	}

	out, said = program(t, home, 0, "ship", inv, "--ops", "cpu_adam", "--force", "--verify", "files", "--forks", "1", "--bwlimit", "1GB", "--timeout", "2m")
	if strings.Contains(out, "nothing to do") || !strings.Contains(out, "2 nodes ok") || !strings.Contains(said, "deploying: 100%") {
		t.Errorf("--force does not install again:\n%s\n%s", out, said)
	}
	if out, _ := program(t, home, 0, "ship", inv, "--ops", "cpu_adam", "--cpu", "x86-64-v2", "--dry-run", "--verbose"); !strings.Contains(out, "-v2  to build") || strings.Contains(out, "--verbose prints") {
		t.Errorf("--cpu x86-64-v2 plans\n%s", out)
	}

	out, _ = program(t, home, 0, "wheel", "--for", inv, "--ops", "cpu_adam", "--json", "-o", "out", "--limit", "node2")
	var doc wheelsResult
	if err := json.Unmarshal([]byte(out), &doc); err != nil || len(doc.Wheels) != 1 || !slices.Equal(doc.Wheels[0].Nodes, []string{"node2"}) || !doc.Wheels[0].Cached {
		t.Fatalf("%v\n%s", err, out)
	}
	if _, err := os.Stat(filepath.Join(home, doc.Wheels[0].Path)); err != nil {
		t.Error(err)
	}
}

// A node that is left out has its hint in the plan and in the report, with the inventory's name.
func TestShipHints(t *testing.T) {
	t.Parallel()
	fleet := nodestest.Up(t, nodes.Options{Count: 2, Env: nodes.FakeTorch, QuickPip: true})
	home := t.TempDir()
	inv := fleet.Inventory
	store(t, home, plannedFor(t, home, inv))
	job := exec.Command(fleet.Nodes[1].Python, "-c", "import time; time.sleep(600)")
	if err := job.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { job.Process.Kill(); job.Wait() })
	for _, args := range [][]string{{"ship", inv, "--ops", "cpu_adam", "--dry-run"}, {"ship", inv, "--ops", "cpu_adam"}} {
		out, said := program(t, home, 3, args...)
		if text := out + said; !strings.Contains(text, "hint: "+change.InUseHint) || strings.Contains(text, "INVENTORY") {
			t.Errorf("%q:\n%s", args, text)
		}
	}
	begin := time.Now()
	if out, said := program(t, home, 3, "ship", inv, "--ops", "cpu_adam", "--in-use", "wait=2s"); time.Since(begin) < 2*time.Second {
		t.Errorf("--in-use wait=2s ended after %s:\n%s\n%s", time.Since(begin), out, said)
	}
	program(t, home, 0, "ship", inv, "--ops", "cpu_adam", "--in-use", "ignore")
}

// plannedFor is the one wheel that an inventory leads to.
func plannedFor(t *testing.T, home, inv string) report.Group {
	t.Helper()
	out, _ := program(t, home, 0, "wheel", "--for", inv, "--ops", "cpu_adam", "--dry-run", "--json")
	var plan struct{ Groups []report.Group }
	if err := json.Unmarshal([]byte(out), &plan); err != nil || len(plan.Groups) != 1 || plan.Groups[0].State != "build" {
		t.Fatalf("%v\n%s", err, out)
	}
	return plan.Groups[0]
}

// store puts a wheel that is what was planned into the store of a home.
func store(t *testing.T, home string, g report.Group) {
	t.Helper()
	opt := wheeltest.Options{
		Python: "cp" + strings.ReplaceAll(g.Python, ".", ""), Torch: g.Torch, CUDA: g.CUDA, CPU: wheel.CPULevel(g.CPU), Plan: g.PlanDigest,
		Ops: []wheeltest.Op{{Name: "cpu_adam", Dir: "adam"}}, Files: wheeltest.LoadedByPython(),
	}
	if strings.HasSuffix(g.Python, "+") { // for several Pythons: of the stable ABI
		opt.Python, opt.Torch, opt.CUDA, opt.Stable = "", "", g.CUDA+".2", g.Torch
		opt.Ops = nil
		for _, level := range wheel.CPULevels(opt.CPU.Machine()) {
			opt.Ops = append(opt.Ops, wheeltest.Op{Name: "cpu_adam", Dir: "adam", Variant: level.Short()})
			opt.Variants = append(opt.Variants, wheel.Variant{Name: level.Short(), Ops: []string{"cpu_adam"}, CPU: string(level)})
		}
	}
	file, m, statement := wheeltest.Built(t, t.TempDir(), opt)
	a, err := pipeline.Export(t.Context(), pipeline.StoredWheel{File: file, Manifest: m, Provenance: statement}, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	kept := pipeline.Store{Dir: filepath.Join(home, ".cache", "dsbuild", "wheels"), Keep: 10}
	if err := kept.Put(t.Context(), g.PlanDigest, a); err != nil {
		t.Fatal(err)
	}
}
