//go:build full && linux

package main

import (
	"archive/zip"
	"errors"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/lists"
	"github.com/dsbuild/dsbuild/internal/testkit/built"
	"github.com/dsbuild/dsbuild/internal/testkit/docker"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/pipeline/engine"
	"github.com/dsbuild/dsbuild/wheel"
)

// torchBase loads the base of dsbuild's own engine, a Debian 12 with Python 3.11, into the daemon, with an environment
// that has torch, DeepSpeed's requirements and pip.
func torchBase(t *testing.T, d *docker.Daemon, name string) {
	t.Helper()
	if engine.NewBases(nil).There("bookworm") == "" {
		needs.Missing(t, "the base of dsbuild's own engine: make engine")
	}
	bin := filepath.Dir(pythonWithPackages(t, []string{"torch==2.15.0", "nvidia-ml-py", "pip"}, "3.11"))
	file := filepath.Join(t.TempDir(), "base.tar")
	command(t, "/", "cp", engine.NewBases(nil).There("bookworm"), file)
	command(t, "/", "tar", "--append", "--file", file, "--exclude", "__pycache__", filepath.Dir(bin)[1:])
	d.Run(t, "import", "--change", "ENV PATH="+bin+":/usr/sbin:/usr/bin:/sbin:/bin", file, name)
}

// withBrokenOp copies a wheel; the file of one op is not an ELF file there.
func withBrokenOp(t *testing.T, from, to string) {
	t.Helper()
	z, err := zip.OpenReader(from)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	f, err := os.Create(to)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := zip.NewWriter(f)
	for _, m := range z.File {
		if !strings.HasSuffix(m.Name, "utils_op.so") {
			err = errors.Join(err, w.Copy(m))
			continue
		}
		broken, createErr := w.Create(m.Name)
		if createErr == nil {
			_, createErr = broken.Write([]byte("broken"))
		}
		err = errors.Join(err, createErr)
	}
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
}

// opsIn returns the ops of extensions, sorted, each once: an op may have several files.
func opsIn(extensions []wheel.Extension) []string {
	names := lists.Map(extensions, wheel.Extension.Op)
	slices.Sort(names)
	return slices.Compact(names)
}

// loadOps loads every op, and prints its file. An op that would be compiled fails.
const loadOps = `
from deepspeed.git_version_info import installed_ops
from deepspeed.ops.op_builder.all_ops import ALL_OPS
for op in [op for op in installed_ops if installed_ops[op]]:
    ALL_OPS[op].jit_load = None
    print(ALL_OPS[op].load().__file__)
`

// The Dockerfile of examples/kubernetes installs a wheel in a base with the real torch, without a network: all of
// the wheel's ops load in the image. It makes no image of a wheel with an op that does not load.
func TestFullDockerImage(t *testing.T) {
	d := docker.Docker(t, docker.Options{})
	torchBase(t, d, "torch:1")
	context := t.TempDir()
	if err := os.CopyFS(context, os.DirFS(filepath.Join(repository, "examples", "kubernetes"))); err != nil {
		t.Fatal(err)
	}
	from := built.Wheel(t)
	in := filepath.Join(context, "dist", filepath.Base(from))
	command(t, context, "mkdir", "dist")
	command(t, context, "cp", from, in)
	build := []string{"build", "--network", "none", "--build-arg", "BASE=torch:1", "--tag", "train:1", context}
	d.Run(t, build...)
	var loaded []wheel.Extension
	for _, file := range strings.Fields(d.Run(t, "run", "--rm", "--network", "none", "--env", "DS_ACCELERATOR=cuda", "train:1", "python", "-W", "ignore", "-c", loadOps)) {
		loaded = append(loaded, wheel.Extension{Path: file})
	}
	if ops, want := opsIn(loaded), opsIn(contents(t, from)); len(want) == 0 || len(loaded) != len(want) || !slices.Equal(ops, want) {
		t.Errorf("%d files of the ops %q loaded, want one of each of %q", len(loaded), ops, want)
	}
	t.Logf("result: %s in an image, under torch 2.15: loaded %s", filepath.Base(from),
		strings.Join(lists.Map(loaded, func(e wheel.Extension) string { return path.Base(e.Path) }), " "))
	withBrokenOp(t, from, in)
	if out, err := exec.CommandContext(t.Context(), "docker", build...).CombinedOutput(); err == nil || !strings.Contains(string(out), "op utils cannot be loaded") {
		t.Errorf("a wheel with a broken op: %v\n%s", err, out)
	}
}
