package compat_test

import (
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/wheel"
)

// facts are those of a node that a wheel for its Python, torch and CUDA fits.
func facts() node.Facts {
	return node.Facts{
		Python: "3.11.2", Tag: "cp311", Platform: "linux_x86_64", Glibc: "2.36", CPU: "x86-64-v4", Torch: "2.15.0", TorchCUDA: "13.2", Libstdcxx: "3.4.30",
		Executable: "/e/bin/python", Prefix: "/e", SitePackages: "/e/lib", Driver: "595.10", GPUs: []node.GPU{{Name: "NVIDIA A100-SXM4-80GB", Arch: "8.0"}},
	}
}

// offered is a wheel for these nodes.
func offered(name string, change func(*wheel.Manifest)) wheel.Loaded {
	m := wheel.Manifest{
		Name: name + "-0.19.8-cp311-cp311-linux_x86_64.whl", Version: "0.19.8", SHA256: name, Source: wheel.Source{Kind: "release", Ref: "0.19.8"}, Ops: []string{"cpu_adam", "fused_adam"},
		Archs: []string{"8.0"}, CPU: "x86-64-v3", Python: "3.11", Torch: "2.15.0", CUDA: "13.2", Glibc: "2.28",
	}
	if change != nil {
		change(&m)
	}
	return wheel.Loaded{Manifest: m, Version: m.Version}
}

// Of several wheels dsbuild takes the one that suits a node best, and leaves to the user whatever
// only the user can decide.
func TestChoose(t *testing.T) {
	t.Parallel()
	tables, err := compat.NewTables()
	if err != nil {
		t.Fatal(err)
	}
	v4 := offered("v4", func(m *wheel.Manifest) { m.CPU = "x86-64-v4" })
	other := offered("other", func(m *wheel.Manifest) { m.Source.Ref = "0.19.7" })
	unfit := offered("unfit", func(m *wheel.Manifest) { m.Python, m.Name = "3.12", "unfit-0.19.8-cp312-cp312-linux_x86_64.whl" })
	more := offered("more", func(m *wheel.Manifest) { m.Ops = append(m.Ops, "utils") })
	for name, c := range map[string]struct {
		wheels    []wheel.Loaded
		want, why string
		err       string
	}{
		"the only one":            {[]wheel.Loaded{offered("a", nil)}, "a", "", ""},
		"the only one, unfit":     {[]wheel.Loaded{unfit}, "unfit", "", ""},
		"the one that fits":       {[]wheel.Loaded{unfit, offered("a", nil)}, "a", "", ""},
		"a higher CPU level":      {[]wheel.Loaded{offered("a", nil), v4}, "v4", "newer CPU instructions", ""},
		"the order does not help": {[]wheel.Loaded{v4, offered("a", nil)}, "v4", "newer CPU instructions", ""},
		"equal":                   {[]wheel.Loaded{offered("a", nil), offered("b", nil)}, "", "", "equally suitable wheels: a-0.19.8"},
		"other sources":           {[]wheel.Loaded{offered("a", nil), other}, "", "", "equally suitable wheels: a-"},
		"other ops":               {[]wheel.Loaded{offered("a", nil), more}, "", "", "equally suitable wheels: a-"},
	} {
		got, err := compat.Choose(tables, c.wheels, facts())
		if c.err != "" {
			if err == nil || !strings.HasPrefix(err.Error(), c.err) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil || got.Wheel.Manifest.SHA256 != c.want || !strings.Contains(strings.Join(got.Why, "\n"), c.why) {
			t.Errorf("%s: %v: %+v", name, err, got)
		}
		if got.Verdict.OK() == (c.want == "unfit") {
			t.Errorf("%s: verdict %+v", name, got.Verdict)
		}
	}
	got, err := compat.Choose(tables, []wheel.Loaded{unfit, unfit}, facts())
	if want := "unfit-0.19.8-cp312-cp312-linux_x86_64.whl is incompatible: "; err != nil || got.Wheel != nil || len(got.Verdict.Reasons) != 2 || !strings.HasPrefix(got.Verdict.Reasons[1], want) {
		t.Errorf("none fits: %+v, %v, want no wheel, and for each %q", got, err, want)
	}
}

// Nodes of one wheel are alike; of a wheel for several torches those with the same torch, CUDA and
// Python.
func TestAlikeKey(t *testing.T) {
	t.Parallel()
	plain, stable := offered("a", nil), offered("s", func(m *wheel.Manifest) { m.TorchABI = &wheel.TorchABI{Stable: true} })
	one, two := facts(), facts()
	two.Torch = "2.14.0"
	if compat.AlikeKey(plain.Manifest, one) != compat.AlikeKey(plain.Manifest, two) || compat.AlikeKey(stable.Manifest, one) == compat.AlikeKey(stable.Manifest, two) {
		t.Errorf("%q and %q, %q and %q", compat.AlikeKey(plain.Manifest, one), compat.AlikeKey(plain.Manifest, two), compat.AlikeKey(stable.Manifest, one), compat.AlikeKey(stable.Manifest, two))
	}
	two.Torch = "2.15.3"
	if compat.AlikeKey(stable.Manifest, one) != compat.AlikeKey(stable.Manifest, two) {
		t.Errorf("%q and %q", compat.AlikeKey(stable.Manifest, one), compat.AlikeKey(stable.Manifest, two))
	}
	if wheel.AnyStable([]wheel.Loaded{plain}) || !wheel.AnyStable([]wheel.Loaded{plain, stable}) {
		t.Error("AnyStable")
	}
}
