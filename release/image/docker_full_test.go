//go:build full && linux

package image_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/compression"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/dsbuild/dsbuild/internal/testkit/docker"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/python"
	"github.com/dsbuild/dsbuild/pipeline/engine"
	"github.com/dsbuild/dsbuild/wheel"
)

const debianSite = "usr/local/lib/python3.11/dist-packages"

// debianBase makes an image of Debian 12, this machine's Python 3.11 and a folder of packages, and
// returns it as docker save writes it.
func debianBase(t *testing.T, packages string) string {
	t.Helper()
	if _, err := os.Stat("/usr/lib/python3.11"); err != nil || engine.BaseTar() == "" {
		needs.Missing(t, "Debian's python3.11 (%v), or the base of dsbuild's own engine", err)
	}
	dir := t.TempDir()
	pack := func(name string, args ...string) string {
		file := filepath.Join(dir, name)
		if out, err := exec.CommandContext(t.Context(), "tar", append([]string{"--create", "--file", file}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("tar %v: %v: %s", args, err, out)
		}
		return file
	}
	interpreter := []string{"--exclude", "__pycache__", "-C", "/", "usr/bin/python3.11", "usr/lib/python3.11"}
	for _, name := range []string{"expat", "z", "bz2", "lzma", "ffi", "ssl", "crypto", "uuid", "stdc++", "gcc_s"} {
		found, err := filepath.Glob("/usr/lib/x86_64-linux-gnu/lib" + name + ".so.*")
		if err != nil {
			t.Fatal(err)
		}
		for _, lib := range found {
			interpreter = append(interpreter, strings.TrimPrefix(lib, "/"))
		}
	}
	img := baseOf(t, v1.Config{Entrypoint: []string{"/usr/bin/python3.11"}})
	for _, file := range []string{
		engine.BaseTar(), pack("python.tar", interpreter...),
		pack("packages.tar", "--transform", "s,^\\.,"+debianSite+",", "-C", packages, "."),
	} {
		layer, err := tarball.LayerFromFile(file, tarball.WithCompression(compression.None))
		if err != nil {
			t.Fatal(err)
		}
		if img, err = mutate.AppendLayers(img, layer); err != nil {
			t.Fatal(err)
		}
	}
	return saved(t, img)
}

// loadImage makes the image on a base and gives it to the daemon.
func loadImage(t *testing.T, d *docker.Daemon, base string) {
	t.Helper()
	opt := options(t, base, filepath.Join(t.TempDir(), "out.tar"))
	opt.Name = "train:1"
	opt.Wheels = load(t, os.Getenv("DSBUILD_TEST_WHEEL"))
	r := mustBuild(t, opt)
	d.Run(t, "load", "--input", opt.Output)
	t.Logf("result: %s on %s of %d MB, a layer of %.1f MB", r.Wheels[0].Name, r.Base.Platform, r.Base.Size>>20, float64(r.Layer.Size)/1e6)
}

// lookAtPackage compares the installed files with RECORD, as a Python in the container finds them.
const lookAtPackage = `
import base64, hashlib, importlib.metadata as m
d = m.distribution("deepspeed")
files = [f for f in d.files if f.hash]
for f in files:
    sum = base64.urlsafe_b64encode(hashlib.new(f.hash.mode, f.read_binary()).digest()).rstrip(b"=").decode()
    assert sum == f.hash.value, f
assert d.read_text("INSTALLER") == "dsbuild\n"
print("ok", d.version, len(files))
`

// loadOps loads every op of the package as DeepSpeed does, after torch.
const loadOps = `
import importlib.machinery, importlib.util, pathlib, torch, importlib.metadata as m
root = pathlib.Path(str(m.distribution("deepspeed").locate_file("deepspeed")))
names = []
for path in sorted(root.glob("ops/**/*.so")):
    name = path.name.split(".")[0]
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    loader.exec_module(importlib.util.module_from_spec(importlib.util.spec_from_file_location(name, path, loader=loader)))
    names.append(name)
assert names
print("loaded", *names)
`

// extensions counts the ops in a wheel.
func extensions(t *testing.T, file string) int {
	t.Helper()
	a, err := wheel.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	n := 0
	for _, m := range a.Members() {
		if strings.HasPrefix(m.Name, "deepspeed/ops/") && strings.HasSuffix(m.Name, ".so") {
			n++
		}
	}
	return n
}

// Docker loads the tar and runs the image: Python finds the package whole, and its commands, and
// every op loads under the real torch. The base has torch's metadata alone; torch itself, 5 GB, is
// mounted from an environment of this machine.
func TestFullImageDocker(t *testing.T) {
	d := docker.Docker(t, docker.Options{})
	packages := t.TempDir()
	for name, text := range map[string]string{"torch-2.15.0.dist-info/METADATA": "Name: torch\nVersion: 2.15.0\n", "torch/version.py": "__version__ = '2.15.0+cu132'\ncuda = '13.2'\n"} {
		if err := os.MkdirAll(filepath.Join(packages, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(packages, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	loadImage(t, d, debianBase(t, packages))
	out := d.Run(t, "run", "--rm", "--network", "none", "train:1", "-c", lookAtPackage)
	if !strings.HasPrefix(out, "ok 0.") {
		t.Error(out)
	}
	t.Logf("result: in the container: %s", out)
	torch, err := python.Environment(t.Context(), python.EnvironmentOptions{
		Interpreter: "/usr/bin/python3.11", Packages: []string{"torch==2.15.0", "numpy"}, Log: func(line string) { t.Log(line) },
	})
	if err != nil {
		t.Fatal(err)
	}
	mount := filepath.Join(torch, "lib/python3.11/site-packages") + ":/torch:ro"
	out = d.Run(t, "run", "--rm", "--network", "none", "--volume", mount, "--env", "PYTHONPATH=/torch", "train:1", "-c", loadOps)
	if loaded, want := strings.Fields(out)[1:], extensions(t, os.Getenv("DSBUILD_TEST_WHEEL")); len(loaded) != want {
		t.Errorf("%d of %d extensions: %s", len(loaded), want, out)
	}
	t.Logf("result: in the container, under torch 2.15: %s", out)
	if first := d.Run(t, "run", "--rm", "--network", "none", "--entrypoint", "head", "train:1", "-1", "/usr/local/bin/ds_report"); !strings.HasPrefix(first, "#!/usr/bin/") {
		t.Errorf("ds_report begins with %q", first)
	}
}
