//go:build full

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
	"github.com/dsbuild/dsbuild/internal/testkit/python"
)

// realFleet is six nodes of three kinds in one inventory, and the program by
// itself, with a store and a folder of its own.
type realFleet struct {
	inventory string
	dir       string
	program   string
	nodes     []realNode // as in the inventory
}

type realNode struct {
	name   string
	python string
	torch  string
	gpu    string // as nvidia-smi says it; "" where there is none
	fleet  *nodes.Fleet
	*nodes.Node
}

// secondPython is another Python than that of this machine, with a torch for it
// and a system that it is the Python of, no newer than this one.
func secondPython(t *testing.T) (version, torch string) {
	t.Helper()
	version, torch = "3.10", "2.14.1" // new enough for the stable ABI
	if _, err := python.Find(t.Context(), version); err != nil {
		t.Fatalf("two kinds of nodes need a Python %s beside 3.11: %v", version, err)
	}
	return version, torch
}

// emptyFleet returns a fleet that has no nodes yet.
func emptyFleet(t *testing.T) *realFleet {
	t.Helper()
	dir := t.TempDir()
	return &realFleet{dir: dir, inventory: filepath.Join(dir, "inventory.yaml"), program: makeProgram(t)}
}

func newRealFleet(t *testing.T) *realFleet {
	t.Helper()
	f := emptyFleet(t)
	version, torch := secondPython(t)
	first := nodestest.Up(t, nodes.Options{Dir: filepath.Join(f.dir, "first"), Count: 4, Env: nodes.WithTorch})
	second := nodestest.Up(t, nodes.Options{Dir: filepath.Join(f.dir, "second"), Count: 2, Env: nodes.WithTorch, Python: version, Torch: torch})
	const a100, turing = "NVIDIA A100-SXM4-80GB, 8.0, 580.65.06", "NVIDIA GeForce RTX 2080 Ti, 7.5, 580.65.06"
	for i, gpu := range []string{a100, a100, turing, turing} {
		f.nodes = append(f.nodes, realNode{fmt.Sprintf("gpu%d", i+1), "3.11", nodes.DefaultTorch, gpu, first, first.Nodes[i]})
	}
	for i := range second.Nodes {
		f.nodes = append(f.nodes, realNode{fmt.Sprintf("cpu%d", i+1), version, torch, "", second, second.Nodes[i]})
	}
	f.write(t, first, second)
	return f
}

// write writes the inventory of both fleets, with what nvidia-smi says on each.
func (f *realFleet) write(t *testing.T, fleets ...*nodes.Fleet) {
	t.Helper()
	var keys []byte
	for _, one := range fleets {
		text, err := os.ReadFile(one.KnownHosts)
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, text...)
	}
	known := filepath.Join(f.dir, "known_hosts")
	inventory := fmt.Sprintf("known_hosts: %s\nnodes:\n", known)
	for _, n := range f.nodes {
		bin, accelerator := filepath.Join(n.Dir, "bin"), ""
		if err := os.MkdirAll(bin, 0o755); err != nil {
			t.Fatal(err)
		}
		if n.gpu != "" {
			accelerator = ", DS_ACCELERATOR: cuda" // which DeepSpeed would find, were the GPU there
			if err := os.WriteFile(filepath.Join(bin, "nvidia-smi"), []byte("#!/bin/sh\necho '"+n.gpu+"'\n"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		inventory += fmt.Sprintf("  - {hosts: %s, address: %s, port: %d, user: %s, identity_file: %s, python: %s, env: {PATH: %q%s}}\n",
			n.name, n.Address, n.Port, n.fleet.User, n.fleet.IdentityFile, n.Python, bin+":/usr/local/bin:/usr/bin:/bin", accelerator)
	}
	for name, text := range map[string][]byte{known: keys, f.inventory: []byte(inventory)} {
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// command prepares dsbuild with a store of its own.
func (f *realFleet) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), f.program, args...)
	cmd.Dir = f.dir
	cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+filepath.Join(f.dir, "cache"))
	return cmd
}

// dsbuild runs the program, which must exit with this code.
func (f *realFleet) dsbuild(t *testing.T, want int, env []string, args ...string) (stdout, stderr string, took time.Duration) {
	t.Helper()
	cmd := f.command(t, args...)
	cmd.Env = append(cmd.Env, env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, io.MultiWriter(&errs, testLog{t})
	begin := time.Now()
	err := cmd.Run()
	took = time.Since(begin)
	if code := exitStatus(err); code != want {
		t.Fatalf("dsbuild %s: exit %d (%v), want %d\n%s\n%s", strings.Join(args, " "), code, err, want, &out, &errs)
	}
	return out.String(), errs.String(), took
}

// report runs a fleet command and reads its report.
func (f *realFleet) report(t *testing.T, want int, env []string, args ...string) (report.Report, string, time.Duration) {
	t.Helper()
	out, errs, took := f.dsbuild(t, want, env, append(args, "--json")...)
	var r report.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil || len(r.Nodes) != len(f.nodes) {
		t.Fatalf("%v: %s", err, out)
	}
	return r, errs, took
}

// noEngine is an environment in which whoever asks for an engine fails.
func noEngine(t *testing.T) []string {
	t.Helper()
	return []string{"DSBUILD_ENGINE=unix://" + filepath.Join(t.TempDir(), "nowhere.sock")}
}

// forTorch are the words that ship wheels for one torch each. Two ops show what is to be shown: with device code and without.
func (f *realFleet) forTorch(more ...string) []string {
	return append([]string{"ship", f.inventory, "--abi", "torch", "--ops", "utils,fused_adam"}, more...)
}

// Six nodes of three kinds get two wheels, one of them for two kinds of GPU. A
// second run needs no engine, builds and sends nothing; verify agrees, and names
// the one file that somebody edited; ship mends that node alone. That is with --abi torch: by default one
// wheel serves all six.
func TestFullFleetShip(t *testing.T) {
	f := newRealFleet(t)
	plan, _, _ := f.dsbuild(t, 0, noEngine(t), f.forTorch("--dry-run", "--verbose")...)
	for _, want := range []string{"6 nodes, 2 wheels: 2 to build\n", "arch 7.5;8.0", "for gpu[1-4]\n", "for cpu[1-2]\n"} {
		if !strings.Contains(plan, want) {
			t.Errorf("the plan does not say %q:\n%s", want, plan)
		}
	}
	if _, err := os.Stat(filepath.Join(f.dir, "dist")); err == nil {
		t.Error("a dry run made dist")
	}

	r, _, took := f.report(t, 0, nil, f.forTorch()...)
	f.served(t, r)
	t.Logf("result: 6 nodes of three kinds: %d wheels built and deployed in %.0f s", len(r.Groups), took.Seconds())
	for _, g := range r.Groups {
		t.Logf("result: %s for %s: %s, built in %.0f s", g.Name, strings.Join(g.Nodes, ", "), g.Wheel, g.Seconds)
	}

	out, errs, took := f.dsbuild(t, 0, noEngine(t), f.forTorch("--report", "again.json")...)
	if !strings.HasSuffix(out, "\nnothing to do: 6 nodes already run their wheels\n") {
		t.Errorf("the second run ends with\n%s", out)
	}
	for _, no := range []string{"compile", "engine", "sending", "from the store"} {
		if strings.Contains(errs, no) {
			t.Errorf("the second run says %q:\n%s", no, errs)
		}
	}
	if again := f.read(t, "again.json"); !again.Consistent || len(changedNodes(again)) > 0 {
		t.Errorf("the second run changed %q, consistent %v", changedNodes(again), again.Consistent)
	}
	t.Logf("result: a second run, with no engine: nothing to do, %.1f s", took.Seconds())

	f.editedByHand(t)
	f.interrupted(t)
	f.stableABI(t)
}

// served checks the report of the first run, and asks the nodes themselves.
func (f *realFleet) served(t *testing.T, r report.Report) {
	t.Helper()
	if len(r.Groups) != 2 || len(r.Wheels) != 2 || r.Summary.OK != 6 || !r.Consistent || len(changedNodes(r)) != 6 {
		t.Fatalf("%+v, %+v, consistent %v", r.Groups, r.Summary, r.Consistent)
	}
	if g := r.Groups[0]; !slices.Equal(g.Archs, []string{"7.5", "8.0"}) || g.State != "built" || g.Torch != nodes.DefaultTorch {
		t.Errorf("%+v", g)
	}
	if g := r.Groups[1]; len(g.Archs) < 7 || !slices.Equal(slices.Sorted(slices.Values(g.Ops)), []string{"fused_adam", "utils"}) { // no GPU is visible there
		t.Errorf("%+v", g)
	}
	for i, n := range f.nodes {
		group := r.Groups[i/4]
		says := command(t, n.Home, n.Python, "-c", "import importlib.metadata as m; print(m.version('deepspeed'), m.version('torch'))")
		if got := r.Nodes[i]; got.Wheel != group.Wheel || !strings.Contains(says, got.After.Version) || !strings.Contains(says, n.torch) {
			t.Errorf("%s: %s, wheel %s, says %s", n.name, got.Status, got.Wheel, says)
		}
	}
}

func (f *realFleet) read(t *testing.T, name string) report.Report {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(f.dir, name))
	if err != nil {
		t.Fatal(err)
	}
	var r report.Report
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

func changedNodes(r report.Report) []string {
	var names []string
	for _, n := range r.Nodes {
		if n.Changed {
			names = append(names, n.Name)
		}
	}
	return names
}

// editedByHand has one file of one node edited.
func (f *realFleet) editedByHand(t *testing.T) {
	t.Helper()
	dist := filepath.Join(f.dir, "dist")
	if r, _, _ := f.report(t, 0, nil, "verify", f.inventory, "--wheel", dist); r.Summary.OK != 6 {
		t.Errorf("verify: %+v", r.Summary)
	}
	odd := f.nodes[4]
	files, _ := filepath.Glob(filepath.Join(odd.Dir, "venv", "lib", "python*", "site-packages", "deepspeed", "runtime", "engine.py"))
	if len(files) != 1 {
		t.Fatal(files)
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	// pip made a hard link of nothing here: this is the node's own file.
	if err := os.WriteFile(files[0], append(text, "\n# tried something\n"...), 0o644); err != nil {
		t.Fatal(err)
	}
	r, _, _ := f.report(t, 3, nil, "verify", f.inventory, "--wheel", dist)
	for i, n := range r.Nodes {
		named := strings.Contains(n.Error, "deepspeed/runtime/engine.py")
		if odd := i == 4; named != odd || (n.Status == report.Differs) != odd {
			t.Errorf("verify: %s is %s: %s", n.Name, n.Status, n.Error)
		}
	}
	t.Logf("result: verify names %s: %s", odd.name, r.Nodes[4].Error)
	if r, _, _ := f.report(t, 0, noEngine(t), f.forTorch()...); !slices.Equal(changedNodes(r), []string{odd.name}) {
		t.Errorf("ship mended %q", changedNodes(r))
	}
}

// interrupted stops a run that builds anew: every node runs what it ran.
func (f *realFleet) interrupted(t *testing.T) {
	t.Helper()
	cmd := f.command(t, f.forTorch("--no-cache", "-o", "other")...)
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said []byte
	for buf := make([]byte, 4096); !bytes.Contains(said, []byte("toolchain")) && !bytes.Contains(said, []byte("source:")); {
		n, err := out.Read(buf)
		if said = append(said, buf[:n]...); err != nil {
			t.Fatalf("%v\n%s", err, said)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	rest, _ := io.ReadAll(out)
	if code := exitStatus(cmd.Wait()); code != exitInterrupted {
		t.Errorf("interrupted: exit %d\n%s%s", code, said, rest)
	}
	if r, _, _ := f.report(t, 0, noEngine(t), f.forTorch()...); len(changedNodes(r)) > 0 {
		t.Errorf("after an interrupt ship changed %q", changedNodes(r))
	}
}

// stableABI ships one wheel to the six nodes, which have two torches and two Pythons.
func (f *realFleet) stableABI(t *testing.T) {
	t.Helper()
	for _, words := range [][]string{{"ship", f.inventory}, {"ship", f.inventory, "--ops", "cpu_adam,utils", "--allow-op-removal"}} {
		plan, _, _ := f.dsbuild(t, 0, noEngine(t), append(words, "--dry-run", "--verbose")...)
		if !strings.Contains(plan, "6 nodes, 1 wheel: 1 to build\n") || !strings.Contains(plan, "torch 2.10 or newer and Python 3.10+") {
			t.Errorf("%q: the plan is\n%s", words, plan)
		}
	}
	r, _, took := f.report(t, 0, nil, "ship", f.inventory)
	if len(r.Groups) != 1 || len(r.Wheels) != 1 || r.Summary.OK != 6 || !r.Consistent || len(changedNodes(r)) != 6 || len(r.Groups[0].Archs) < 7 {
		t.Fatalf("%+v, %+v, consistent %v", r.Groups, r.Summary, r.Consistent)
	}
	t.Logf("result: the same six nodes by default: 1 wheel, %s, built in %.0f s, all in %.0f s", r.Groups[0].Wheel, r.Groups[0].Seconds, took.Seconds())
	for i, n := range f.nodes {
		load := "from deepspeed.ops.op_builder.all_ops import ALL_OPS; print(ALL_OPS['cpu_adam'].load().__file__)"
		if says := command(t, n.Home, "env", "DS_ACCELERATOR=cuda", n.Python, "-c", load); !strings.Contains(says, "libcpu_adam_op.v") {
			t.Errorf("%s runs %+v and says %s", n.name, r.Nodes[i].After, says)
		}
	}
	if out, _, _ := f.dsbuild(t, 0, noEngine(t), "ship", f.inventory); !strings.HasSuffix(out, "\nnothing to do: 6 nodes already run their wheels\n") {
		t.Errorf("the second run ends with\n%s", out)
	}
	// The wheels for one torch still lie beside it. What a node runs and fits is right.
	if r, _, _ := f.report(t, 0, nil, "verify", f.inventory, "--wheel", filepath.Join(f.dir, "dist")); r.Summary.OK != 6 || !r.Consistent {
		t.Errorf("verify: %+v, consistent %v", r.Summary, r.Consistent)
	}
}
