//go:build full && linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
)

// The program for aarch64, which qemu-user runs as it does all programs of a root file system of aarch64, builds a wheel there with Debian's
// compilers, beside an environment that has torch, and deploys it to a node of aarch64. No CPU of aarch64 takes part.
func TestFullAarch64Native(t *testing.T) {
	t.Parallel()
	root := armRoot(t)
	f := armProgram(t, root)
	if version, _, _ := f.dsbuild(t, 0, nil, "--version"); !strings.Contains(version, "linux/arm64") {
		t.Fatalf("%s is no program for aarch64", version)
	}
	out, _, took := f.dsbuild(t, 0, noEngine(t), "wheel", "--builder", "host", "--env", armHome+"/train/bin/python", "--ops", "cpu_adam", "--json")
	var doc wheelResult
	if err := json.Unmarshal([]byte(out), &doc); err != nil || len(doc.Wheels) != 1 {
		t.Fatalf("%v: %s", err, out)
	}
	w := doc.Wheels[0]
	w.Path = filepath.Join(f.dir, w.Path)
	name := regexp.MustCompile(`^deepspeed-[^-]+\+ops851f1a71-\d+_[0-9a-f]{8}-py3-none-(manylinux_2_(?:17|24)_aarch64)\.whl$`).FindStringSubmatch(filepath.Base(w.Path))
	if name == nil || w.Cached || w.Manifest.Builder != "host" {
		t.Fatalf("%+v", w)
	}
	t.Logf("result: dsbuild for aarch64 under qemu-user: %s, %d bytes, in %.0f s", filepath.Base(w.Path), w.Size, took.Seconds())
	isTagged(t, w.Path, name[1])
	smokeTestRan(t, filepath.Join(root, armHome, ".local", "state", "dsbuild", "logs"), w, "cpu_adam: one step equals torch's", "1 ops work")
	asksAsCross(t, w.Path)

	arm := nodestest.Up(t, nodes.Options{Dir: filepath.Join(f.dir, "arm"), Count: 1, Env: nodes.NoPython})
	node := arm.Nodes[0]
	node.Python = armPython(t, root, filepath.Join(node.Dir, "venv"))
	f.nodes = []realNode{{"gh1", "3.11", nodes.DefaultTorch, "NVIDIA GH200 480GB, 9.0, 580.65.06", arm, node}}
	f.write(t, arm)
	r, _, took := f.report(t, 0, nil, "deploy", f.inventory, "--wheel", w.Path)
	if r.Summary.OK != 1 || !slices.Equal(changedNodes(r), []string{"gh1"}) {
		t.Fatalf("deploy: %+v", r.Nodes)
	}
	t.Logf("result: it deploys that to a node of aarch64 in %.0f s", took.Seconds())
	r, _, took = f.report(t, 0, nil, "verify", f.inventory, "--wheel", w.Path)
	if r.Summary.OK != 1 || !r.Consistent {
		t.Errorf("verify: %+v", r.Nodes)
	}
	t.Logf("result: and verifies it in %.0f s", took.Seconds())
	const step = `
import torch, deepspeed
from deepspeed.ops.adam import DeepSpeedCPUAdam
ours, theirs = (torch.nn.Parameter(torch.ones(1000)) for _ in range(2))
ours.grad, theirs.grad = torch.linspace(-1, 1, 1000), torch.linspace(-1, 1, 1000)
DeepSpeedCPUAdam([ours], lr=1e-2).step()
torch.optim.AdamW([theirs], lr=1e-2, weight_decay=0).step()
print("apart by", (ours - theirs).abs().max().item() < 1e-6)`
	if says := command(t, node.Home, "env", "DS_ACCELERATOR=cuda", node.Python, "-W", "ignore", "-c", step); !strings.Contains(says, "apart by True") {
		t.Errorf("a step of CPU Adam on the node: %s", says)
	}
}

// armHome is the home of a user in a root file system of aarch64: in it train is an environment that has torch.
const armHome = "/home/user"

// armProgram compiles the program for aarch64. The fleet's program is a script that runs it in a root file system, with a new home. uv and
// its downloads stay there from test to test.
func armProgram(t *testing.T, root string) *realFleet {
	t.Helper()
	f := &realFleet{dir: t.TempDir()}
	f.inventory, f.program = filepath.Join(f.dir, "inventory.yaml"), filepath.Join(f.dir, "dsbuild.sh")
	// FLAGS of the Makefile: Go's cache has the packages
	command(t, ".", "env", "GOARCH=arm64", "CGO_ENABLED=0", "go", "build", "-trimpath", "-gcflags=all=-dwarf=false", "-ldflags=-w", "-o", filepath.Join(f.dir, "bin", "dsbuild"), ".")
	script, err := filepath.Abs("testdata/aarch64/machine.sh")
	if err != nil {
		t.Fatal(err)
	}
	home, host := filepath.Join(root, armHome), filepath.Join(root, "home", "host")
	remove := func() error {
		return errors.Join(os.RemoveAll(home), os.RemoveAll(filepath.Join(host, "environments")), os.RemoveAll(filepath.Join(host, "objects")))
	}
	t.Cleanup(func() {
		if err := remove(); err != nil {
			t.Error(err)
		}
	})
	venv, cache := filepath.Join(home, "train"), filepath.Join(home, ".cache", "dsbuild")
	err = errors.Join(remove(), os.MkdirAll(host, 0o700), os.MkdirAll(cache, 0o755), os.Symlink("/home/host", filepath.Join(cache, "host")),
		os.MkdirAll(filepath.Join(venv, "bin"), 0o755), os.Symlink("/usr/bin/python3.11", filepath.Join(venv, "bin", "python")))
	for path, text := range map[string]string{
		filepath.Join(venv, "pyvenv.cfg"):                                      "home = /usr/bin\ninclude-system-site-packages = false\n",
		filepath.Join(venv, "lib", "python3.11", "site-packages", "torch.pth"): "/site\n",
		f.program: fmt.Sprintf("#!/bin/sh\nexec sh %s %s %s env HOME=%s XDG_CACHE_HOME=%[4]s/.cache XDG_STATE_HOME=%[4]s/.local/state LD_LIBRARY_PATH=/nvidia %[3]s/bin/dsbuild \"$@\"\n",
			script, root, f.dir, armHome),
	} {
		err = errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755))
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// asksAsCross compares the ops of a wheel that a machine of aarch64 built with those that the cross compiler makes: they ask the same
// functions of the same libraries. Their code differs a little where Debian has compilers of two revisions. Built again without caches, the
// wheel of the cross compiler, which has device code, too, is the same.
func asksAsCross(t *testing.T, path string) {
	t.Helper()
	flags := []string{"--builder", "dagger", "--gpu", "GH200", "--ops", "cpu_adam,fused_adam"}
	w := build(t, append(flags, "-o", t.TempDir())...)
	if again := build(t, append(flags, "--no-cache", "-o", t.TempDir())...); again.SHA256 != w.SHA256 || again.Cached {
		t.Errorf("a second build without caches: %s, %s", w.SHA256, again.SHA256)
	}
	native, cross := unzipped(t, path), unzipped(t, w.Path)
	asks := func(file string) []string {
		needed := regexp.MustCompile(`NEEDED.*`).FindAllString(command(t, ".", "readelf", "-dW", file), -1)
		var functions []string
		for _, row := range regexp.MustCompile(`(\w+) +DEFAULT +(?:UND|\d+) (\S+)`).FindAllStringSubmatch(command(t, ".", "readelf", "--dyn-syms", "-W", file), -1) {
			functions = append(functions, row[1]+" "+row[2])
		}
		slices.Sort(functions)
		return append(needed, functions...)
	}
	for _, file := range sharedObjects(t, native) {
		one, two := asks(filepath.Join(native, file)), asks(filepath.Join(cross, file))
		if len(one) < 10 || !slices.Equal(one, two) {
			t.Errorf("%s: %q\nthat of the cross compiler: %q", file, one, two)
		}
		by := func(dir string) string {
			return strings.Join(regexp.MustCompile(`GCC: .*`).FindAllString(command(t, dir, "readelf", "-p", ".comment", file), -1), ", ")
		}
		size := func(dir string) int { return len(section(t, filepath.Join(dir, file), ".text")) }
		t.Logf("result: %s: %d libraries and functions, the same as of the cross compiler; %d bytes of code by %s, %d by %s",
			filepath.Base(file), len(one), size(native), by(native), size(cross), by(cross))
	}
}
