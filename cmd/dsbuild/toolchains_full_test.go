//go:build full

package main

import (
	"cmp"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/wheel"
)

// A GPU by its name, a list of archs with PTX for what comes after, a GPU so old that it needs CUDA 12, and all that
// CUDA 13 and 12 have: NVIDIA's own tool finds in every wheel what was asked for, and no more.
func TestFullToolchainsArchs(t *testing.T) {
	for _, c := range []struct {
		args []string
		sass []string
		ptx  []string
	}{
		{[]string{"--gpu", "RTX 3090"}, []string{"8.6"}, nil},
		{[]string{"--arch", "8.0;8.6;9.0+PTX"}, []string{"8.0", "8.6", "9.0"}, []string{"9.0"}},
		{[]string{"--gpu", "V100"}, []string{"7.0"}, nil},
		{nil, []string{"7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "12.0"}, []string{"12.0"}},
		{[]string{"--cuda", "12"}, []string{"5.0", "5.2", "6.0", "6.1", "7.0", "7.5", "8.0", "8.6", "8.9", "9.0"}, []string{"9.0"}},
	} {
		a := build(t, append(c.args, "-o", t.TempDir())...)
		sass, ptx := cuobjdump(t, a.Path, "fused_adam_op")
		if !slices.Equal(sass, c.sass) || !slices.Equal(ptx, c.ptx) {
			t.Errorf("%v: cuobjdump finds SASS %v, PTX %v", c.args, sass, ptx)
		}
		for _, op := range []string{"cpu_adam_op", "utils_op"} {
			if sass, ptx := cuobjdump(t, a.Path, op); len(sass)+len(ptx) > 0 {
				t.Errorf("%v: %s has device code: %v %v", c.args, op, sass, ptx)
			}
		}
		t.Logf("result: dsbuild wheel %s: SASS %s, PTX %s by cuobjdump; torch %s, %s, %d bytes, built in %.0f s", strings.Join(c.args, " "),
			strings.Join(sass, ", "), orNone(ptx), a.Manifest.Torch, a.Manifest.Toolchain.Name, a.Size, a.Seconds)
	}
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}

var cubin = regexp.MustCompile(`\.sm_(\d+)(\d)[a-z]?\.(cubin|ptx)`)

// cuobjdump lists the archs that NVIDIA's program finds in an op of a wheel.
func cuobjdump(t *testing.T, path, op string) (sass, ptx []string) {
	t.Helper()
	tmp := t.TempDir()
	command(t, ".", "python3", "-m", "zipfile", "-e", path, tmp)
	found, err := filepath.Glob(filepath.Join(tmp, "deepspeed", "ops", "*", "*"+op+".*so"))
	if deeper, _ := filepath.Glob(filepath.Join(tmp, "deepspeed", "ops", "*"+op+".*so")); len(deeper) > 0 {
		found = deeper
	}
	if err != nil || len(found) != 1 {
		t.Fatalf("%s in %s: %v, %v", op, path, found, err)
	}
	contents, err := wheel.Inspect(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range contents.Extensions {
		if e.Op()+"_op" == op && len(e.SASS)+len(e.PTX) == 0 {
			return nil, nil // cuobjdump fails on a file without device code
		}
	}
	for _, m := range cubin.FindAllStringSubmatch(fullTool(t, "cuobjdump", "--list-elf", "--list-ptx", found[0]), -1) {
		list, arch := &sass, m[1]+"."+m[2]
		if m[3] == "ptx" {
			list = &ptx
		}
		if !slices.Contains(*list, arch) {
			*list = append(*list, arch)
		}
	}
	byNumber := func(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) }
	slices.SortFunc(sass, byNumber)
	slices.SortFunc(ptx, byNumber)
	return sass, ptx
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
