package pipeline_test

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/wheel"
)

// environment makes one with files that look like torch, which must not be
// imported; it returns its directory and its Python.
func environment(t *testing.T, torch, cuda string, more map[string]string) (dir, python string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "env")
	if out, err := exec.Command("python3", "-m", "venv", "--without-pip", dir).CombinedOutput(); err != nil {
		t.Fatalf("no Python that makes environments: %v\n%s", err, out)
	}
	sites, _ := filepath.Glob(filepath.Join(dir, "lib", "python3*", "site-packages"))
	if len(sites) != 1 {
		t.Fatal("no site-packages in a new environment")
	}
	files := map[string]string{
		sites[0] + "/torch/version.py":                          "from typing import Optional\n__version__ = '" + torch + "'\ncuda: Optional[str] = " + cuda + "\n",
		sites[0] + "/torch/__init__.py":                         "raise SystemExit('imported')\n",
		sites[0] + "/torch/share/cmake/Torch/TorchConfig.cmake": "set(TORCH_CXX_FLAGS \"-D_GLIBCXX_USE_CXX11_ABI=0\")\n",
		sites[0] + "/hjson-3.1.0.dist-info/METADATA":            "Metadata-Version: 2.1\nName: hjson\nVersion: 3.1.0\n",
		sites[0] + "/extra.pth":                                 dir + "/editable\n",
		dir + "/editable/module.py":                             "",
	}
	maps.Copy(files, more)
	for file, text := range files {
		if !filepath.IsAbs(file) {
			file = filepath.Join(dir, file)
		}
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir, filepath.Join(dir, "bin", "python")
}

// hashes are those of all files below a directory, by name.
func hashes(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		if e.Type()&fs.ModeSymlink != 0 {
			all[path], err = os.Readlink(path)
			return err
		}
		text, err := os.ReadFile(path)
		all[path] = fmt.Sprintf("%x", sha256.Sum256(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestReadEnvironment(t *testing.T) {
	dir, python := environment(t, "2.6.0a0+ecf3bae40a.nv25.01", "'12.8'", map[string]string{
		"bin/nvcc": "#!/bin/sh\necho 'Cuda compilation tools, release 12.8, V12.8.93'\n",
	})
	t.Setenv("PYTHONPATH", "/evil")
	work := t.TempDir() // a checkout of torch must not be taken for the one installed
	if err := os.MkdirAll(filepath.Join(work, "torch"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(work, "torch", "version.py"), []byte("__version__ = '9.9.9'\ncuda = '1.0'\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Chdir(work)
	before := hashes(t, dir)
	g, err := pipeline.ReadGivenPython(t.Context(), python)
	if err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(before, hashes(t, dir)) {
		t.Error("files of the environment were changed")
	}
	if g.Details.Torch != "2.6.0a0+ecf3bae40a.nv25.01" || g.Torch != "2.6.0a0" || g.TorchCUDA != "12.8" || g.Details.CXX11ABI == nil || *g.Details.CXX11ABI {
		t.Errorf("torch %q %q, CUDA %q, ABI %v", g.Details.Torch, g.Torch, g.TorchCUDA, g.Details.CXX11ABI)
	}
	if g.Nvcc != "12.8" || g.CUDAHome != dir || g.Glibc == "" || !strings.HasPrefix(g.CPU, "x86-64") || g.Dists["hjson"] != "3.1.0" {
		t.Errorf("%+v", g)
	}
	if want := []string{g.SitePackages, filepath.Join(dir, "editable")}; !slices.Equal(g.Sites, want) {
		t.Errorf("its packages lie in %q, want %q", g.Sites, want)
	}
	if i := g.Interpreter(); i.Path != python || !strings.HasPrefix(i.Version, "3.") {
		t.Errorf("%+v", i)
	}
	again, err := pipeline.ReadGivenPython(t.Context(), "../"+filepath.Base(work)+"/../"+relativeTo(t, work, python))
	if err != nil || again.Identity() != g.Identity() {
		t.Errorf("by a relative path it is another: %v", err)
	}
	again.Dists["numpy"] = "2.0.0"
	if again.Identity() == g.Identity() {
		t.Error("with other packages it is the same")
	}
}

func relativeTo(t *testing.T, work, path string) string {
	t.Helper()
	rel, err := filepath.Rel(filepath.Dir(work), path)
	if err != nil {
		t.Fatal(err)
	}
	return rel
}

func TestReadEnvironmentRefuses(t *testing.T) {
	_, cpu := environment(t, "2.15.0+cpu", "None", nil)
	prefix := filepath.Dir(filepath.Dir(cpu))
	for python, want := range map[string]string{
		cpu:                      "torch 2.15.0+cpu is a CPU-only build",
		prefix:                   prefix + " is a directory",
		"/nowhere/bin/python":    "environment of /nowhere/bin/python: no such file: /nowhere/bin/python",
		"/etc/passwd":            "/etc/passwd is not executable",
		"/bin/true":              "not a Python interpreter",
		"no-such-python-on-path": "environment of no-such-python-on-path: command not found on PATH",
	} {
		_, err := pipeline.ReadGivenPython(t.Context(), python)
		if fault.ExitCode(err) != 2 || !strings.Contains(err.Error(), want) || fault.Hint(err) == "" {
			t.Errorf("%s: %v", python, err)
		}
		if python == prefix && fault.Hint(err) != "--env "+cpu {
			t.Errorf("%s: hint %q", python, fault.Hint(err))
		}
	}
}

// The environment decides; a flag that says otherwise is named, each of them.
func TestEnvironmentDecides(t *testing.T) {
	g := pipeline.GivenPython{}
	g.Executable, g.Facts.Python, g.Torch, g.TorchCUDA, g.Details.Torch = "/env/bin/python", "3.10.4", "2.8.0", "12.8", "2.8.0+cu128"
	for _, agreed := range []wheel.Request{{}, {Python: "3.10", Torch: "2.8.0", CUDA: "12.8"}, {Torch: "2.8", CUDA: "12"}} {
		s, err := g.Asked(agreed)
		if err != nil || s.Python != "3.10" || s.Torch != "2.8.0" || s.CUDA != "12.8" {
			t.Errorf("%+v: %v", s, err)
		}
	}
	_, err := g.Asked(wheel.Request{Python: "3.1", Torch: "2.9.0", CUDA: "13.0"})
	for _, want := range []string{"--python 3.1 was requested, but the environment has 3.10", "--torch 2.9.0 was requested, but the environment has 2.8.0", "--cuda 13.0 was requested, but the environment has 12.8"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
}

// A build in a container installs the same torch: only one that an index has.
func TestReleased(t *testing.T) {
	tables, err := compat.NewTables()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		torch, cuda, python string
		want                bool
	}{
		{"2.8.0+cu128", "12.8", "3.10.4", true},
		{"2.8.0", "12.8", "3.12.1", true},
		{"2.8.0+cu126", "12.6", "3.10.4", false},
		{"2.8.0+cu128", "12.8", "3.14.0", false},
		{"2.6.0a0+ecf3bae40a.nv25.01", "12.8", "3.12.3", false},
		{"2.8.0+gitabcdef", "12.8", "3.10.4", false},
		{"3.0.0", "14.0", "3.15.0", false},
	} {
		g := pipeline.GivenPython{}
		public, _, _ := strings.Cut(c.torch, "+")
		g.Facts.Python, g.Torch, g.TorchCUDA, g.Details.Torch = c.python, public, c.cuda, c.torch
		err := g.Released(tables)
		if (err == nil) != c.want {
			t.Errorf("%+v: %v", c, err)
		}
		if err != nil && !strings.Contains(fault.Hint(err), "--builder host") {
			t.Errorf("%+v: hint %q", c, fault.Hint(err))
		}
		// The host builder needs no index: there is a toolchain for each but
		// those whose CUDA nobody knows.
		host := compat.BuildHost{Name: "host", Host: true, Glibc: "2.36", Pythons: []string{strings.Join(strings.Split(c.python, ".")[:2], ".")}, GCCs: []string{"12"}}
		r, err := g.Asked(wheel.Request{Ops: []string{"cpu_adam"}})
		if err != nil {
			t.Fatal(err)
		}
		tc, err := g.Tables(tables).Resolve(r, host)
		if c.cuda != "14.0" && (err != nil || tc.Torch != public || tc.CUDA != c.cuda) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
