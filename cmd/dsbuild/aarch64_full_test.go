//go:build full && linux

package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/dsbuild/dsbuild/dockerfiles"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/testkit/debian"
	"github.com/dsbuild/dsbuild/internal/testkit/fulltools"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/wheel"
)

// Other programs find in a wheel for GH200 that x86_64 builds what dsbuild says of it, and its device code is that of the wheel for
// x86_64. In the smoke test of the build, which qemu-user runs on a CPU with Armv8-A alone, each op loads, and the CPU
// optimizers compute what torch does. No CPU of aarch64 and no GPU takes part.
func TestFullAarch64(t *testing.T) {
	ops := armOps()
	flags := []string{"--ops", strings.Join(ops, ","), "-o", t.TempDir()}
	w := build(t, append(flags, "--gpu", "GH200")...)
	name := regexp.MustCompile(`^deepspeed-[^-]+\+ops[0-9a-f]{8}\.sm90-\d+_[0-9a-f]{8}-py3-none-(manylinux_2_(?:17|24)_aarch64)\.whl$`).FindStringSubmatch(filepath.Base(w.Path))
	if name == nil {
		t.Fatal(w.Path)
	}
	t.Logf("result: dsbuild wheel --gpu GH200: %s, %d bytes, built in %.0f s", filepath.Base(w.Path), w.Size, w.Seconds)
	if found := cuobjdump(t, w.Path); found["libfused_adam_op"] != "9.0" {
		t.Errorf("cuobjdump finds %q, want 9.0 in fused_adam", found)
	}
	isTagged(t, w.Path, name[1])
	smokeTestRan(t, pipeline.DefaultLogs(), w, "cpu_adam: one step equals torch's", "cpu_adagrad: one step equals", "cpu_lion: one step equals", fmt.Sprintf("%d ops work", len(ops)))

	arm := unzipped(t, w.Path)
	x86 := unzipped(t, build(t, append(flags, "--gpu", "H100", "--cuda", "13", "--cpu", "v2", "-o", t.TempDir())...).Path)
	const deviceCode = ".nv_fatbin"
	for _, file := range sharedObjects(t, arm) {
		for _, row := range strings.Split(command(t, arm, "readelf", "-lW", file), "\n") {
			if fields := strings.Fields(row); len(fields) > 0 && fields[0] == "LOAD" && fields[len(fields)-1] != "0x10000" {
				t.Errorf("%s: %s", file, row)
			}
		}
		if one, two := section(t, filepath.Join(arm, file), deviceCode), section(t, filepath.Join(x86, file), deviceCode); one != two {
			t.Errorf("%s: %d bytes of device code, that for x86_64 has %d others", file, len(one), len(two))
		} else {
			t.Logf("result: %s: %d bytes of device code, as for x86_64", filepath.Base(file), len(one))
		}
	}
}

// armOps are the ops of the wheels for GH200 that the tests load.
func armOps() []string {
	return []string{"cpu_adam", "cpu_adagrad", "cpu_lion", "utils", "fused_adam", "fused_lamb", "pin_memory", "async_io"}
}

// isTagged checks that auditwheel gives a wheel for aarch64 its tag, and that an installer takes it on such a machine, and on no other.
func isTagged(t *testing.T, path, tag string) {
	t.Helper()
	if out := strings.Join(strings.Fields(fullTool(t, "auditwheel", "show", path)), " "); !strings.Contains(out, tag) {
		t.Errorf("auditwheel: %s", out)
	}
	uv := uvProgram(t)
	for platform, want := range map[string]bool{"aarch64-manylinux_2_28": true, "x86_64-manylinux_2_28": false} {
		out, err := exec.Command(uv, "pip", "install", "--dry-run", "--no-deps", "--target", t.TempDir(), "--python-platform", platform, "--python-version", "3.11", path).CombinedOutput()
		if (err == nil) != want {
			t.Errorf("uv on %s: %v %s", platform, err, out)
		}
	}
}

func uvProgram(t *testing.T) string {
	t.Helper()
	_, uv, err := pythonAndUV(t)
	if err != nil {
		t.Fatal(err)
	}
	return uv
}

// sharedObjects lists the ops of an unzipped wheel.
func sharedObjects(t *testing.T, dir string) []string {
	t.Helper()
	files := strings.Fields(command(t, dir, "find", "deepspeed", "-name", "*.so"))
	if len(files) == 0 {
		t.Fatal("no ops")
	}
	return files
}

// section returns the content of a section of an op; "" if it has none of this name.
func section(t *testing.T, file, name string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "code")
	command(t, ".", "objcopy", "-I", "elf64-little", "-O", "binary", "--only-section="+name, file, out)
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// smokeTestRan checks the words of the smoke test in the newest build of a plan, whose log is in dir.
func smokeTestRan(t *testing.T, dir string, w wheel.Artifact, said ...string) {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(dir, "wheel-*-"+w.Manifest.PlanDigest[:12]+".log"))
	if err != nil || len(logs) == 0 {
		t.Fatalf("no log of the build: %v", err)
	}
	text, err := os.ReadFile(slices.Max(logs))
	if err != nil {
		t.Fatal(err)
	}
	_, smoke, _ := strings.Cut(string(text), "== "+pipeline.SmokeStep+":")
	for _, want := range append(said, "with NEON arithmetic capability") {
		if !strings.Contains(smoke, want) {
			t.Fatalf("want %q of the smoke test:\n%s", want, smoke)
		}
	}
	for line := range strings.Lines(smoke) {
		if strings.Contains(line, ": ") && !strings.HasPrefix(line, "/") && !strings.HasPrefix(line, "Config") { // those are of torch and DeepSpeed
			t.Logf("result: under qemu-user: %s", strings.TrimSpace(line))
		}
	}
}

// Four nodes, two of each CPU, get two wheels by one command: each node that of its own CPU. The aarch64 nodes are those of this machine
// whose Python qemu-user runs. The wheel of the other CPU is refused before anything is sent.
func TestFullAarch64Ship(t *testing.T) {
	t.Parallel()
	f := emptyFleet(t)
	root := armRoot(t)
	x86 := nodestest.Up(t, nodes.Options{Dir: filepath.Join(f.dir, "x86"), Count: 2, Env: nodes.WithTorch})
	arm := nodestest.Up(t, nodes.Options{Dir: filepath.Join(f.dir, "arm"), Count: 2, Env: nodes.NoPython})
	for i := range 2 {
		arm.Nodes[i].Python = armPython(t, root, filepath.Join(arm.Nodes[i].Dir, "venv"))
		f.nodes = append(f.nodes,
			realNode{fmt.Sprintf("a%d", i+1), "3.11", nodes.DefaultTorch, "NVIDIA A100-SXM4-80GB, 8.0, 580.65.06", x86, x86.Nodes[i]},
			realNode{fmt.Sprintf("gh%d", i+1), "3.11", nodes.DefaultTorch, "NVIDIA GH200 480GB, 9.0, 580.65.06", arm, arm.Nodes[i]})
	}
	f.write(t, x86, arm)
	r, _, took := f.report(t, 0, nil, "ship", f.inventory)
	if len(r.Groups) != 2 || r.Summary.OK != 4 || len(changedNodes(r)) != 4 {
		t.Fatalf("%+v, %+v", r.Groups, r.Summary)
	}
	for i, n := range r.Nodes {
		machine := []string{wheel.X86, wheel.Arm}[i%2]
		own := slices.IndexFunc(r.Groups, func(g report.Group) bool { return slices.Contains(g.Nodes, n.Name) })
		if own < 0 || !strings.HasSuffix(r.Groups[own].Wheel, "_"+machine+".whl") {
			t.Errorf("%s, a node of %s: %+v", n.Name, machine, r.Groups)
		}
	}
	for _, g := range r.Groups {
		t.Logf("result: ship to four nodes, two of each CPU: %s for %s", g.Wheel, strings.Join(g.Nodes, ", "))
	}
	t.Logf("result: all four in %.0f s, the wheels' builds and the tests under qemu-user included", took.Seconds())
	for _, g := range r.Groups {
		refused, _, _ := f.report(t, 3, nil, "deploy", f.inventory, "--wheel", filepath.Join("dist", g.Wheel))
		for _, n := range refused.Nodes {
			if !slices.Contains(g.Nodes, n.Name) && (n.Status != report.Refused || n.Sent > 0 || !strings.HasPrefix(n.Error, "built for ")) {
				t.Errorf("%s gets %s: %+v", n.Name, g.Wheel, n)
			}
		}
	}
}

// oneRoot prevents parallel tests from making the root file system twice.
var oneRoot sync.Mutex

// armRoot returns a root file system of Debian 12 for aarch64, with Python and torch. If it is there already, it stays.
func armRoot(t *testing.T) string {
	t.Helper()
	oneRoot.Lock()
	defer oneRoot.Unlock()
	have := debian.OnPath("mmdebstrap", "qemu-aarch64-static", "aarch64-linux-gnu-gcc-12")
	if err := debian.Ensure(t.Context(), have, "mmdebstrap", "qemu-user-static", "gcc-12-aarch64-linux-gnu", "libc6-dev-arm64-cross"); err != nil {
		t.Fatal(err)
	}
	wanted := []byte(dockerfiles.Constraints(dockerfiles.LockedForArm("3.11")))
	made := sha256.New()
	made.Write(wanted)
	for _, script := range []string{"testdata/aarch64/root.sh", "../../dockerfiles/emulated.sh", "../../dockerfiles/nvidia_standins.py"} {
		text, err := os.ReadFile(script)
		if err != nil {
			t.Fatal(err)
		}
		made.Write(text)
	}
	dir := filepath.Join(fulltools.Dir(t), fmt.Sprintf("aarch64-%.8x", made.Sum(nil)))
	packages := filepath.Join(t.TempDir(), "packages.txt")
	dockerfilesDir, err := filepath.Abs("../../dockerfiles")
	if err := errors.Join(err, os.WriteFile(packages, wanted, 0o644)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "sh", "testdata/aarch64/root.sh", dir, packages, dockerfilesDir)
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(uvProgram(t))+":"+os.Getenv("PATH"), "CC=aarch64-linux-gnu-gcc-12")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir
}

// armPython makes an environment whose Python qemu-user runs, and returns its interpreter. The environment's own program starts qemu,
// so that it also starts where Python starts itself again.
func armPython(t *testing.T, root, venv string) string {
	t.Helper()
	site := filepath.Join(venv, "lib", "python3.11", "site-packages")
	python := filepath.Join(venv, "bin", "python")
	for path, text := range map[string]string{
		filepath.Join(venv, "pyvenv.cfg"): "home = /usr/bin\ninclude-system-site-packages = false\n",
		filepath.Join(site, "torch.pth"):  filepath.Join(root, "site") + "\n",
		python: fmt.Sprintf("#!/bin/sh\nexport QEMU_LD_PREFIX=%[1]s QEMU_CPU=cortex-a72 LD_LIBRARY_PATH=%[1]s/nvidia\n"+
			"exec qemu-aarch64-static -0 \"$0\" %[1]s/usr/bin/python3.11 \"$@\"\n", root),
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	return python
}
