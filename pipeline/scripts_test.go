package pipeline

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// wrapper puts a script that stands before a compiler into a folder of its own,
// beside a ccache that prints what it is asked to run.
func wrapper(t *testing.T, name string) (path, dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "ccache"), []byte("#!/bin/sh\necho \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	script, err := scripts.ReadFile("scripts/" + name)
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "c++")
	if err := os.WriteFile(path, script, 0o755); err != nil {
		t.Fatal(err)
	}
	return path, dir
}

func runs(t *testing.T, cmd *exec.Cmd, want string) {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if got := strings.TrimSpace(string(out)); err != nil || got != want {
		t.Errorf("%v: %v %s, want %s", cmd.Args, err, got, want)
	}
}

// The compiler wrapper decides the level in the arguments, whatever the
// building machine is.
func TestCompilerWrapper(t *testing.T) {
	cxx, dir := wrapper(t, "cxx")
	for level, want := range map[string]string{
		"x86-64-v2": "-march=x86-64-v2 -D__SCALAR__",
		"x86-64-v3": "-march=x86-64-v3 -D__AVX256__",
		"x86-64-v4": "-march=x86-64-v4 -D__AVX512__",
	} {
		for _, simd := range []string{"-D__AVX512__", "-D__AVX256__", "-D__SCALAR__"} {
			cmd := exec.Command(cxx, "-march=native", simd, "-g", "-DX=a b", "x.cpp")
			cmd.Env = []string{"PATH=" + dir + ":/usr/bin:/bin", "DSBUILD_CPU=" + level, "DSBUILD_SRC=/src",
				"DSBUILD_ENV=/e", "CUDA_HOME=/c", "DSBUILD_CXX=/usr/bin/g++-13", "DSBUILD_CCACHE=ccache"}
			runs(t, cmd, "/usr/bin/g++-13 -ffile-prefix-map=/src=/ds -ffile-prefix-map=/e=/env -ffile-prefix-map=/c=/cuda "+want+" -DX=a b x.cpp")
		}
	}
}

// Device code holds no line information unless debug information was asked
// for: it would hold times.
func TestNVCCWrapper(t *testing.T) {
	nvcc, dir := wrapper(t, "nvcc")
	for keep, want := range map[string]string{
		"":  "/cuda/bin/nvcc -O3 -DX=a b x.cu",
		"1": "/cuda/bin/nvcc -O3 -lineinfo -DX=a b x.cu -g",
	} {
		cmd := exec.Command(nvcc, "-O3", "-lineinfo", "-DX=a b", "x.cu", "-g")
		cmd.Env = []string{"PATH=" + dir + ":/usr/bin:/bin", "CUDA_HOME=/cuda", "DSBUILD_CCACHE=ccache", "DSBUILD_KEEP_DEBUG=" + keep}
		runs(t, cmd, want)
	}
}

// The packages of a toolchain are named and hashed alike whoever installed them.
func TestStripNamesPackages(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	cmd := exec.Command("python3", "-B", "-c", `
import sys; sys.path.insert(0, "scripts")
import strip
print(strip.purl("deb/debian", "libstdc++6", "1:12.2.0-14+b1~x"), strip.purl("pypi", "torch", "2.15.0+cu132"))
rows = ["torch/a.py,sha256=x,1", '"torch/b,c.py",sha256=y,2', "torch/__pycache__/a.cpython-311.pyc,,", "../../../bin/torchrun,sha256=z,3",
        "torch-2.dist-info/INSTALLER,sha256=p,4", "torch-2.dist-info/RECORD,,"]
print(strip.installed("\n".join(rows)) == strip.installed("\r\n".join(reversed(rows))), strip.installed("\n".join(rows)).count("\n"))`)
	runs(t, cmd, "pkg:deb/debian/libstdc%2B%2B6@1:12.2.0-14%2Bb1~x pkg:pypi/torch@2.15.0%2Bcu132\nTrue 1")
}
