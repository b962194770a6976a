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

// Each GPU of the table that teams copy from guide to guide, and one wheel for
// several, with PTX for what comes after: NVIDIA's own tool finds in every wheel
// what was asked for, and no more.
func TestFullToolchainsArchs(t *testing.T) {
	for _, c := range []struct {
		args []string
		sass []string
		ptx  []string
	}{
		{[]string{"--arch", "7.5"}, []string{"7.5"}, nil},
		{[]string{"--arch", "8.0"}, []string{"8.0"}, nil},
		{[]string{"--gpu", "RTX 3090"}, []string{"8.6"}, nil},
		{[]string{"--gpu", "RTX 4090"}, []string{"8.9"}, nil},
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

// The toolchains of CUDA 12 and 11: each builds, passes audit and smoke, and needs no
// newer libraries than RHEL 8 has, whatever its base.
func TestFullToolchainsOlder(t *testing.T) {
	for _, c := range []struct {
		args []string
		road string
	}{
		// No nvcc for CUDA 12 comes as a package: ops without device code need none.
		{[]string{"--torch", "2.8", "--ops", "cpu_adam,utils"}, "cuda12"},
		{[]string{"--gpu", "A100", "--torch", "2.8", "--python", "3.12"}, "nvcc12"},
		{[]string{"--gpu", "A100", "--torch", "2.8", "--python", "3.13"}, "nvcc12"},
		{[]string{"--gpu", "RTX 5090", "--torch", "2.10", "--python", "3.10"}, "nvcc12"},
		{[]string{"--gpu", "A100", "--python", "3.9"}, "nvcc12"},
		{[]string{"--gpu", "A100", "--torch", "2.0"}, "debian12"},
		{[]string{"--gpu", "A100", "--abi", "torch", "--python", "3.13"}, "cuda13"},
		{[]string{"--gpu", "A100", "--abi", "torch", "--python", "3.14"}, "cuda13"},
	} {
		a := build(t, append(c.args, "--glibc", "2.28", "-o", t.TempDir())...)
		m := a.Manifest
		if m.Toolchain.Name != c.road || m.Toolchain.Nvcc == (c.road == "cuda12") {
			t.Errorf("%v: %+v", c.args, m.Toolchain)
		}
		t.Logf("result: %s: %s, torch %s, CUDA %s, gcc %s", strings.Join(c.args, " "), m.Name, m.Torch, m.CUDA, m.GCC)
	}
}

// Older releases of DeepSpeed are compiled for the newest torch, or for the newest that
// they work with; two also for a torch of CUDA 12.
func TestFullToolchainsReleases(t *testing.T) {
	for _, c := range []struct {
		release, torch string
		args           []string
	}{
		{"0.14.0", "2.3.1", nil},
		{"0.14.4", "2.15.0", nil},
		{"0.14.5", "2.15.0", nil},
		{"0.15.4", "2.15.0", nil},
		{"0.16.2", "2.15.0", nil},
		{"0.16.4", "2.15.0", nil},
		{"0.17.4", "2.15.0", nil},
		{"0.17.6", "2.15.0", nil},
		{"0.18.0", "2.15.0", nil},
		{"0.18.9", "2.15.0", nil},
		{"0.19.0", "2.15.0", nil},
		{"0.19.4", "2.15.0", nil},
		{"0.19.6", "2.15.0", nil},
		{"0.19.8", "2.15.0", nil},
		{"0.15.4", "2.8.0", []string{"--torch", "2.8"}},
		{"0.18.9", "2.8.0", []string{"--torch", "2.8"}},
	} {
		a := build(t, append(c.args, "--gpu", "A100", "--abi", "torch", "--deepspeed", c.release, "-o", t.TempDir())...)
		if m := a.Manifest; m.Torch != c.torch {
			t.Errorf("DeepSpeed %s: torch %s, want %s", c.release, m.Torch, c.torch)
		}
		t.Logf("result: DeepSpeed %s: %s", c.release, a.Manifest.Name)
	}
}
