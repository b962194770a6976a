//go:build full

package main

import (
	"cmp"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/wheel"
)

// allOps builds every op for A100 over an ABI, or those that DSBUILD_TEST_OPS names. Tests of both modules compare this wheel: the
// store has it for the next one, as it takes half an hour on two cores.
func allOps(t *testing.T, abi string) wheel.Artifact {
	t.Helper()
	return build(t, append(ofRelease(), "--ops", cmp.Or(os.Getenv("DSBUILD_TEST_OPS"), "all"), "--arch", "8.0", "--abi", abi,
		"--torch", stockPair().torch, "--python", stockPair().python, "-o", t.TempDir())...)
}

// ofRelease are the flags for the release that DSBUILD_TEST_DEEPSPEED names, if it names one: ci/prove does.
func ofRelease() []string {
	if release := os.Getenv("DSBUILD_TEST_DEEPSPEED"); release != "" {
		return []string{"--deepspeed", release}
	}
	return nil
}

// --ops all builds every op of the table that the toolchain can build, which the
// smoke step has loaded, and says of the others why not. What is in, and what is
// not, is in the results.
func TestFullOpsAll(t *testing.T) {
	a := allOps(t, "torch")
	c, err := wheel.Inspect(t.Context(), a.Path)
	if err != nil {
		t.Fatal(err)
	}
	compareOps(t, resolved(t, "all", "8.0"), c)
	if !strings.Contains(strings.Join(c.Requires, "\n"), "deepspeed-kernels==") {
		t.Errorf("it requires %q, not what ragged_device_ops is linked with", c.Requires)
	}
	t.Logf("result: wheel of %d ops: %s, %d bytes, %.0f s, patches %q, requires %q",
		len(c.Ops), a.Manifest.Version, a.Size, a.Seconds, a.Manifest.Patches, a.Manifest.Requires)
}

// An op with another floor has its own archs in one wheel with others.
func TestFullOpsArchs(t *testing.T) {
	const ops, archs = "fused_adam,fp_quantizer,fused_lamb", "7.5;8.0"
	a := build(t, "--ops", ops, "--arch", archs, "-o", t.TempDir())
	c, err := wheel.Inspect(t.Context(), a.Path)
	if err != nil {
		t.Fatal(err)
	}
	compareOps(t, resolved(t, ops, archs), c)
	if fp := a.Manifest.OpArchs["fp_quantizer"]; len(a.Manifest.OpArchs) != 1 || !slices.Equal(fp.Archs, []string{"8.0"}) {
		t.Errorf("the manifest says of single ops: %+v", a.Manifest.OpArchs)
	}
}

// resolved is what the tables say of a wheel.
func resolved(t *testing.T, ops, archs string) compat.Toolchain {
	t.Helper()
	tables, err := compat.NewTables()
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := wheel.ParseArchs([]string{archs})
	if err != nil {
		t.Fatal(err)
	}
	tc, err := tables.Resolve(wheel.Request{Ops: strings.Split(ops, ","), Archs: parsed})
	if err != nil {
		t.Fatal(err)
	}
	left := map[string]bool{}
	for _, o := range tc.SkippedOps {
		left[o.Name] = true
		t.Logf("result: op %s: left out: %s", o.Name, o.Why)
		if o.Why == "" {
			t.Errorf("op %s is left out without a reason", o.Name)
		}
	}
	for _, o := range tables.Ops {
		if in := slices.Contains(tc.OpNames(false), o.Name); ops == compat.AllOps && in == left[o.Name] {
			t.Errorf("op %s: in %v, left out %v", o.Name, in, left[o.Name])
		}
	}
	return tc
}

// compareOps holds a wheel's ops against the tables: all there, each with its archs
// and no other, and no path to libraries in it.
func compareOps(t *testing.T, tc compat.Toolchain, c wheel.Contents) {
	t.Helper()
	want := tc.OpNames(false)
	slices.Sort(want)
	if !slices.Equal(c.Ops, want) {
		t.Errorf("inside are %q, the tables say %q", c.Ops, want)
	}
	for _, e := range c.Extensions {
		i := slices.IndexFunc(tc.Ops, func(o compat.Op) bool { return o.Name == e.Op() })
		if i < 0 {
			continue
		}
		if archs := wheel.Capabilities(tc.Ops[i].Archs, false); !slices.Equal(e.SASS, archs) || len(e.RPath) > 0 {
			t.Errorf("op %s has SASS for %q, not %q, and looks for libraries in %q", e.Op(), e.SASS, archs, e.RPath)
		}
		t.Logf("result: op %s: %.1f MB, SASS %s, needs %s", e.Op(), float64(e.Size)/1e6, strings.Join(e.SASS, " "), strings.Join(foreign(e.Needs), " "))
	}
}

// foreign leaves out what every node with torch has.
func foreign(needs []string) []string {
	return slices.DeleteFunc(slices.Clone(needs), func(n string) bool {
		for _, common := range []string{"libtorch", "libc10", "libstdc++", "libgcc_s", "libc.so", "libm.so", "libgomp", "ld-linux", "libcudart"} {
			if strings.HasPrefix(n, common) {
				return true
			}
		}
		return false
	})
}
