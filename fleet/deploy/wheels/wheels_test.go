package wheels_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/fleet/deploy/wheels"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/wheel"
)

// made is a wheel as a build makes it, in a folder of its own.
func made(t *testing.T, opt wheeltest.Options) string {
	t.Helper()
	path, _, _ := wheeltest.Built(t, t.TempDir(), opt)
	return path
}

func load(t *testing.T, path string) []wheels.Wheel {
	t.Helper()
	all, err := wheels.Load(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A folder gives all of its wheels, a file itself; whatever is no wheel is left alone.
func TestLoad(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "wheels [*]")
	one, two := made(t, wheeltest.Options{}), made(t, wheeltest.Options{Version: "0.19.7"})
	for _, sub := range []string{dir, filepath.Join(dir, "sub.whl.d")} {
		if err := os.MkdirAll(sub, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	copyFile(t, one, filepath.Join(dir, filepath.Base(one)))
	copyFile(t, two, filepath.Join(dir, filepath.Base(two)))
	copyFile(t, one, filepath.Join(dir, "note.txt"))
	all := load(t, dir)
	if len(all) != 2 || all[0].Version == all[1].Version {
		t.Fatalf("%d wheels", len(all))
	}
	w := load(t, one)[0]
	if w.Manifest.Name != filepath.Base(one) || len(w.Manifest.SHA256) != 64 || w.Manifest.Size == 0 || !strings.HasPrefix(w.Version, "0.19.8+") || w.ByteCode != nil {
		t.Errorf("%+v", w)
	}
	if ref := w.Ref(); ref.Name != w.Manifest.Name || ref.SHA256 != w.Manifest.SHA256 || ref.Version != w.Version {
		t.Errorf("%+v", ref)
	}
}

// What is no wheel to deploy is refused before any node is asked, with the exit code that says why.
func TestLoadUnpacksNothing(t *testing.T) {
	path, temp := made(t, wheeltest.Options{}), t.TempDir()
	t.Setenv("TMPDIR", temp)
	t.Chdir(temp)
	before, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	load(t, path)
	after, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(after) != len(before) {
		t.Errorf("beside the wheel: %v, %v", after, err)
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("in the folder for temporary files: %v, %v", left, err)
	}
}

func TestLoadRefuses(t *testing.T) {
	t.Parallel()
	empty, damaged, foreign := t.TempDir(), t.TempDir(), t.TempDir()
	good, err := os.ReadFile(made(t, wheeltest.Options{}))
	if err != nil {
		t.Fatal(err)
	}
	name := "deepspeed-0.19.8-cp311-cp311-linux_x86_64.whl"
	for file, data := range map[string][]byte{
		filepath.Join(damaged, name): good[:len(good)/2], filepath.Join(foreign, name): []byte("not a zip file"),
	} {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	outside := made(t, wheeltest.Options{Files: map[string]string{"torch/evil.py": "x = 1\n"}})
	for path, want := range map[string]struct {
		text, hint string
		code       int
	}{
		filepath.Join(empty, "none.whl"): {"no wheel: ", "dsbuild wheel --for INVENTORY", 2},
		empty:                            {"no wheel in " + empty, "dsbuild wheel --for INVENTORY", 2},
		damaged:                          {name, "", 4},
		foreign:                          {name, "", 4},
		outside:                          {"it would put files outside of DeepSpeed's own folder: torch", "", 4},
	} {
		_, err := wheels.Load(t.Context(), path)
		if err == nil || !strings.Contains(err.Error(), want.text) || fault.ExitCode(err) != want.code || !strings.Contains(fault.Hint(err), want.hint) {
			t.Errorf("%s: %v, exit code %d, hint %q", filepath.Base(path), err, fault.ExitCode(err), fault.Hint(err))
		}
	}
}

// facts are those of a node that a wheel for its Python, torch and CUDA fits.
func facts() node.Facts {
	return node.Facts{
		Python: "3.11.2", Tag: "cp311", Platform: "linux_x86_64", Glibc: "2.36", CPU: "x86-64-v4", Torch: "2.15.0", TorchCUDA: "13.2", Libstdcxx: "3.4.30",
		Executable: "/e/bin/python", Prefix: "/e", SitePackages: "/e/lib", Driver: "595.10", GPUs: []node.GPU{{Name: "NVIDIA A100-SXM4-80GB", Arch: "8.0"}},
	}
}

// offered is a wheel for these nodes.
func offered(name string, change func(*wheel.Manifest)) wheels.Wheel {
	m := wheel.Manifest{
		Name: name + "-0.19.8-cp311-cp311-linux_x86_64.whl", Version: "0.19.8", SHA256: name, Source: wheel.Source{Kind: "release", Ref: "0.19.8"}, Ops: []string{"cpu_adam", "fused_adam"},
		Archs: []string{"8.0"}, CPU: "x86-64-v3", Python: "3.11", Torch: "2.15.0", CUDA: "13.2", Glibc: "2.28",
	}
	if change != nil {
		change(&m)
	}
	return wheels.Wheel{Manifest: m, Version: m.Version}
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
		wheels    []wheels.Wheel
		want, why string
		err       string
	}{
		"the only one":            {[]wheels.Wheel{offered("a", nil)}, "a", "", ""},
		"the only one, unfit":     {[]wheels.Wheel{unfit}, "unfit", "", ""},
		"the one that fits":       {[]wheels.Wheel{unfit, offered("a", nil)}, "a", "", ""},
		"a higher CPU level":      {[]wheels.Wheel{offered("a", nil), v4}, "v4", "it uses more of the CPU", ""},
		"the order does not help": {[]wheels.Wheel{v4, offered("a", nil)}, "v4", "it uses more of the CPU", ""},
		"equal":                   {[]wheels.Wheel{offered("a", nil), offered("b", nil)}, "", "", "these fit it equally well: a-0.19.8"},
		"other sources":           {[]wheels.Wheel{offered("a", nil), other}, "", "", "these fit it equally well: a-"},
		"other ops":               {[]wheels.Wheel{offered("a", nil), more}, "", "", "these fit it equally well: a-"},
	} {
		got, err := wheels.Choose(tables, c.wheels, facts())
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
	got, err := wheels.Choose(tables, []wheels.Wheel{unfit, unfit}, facts())
	if want := "unfit-0.19.8-cp312-cp312-linux_x86_64.whl does not fit it: "; err != nil || got.Wheel != nil || len(got.Verdict.Reasons) != 2 || !strings.HasPrefix(got.Verdict.Reasons[1], want) {
		t.Errorf("none fits: %+v, %v, want no wheel, and for each %q", got, err, want)
	}
}

// Nodes of one wheel are alike; of a wheel for several torches those with the same torch, CUDA and
// Python.
func TestKindOfNode(t *testing.T) {
	t.Parallel()
	plain, stable := offered("a", nil), offered("s", func(m *wheel.Manifest) { m.TorchABI = &wheel.TorchABI{Stable: true} })
	one, two := facts(), facts()
	two.Torch = "2.14.0"
	if plain.Kind(one) != plain.Kind(two) || stable.Kind(one) == stable.Kind(two) {
		t.Errorf("%q and %q, %q and %q", plain.Kind(one), plain.Kind(two), stable.Kind(one), stable.Kind(two))
	}
	two.Torch = "2.15.3"
	if stable.Kind(one) != stable.Kind(two) {
		t.Errorf("%q and %q", stable.Kind(one), stable.Kind(two))
	}
	if wheels.AnyStable([]wheels.Wheel{plain}) || !wheels.AnyStable([]wheels.Wheel{plain, stable}) {
		t.Error("AnyStable")
	}
}
