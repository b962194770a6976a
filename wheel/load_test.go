package wheel_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

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

func load(t *testing.T, path string) []wheel.Loaded {
	t.Helper()
	all, err := wheel.LoadAll(t.Context(), path)
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

// Of several builds of a wheel, a folder gives the newest. Builds of one recipe and wheels for other machines all count.
func TestLoadTakesTheNewestBuild(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var want []string
	for i, o := range []struct {
		recipe int
		plan   string
		cpu    wheel.CPULevel
	}{{9, "a", ""}, {10, "b", ""}, {10, "c", ""}, {1, "d", wheel.CPUArm}} {
		opt := wheeltest.OfKind(wheel.KindComplete)
		opt.Recipe, opt.Plan = o.recipe, strings.Repeat(o.plan, 64)
		if o.cpu != "" {
			opt.CPU, opt.Variants = o.cpu, slices.DeleteFunc(opt.Variants, func(v wheel.Variant) bool { return v.CPU != "" })
			opt.Ops = slices.DeleteFunc(opt.Ops, func(op wheeltest.Op) bool { return strings.HasPrefix(op.Variant, "v") })
		}
		if path := wheeltest.Packed(t, dir, opt); i > 0 {
			want = append(want, filepath.Base(path))
		}
	}
	var got []string
	for _, w := range load(t, dir) {
		got = append(got, w.Manifest.Name)
	}
	slices.Sort(want)
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
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
		filepath.Join(empty, "none.whl"): {"wheel not found: ", "build one for these nodes: dsbuild wheel", 2},
		empty:                            {"no wheels in " + empty, "build one for these nodes: dsbuild wheel", 2},
		damaged:                          {name, "", 4},
		foreign:                          {name, "", 4},
		outside:                          {"would write files outside DeepSpeed's own directory: torch", "", 4},
	} {
		_, err := wheel.LoadAll(t.Context(), path)
		hint := fault.Expand(fault.Hint(err), func(c fault.Command) string { return "dsbuild " + c.Do }, nil)
		if err == nil || !strings.Contains(err.Error(), want.text) || fault.ExitCode(err) != want.code || !strings.Contains(hint, want.hint) {
			t.Errorf("%s: %v, exit code %d, hint %q", filepath.Base(path), err, fault.ExitCode(err), hint)
		}
	}
}
