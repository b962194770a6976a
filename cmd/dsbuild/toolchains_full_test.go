//go:build full

package main

import (
	"cmp"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/fulltools"
)

// A GPU by its name, a list of archs with PTX for what comes after, a GPU so old that it needs CUDA 12, and all that
// CUDA 13 and 12 have: NVIDIA's own tool finds in every wheel what was asked for, and no more.
func TestFullToolchainsArchs(t *testing.T) {
	const op, cuda12, cuda13 = "libfused_adam_op", "5.0 5.2 6.0 6.1 7.0 7.5 8.0 8.6 8.9 9.0 10.0 12.0 PTX 9.0", "7.5 8.0 8.6 8.9 9.0 10.0 10.3 12.0 PTX 12.0"
	for _, c := range []struct {
		args []string
		want map[string]string
	}{
		{[]string{"--gpu", "RTX 3090"}, map[string]string{op + ".cu12": "8.6", op + ".cu13": "8.6"}},
		{[]string{"--arch", "8.0;8.6;9.0+PTX"}, map[string]string{op + ".cu12": "8.0 8.6 9.0 PTX 9.0", op + ".cu13": "8.0 8.6 9.0 PTX 9.0"}},
		{[]string{"--gpu", "V100"}, map[string]string{op: "7.0"}},
		{nil, map[string]string{op + ".cu12": cuda12, op + ".cu13": cuda13}},
		{[]string{"--cuda", "12"}, map[string]string{op: cuda12}},
	} {
		a := build(t, append(c.args, "-o", t.TempDir())...)
		found := cuobjdump(t, a.Path)
		if !maps.Equal(found, c.want) {
			t.Errorf("dsbuild wheel %q: cuobjdump finds %q, want %q", c.args, found, c.want)
		}
		t.Logf("result: dsbuild wheel %s: %q by cuobjdump; torch %s, %s, %d bytes, built in %.0f s", strings.Join(c.args, " "),
			found, a.Manifest.Torch, a.Manifest.Toolchain.Name, a.Size, a.Seconds)
	}
}

// cuobjdump returns what NVIDIA's program finds in the files of a wheel that have device code: "8.0 9.0 PTX 9.0" by the
// name without .so.
func cuobjdump(t *testing.T, path string) map[string]string {
	t.Helper()
	program := filepath.Join(fulltools.Tools(t), "cuobjdump")
	dir, found := unzipped(t, path), map[string]string{}
	byNumber := func(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) }
	for _, file := range sharedObjects(t, dir) {
		sass, ptx := fulltools.DeviceCode(t, filepath.Join(dir, file), program)
		slices.SortFunc(sass, byNumber)
		if len(ptx) > 0 {
			sass = append(append(sass, "PTX"), slices.SortedFunc(slices.Values(ptx), byNumber)...)
		}
		if len(sass) > 0 {
			found[strings.TrimSuffix(filepath.Base(file), ".so")] = strings.Join(sass, " ")
		}
	}
	return found
}

// The toolchains of CUDA 12 and 11 that TestFullPairs has not: without nvcc, on the oldest base, and that of Debian. Each
// builds, passes audit and smoke, and needs no newer libraries than RHEL 8 has, whatever its base.
func TestFullToolchainsOlder(t *testing.T) {
	for _, c := range []struct {
		args      []string
		toolchain string
	}{
		// No nvcc for CUDA 12 comes as a package: ops without device code need none.
		{[]string{"--torch", "2.8", "--ops", "cpu_adam,utils"}, "cuda12"},
		{[]string{"--gpu", "A100", "--python", "3.9"}, "nvcc12"},
		{[]string{"--gpu", "A100", "--torch", "2.0"}, "debian12"},
	} {
		a := build(t, append(c.args, "--target-glibc", "2.28", "-o", t.TempDir())...)
		m := a.Manifest
		if m.Toolchain.Name != c.toolchain || m.Toolchain.Nvcc == (c.toolchain == "cuda12") {
			t.Errorf("%v: %+v", c.args, m.Toolchain)
		}
		t.Logf("result: %s: %s, torch %s, CUDA %s, gcc %s", strings.Join(c.args, " "), m.Name, m.Torch, m.CUDA, m.GCC)
	}
}

// Older releases of DeepSpeed are compiled for the newest torch, or for the newest that they work with: one on each side of
// every release at which the tables say something else. One is for a torch of CUDA 12.
func TestFullToolchainsReleases(t *testing.T) {
	for _, c := range []struct {
		release, torch string
		args           []string
	}{
		{"0.14.0", "2.3.1", nil},                        // imports names that torch 2.4 and NumPy 2 have no more
		{"0.14.4", "2.15.0", nil},                       // has no more of that
		{"0.15.4", "2.8.0", []string{"--torch", "2.8"}}, // reads archs of two digits alone
		{"0.16.4", "2.15.0", nil},                       // reads all archs, and asks a GPU as it is imported
		{"0.17.4", "2.15.0", nil},                       // has the op utils
		{"0.18.9", "2.15.0", nil},                       // asks no GPU
		{"0.19.4", "2.15.0", nil},                       // needs the patch of its import; 0.19.8 does not
	} {
		a := build(t, append(c.args, "--gpu", "A100", "--abi", "torch", "--deepspeed", c.release, "-o", t.TempDir())...)
		if m := a.Manifest; m.Torch != c.torch {
			t.Errorf("DeepSpeed %s: torch %s, want %s", c.release, m.Torch, c.torch)
		}
		t.Logf("result: DeepSpeed %s: %s", c.release, a.Manifest.Name)
	}
}
