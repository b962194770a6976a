//go:build full && linux

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/environment"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
	"github.com/dsbuild/dsbuild/internal/testkit/wheelindex"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/wheel"
)

// Four nodes, two of each CPU, get whole environments by one command: each node the DeepSpeed, the uv and the packages of its own CPU.
// Every op loads. The aarch64 nodes are those of this machine whose Python and uv qemu-user runs. The wheels of torch lead to the torches
// that are there already: a real one is 3 GB on each node.
func TestFullAarch64Env(t *testing.T) {
	t.Parallel()
	f := emptyFleet(t)
	root := armRoot(t)
	x86 := nodestest.Up(t, nodes.Options{Dir: filepath.Join(f.dir, "x86"), Count: 2, Env: nodes.WithTorch})
	arm := nodestest.Up(t, nodes.Options{Dir: filepath.Join(f.dir, "arm"), Count: 2, Env: nodes.NoPython})
	for i := range 2 {
		armPython311(t, root, arm.Nodes[i].Dir)
		f.nodes = append(f.nodes,
			realNode{fmt.Sprintf("a%d", i+1), "3.11", nodes.DefaultTorch, "NVIDIA A100-SXM4-80GB, 8.0, 580.65.06", x86, x86.Nodes[i]},
			realNode{fmt.Sprintf("gh%d", i+1), "3.11", nodes.DefaultTorch, "NVIDIA GH200 480GB, 9.0, 580.65.06", arm, arm.Nodes[i]})
	}
	f.write(t, x86, arm)
	x := wheelindex.New(t)
	x.PublishUV(t, wheel.X86, wheel.Arm)
	for machine, site := range map[string]string{wheel.X86: filepath.Join(x86.Nodes[0].Dir, "venv", "lib", "python3.11", "site-packages"), wheel.Arm: filepath.Join(root, "site")} {
		torchElsewhere(t, x, machine, site)
	}
	text := "name: train\npython: 3.11\ntorch: " + nodes.DefaultTorch + "\ndeepspeed: {version: 0.19.8, ops: [cpu_adam, fused_adam, utils]}\nrequirements: ["
	// The wheels are built first, as the index is not for builds: this environment cannot be locked.
	f.writeEnv(t, text+"hjson==0.0.0.1]\n")
	_, said, building := f.dsbuild(t, 2, nil, "ship", f.inventory, "--env", "environment.yaml")
	if !strings.Contains(said, "hjson") {
		t.Errorf("the lock failed otherwise: %s", said)
	}
	f.writeEnv(t, text+"einops]\n")
	r, _, took := f.report(t, 0, noEngine(t), "ship", f.inventory, "--env", "environment.yaml", "--extra-index-url", x.URL)
	l, err := environment.ReadLock(filepath.Join(f.dir, "environment.lock"))
	if err != nil || len(l.Sets) != 2 || r.Summary.OK != 4 || len(changedNodes(r)) != 4 || !r.Consistent {
		t.Fatalf("%v, %d sets, %+v", err, len(l.Sets), r.Summary)
	}
	for i, n := range r.Nodes {
		set := l.Sets[slices.IndexFunc(l.Sets, func(s environment.Set) bool { return s.Machine == []string{wheel.X86, wheel.Arm}[i%2] })]
		if n.Environment.Digest != set.Digest || !strings.HasSuffix(n.Wheel, "_"+set.Machine+".whl") || !strings.Contains(set.Installer.File, "_"+set.Machine) || n.Sent < set.Installer.Size {
			t.Errorf("%s: %+v, %s with %s; want the set of %s", n.Name, n.Environment, n.Wheel, set.Installer.File, set.Platform)
		}
	}
	for _, set := range l.Sets {
		t.Logf("result: ship --env to four nodes, two of each CPU: %s: %d files, %s, %s", set.Platform, len(set.Files), set.File("deepspeed").File, set.Installer.File)
	}
	t.Logf("result: the wheels in %.0f s, their builds and tests under qemu-user included; lock and all four environments in %.0f s", building.Seconds(), took.Seconds())
	if out, _, again := f.dsbuild(t, 0, noEngine(t), "env", "deploy", f.inventory, "--verify", "files"); !strings.Contains(out, "ok, unchanged") {
		t.Errorf("a second run: %s", out)
	} else {
		t.Logf("result: a second run, which compares every file, in %.0f s", again.Seconds())
	}
	// The lock of a fleet of x86_64 alone has nothing for the others.
	f.dsbuild(t, 0, noEngine(t), "ship", f.inventory, "--env", "environment.yaml", "--extra-index-url", x.URL, "--limit", "a1,a2", "--verify", "files")
	refused, _, _ := f.report(t, 3, nil, "env", "deploy", f.inventory, "--verify", "files")
	for i, n := range refused.Nodes {
		if i%2 == 1 && (n.Status != report.Refused || n.Sent > 0 || !strings.HasPrefix(n.Error, "lockfile has no files for linux_aarch64")) {
			t.Errorf("a lock for x86_64 alone: %+v", n)
		}
	}
}

// writeEnv writes environment.yaml.
func (f *realFleet) writeEnv(t *testing.T, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(f.dir, "environment.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// torchElsewhere adds a wheel of torch to an index: it has no files but one that leads to a folder with torch, by code, as a path
// outside of an environment is rejected.
func torchElsewhere(t *testing.T, x *wheelindex.Index, machine, site string) {
	t.Helper()
	stem, tag := "torch-"+nodes.DefaultTorch, "cp311-cp311-manylinux_2_28_"+machine
	wheeltest.Write(t, filepath.Join(x.Dir, stem+"-"+tag+".whl"), map[string]string{
		"torch_elsewhere.pth":        fmt.Sprintf("import site; site.addsitedir(%q)\n", site),
		stem + ".dist-info/METADATA": "Metadata-Version: 2.1\nName: torch\nVersion: " + nodes.DefaultTorch + "\n",
		stem + ".dist-info/WHEEL":    "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: " + tag + "\n",
	})
}

// startUnderQemu has a Python that qemu-user runs start programs for aarch64 as the kernel of such a machine would. Within the root
// of aarch64, which has no qemu, the kernel does.
const startUnderQemu = `import _posixsubprocess, os
start = _posixsubprocess.fork_exec
def fork_exec(words, programs, *rest):
    for program in programs:
        try:
            with open(program, "rb") as f:
                head = f.read(20)
        except OSError:
            continue
        if head[:4] == b"\x7fELF" and head[18] == 183:
            words, programs = [QEMU, "-0", words[0], program] + list(words[1:]), (QEMU.encode(),)
        break
    return start(words, programs, *rest)
if os.path.exists(QEMU):
    _posixsubprocess.fork_exec = fork_exec
`

// armPython311 puts a Python 3.11 that qemu-user runs into bin of a node, which is on its PATH.
func armPython311(t *testing.T, root, node string) {
	t.Helper()
	script, err := os.ReadFile(armPython(t, root, filepath.Join(node, "venv")))
	if err != nil {
		t.Fatal(err)
	}
	qemu, err := exec.LookPath("qemu-aarch64-static")
	if err != nil {
		t.Fatal(err)
	}
	local := filepath.Join(root, "usr", "lib", "python3", "dist-packages") // not the first site-packages, which is the node's
	bin := filepath.Join(node, "bin")
	err = errors.Join(
		os.MkdirAll(local, 0o755), os.MkdirAll(bin, 0o755),
		os.WriteFile(filepath.Join(local, "start_under_qemu.py"), []byte("QEMU = '"+qemu+"'\n"+startUnderQemu), 0o644),
		os.WriteFile(filepath.Join(local, "start_under_qemu.pth"), []byte("import start_under_qemu\n"), 0o644),
		os.WriteFile(filepath.Join(bin, "python3.11"), script, 0o755),
	)
	if err != nil {
		t.Fatal(err)
	}
}
