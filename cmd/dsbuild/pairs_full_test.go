//go:build full

package main

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"deps.dev/util/semver"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/wheel"
)

// Each CUDA that a torch is for, both ways to its compiler, and each Python with its base and gcc, in pairs of torch and
// Python: planned, built, audited, loaded by the smoke test, and by objdump no extension needs newer libraries than RHEL 8 has.
// TestEveryPairHasAWheel plans every pair.
func TestFullPairs(t *testing.T) {
	for _, c := range []struct{ torch, python, gpu, toolchain, cuda string }{
		{"2.15", "3.11", "A100", "cuda13", "13.2"},
		{"2.15", "3.14", "A100", "cuda13", "13.2"},
		{"2.14", "3.10", "A100", "cuda13", "13.0"},
		{"2.10", "3.12", "RTX 5090", "nvcc12", "12.8"}, // the newest GPU that CUDA 12 knows
		{"2.7", "3.13", "A100", "nvcc12", "12.6"},
		{"2.6", "3.10", "A100", "nvcc12", "12.4"},
	} {
		t.Run("torch"+c.torch+"-python"+c.python, func(t *testing.T) {
			a := build(t, "--gpu", c.gpu, "--abi", "torch", "--torch", c.torch, "--python", c.python, "-o", t.TempDir())
			m, ops := a.Manifest, slices.Sorted(slices.Values(wheel.DefaultOps()))
			if m.Toolchain.Name != c.toolchain || m.CUDA != c.cuda || m.Python != c.python || !strings.HasPrefix(m.Torch, c.torch+".") || !slices.Equal(m.Ops, ops) {
				t.Errorf("%s: %+v, want the ops %q", m.Name, m, ops)
			}
			floors := newestSymbols(t, a.Path)
			for library, most := range map[string]string{"GLIBC": compat.LinkGlibc, "GLIBCXX": "3.4.25"} {
				if floors[library] == "" || semver.PyPI.Compare(floors[library], most) > 0 {
					t.Errorf("%s needs %s_%s, RHEL 8 has %s", m.Name, library, floors[library], most)
				}
			}
			t.Logf("result: torch %s, Python %s: %s, CUDA %s, GLIBC_%s and GLIBCXX_%s by objdump: %s", m.Torch, m.Python, m.Toolchain.Name, m.CUDA, floors["GLIBC"], floors["GLIBCXX"], m.Name)
		})
	}
}

var versioned = regexp.MustCompile(`\b(GLIBC|GLIBCXX)_([0-9.]+)`)

// newestSymbols are the newest versions of symbols that objdump finds in the extensions
// of a wheel, by library.
func newestSymbols(t *testing.T, path string) map[string]string {
	t.Helper()
	dir := t.TempDir()
	command(t, ".", "python3", "-m", "zipfile", "-e", path, dir)
	newest := map[string]string{}
	for name := range extensions(t, path) {
		for _, m := range versioned.FindAllStringSubmatch(command(t, ".", "objdump", "-T", filepath.Join(dir, name)), -1) {
			if newest[m[1]] == "" || semver.PyPI.Compare(m[2], newest[m[1]]) > 0 {
				newest[m[1]] = m[2]
			}
		}
	}
	return newest
}
