package deploy_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/wheel"
)

// small is a pure wheel of a test: a name, a version, what it requires, and
// files. "console" among the files are its commands.
type small struct {
	name, version string
	requires      []string
	files         map[string]string
	companion     bool
	tag           string // "" means py3-none-any
}

// write makes the wheel in dir and returns its path.
func (s small) write(t *testing.T, dir string) string {
	t.Helper()
	stem := strings.ReplaceAll(s.name, "-", "_")
	info := stem + "-" + s.version + ".dist-info/"
	tag := s.tag
	if tag == "" {
		tag = "py3-none-any"
	}
	metadata := "Metadata-Version: 2.1\nName: " + s.name + "\nVersion: " + s.version + "\nProvides-Extra: fast\n"
	for _, r := range s.requires {
		metadata += "Requires-Dist: " + r + "\n"
	}
	files := map[string]string{
		info + "METADATA": metadata,
		info + "WHEEL":    "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: " + tag + "\n",
	}
	if s.files == nil {
		files[stem+"/__init__.py"] = fmt.Sprintf("__version__ = %q\n", s.version)
	}
	for name, text := range s.files {
		if name == "console" {
			name = info + "entry_points.txt"
		}
		files[name] = text
	}
	path := filepath.Join(dir, stem+"-"+s.version+"-"+tag+".whl")
	wheeltest.Write(t, path, files)
	return path
}

// wheelhouse is a bundle of wheels for the Python of the tests.
func wheelhouse(t *testing.T, wheels ...small) *wheel.Bundle {
	t.Helper()
	dir := t.TempDir()
	companions := map[string]*wheel.Source{}
	for _, w := range wheels {
		w.write(t, dir)
		if w.companion {
			companions[w.name] = nil
		}
	}
	tag := pythonTag(t)
	b, err := wheel.WriteBundle(t.Context(), dir, tag[2:3]+"."+tag[3:], companions)
	if err != nil {
		t.Fatal(err)
	}
	return &b
}

// unread is a wheelhouse without a check of its wheels.
func unread(t *testing.T, wheels ...small) *wheel.Bundle {
	t.Helper()
	tag := pythonTag(t)
	b := &wheel.Bundle{Python: tag[2:3] + "." + tag[3:]}
	for _, w := range wheels {
		path := w.write(t, t.TempDir())
		sum, size, err := wheel.HashFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b.Wheels = append(b.Wheels, wheel.BundleWheel{
			File: filepath.Base(path), Name: w.name, Version: w.version, SHA256: sum, Size: size, Why: wheel.Dependency,
			Path: path, Tags: []string{"py3-none-any"},
		})
	}
	return b
}

// install puts wheels into an environment as pip would have before.
func (e environment) install(t *testing.T, wheels ...small) {
	t.Helper()
	dir := t.TempDir()
	var paths []string
	for _, w := range wheels {
		paths = append(paths, w.write(t, dir))
	}
	e.pipInstall(t, quickPip, paths...)
}

// lacking is an environment without einops, with an old hjson and two packages
// that share a folder.
func lacking(t *testing.T) environment {
	t.Helper()
	e := newEnvironment(t, "2.15.0")
	if err := os.RemoveAll(filepath.Join(e.site, "einops-0.8.0.dist-info")); err != nil {
		t.Fatal(err)
	}
	e.install(t,
		small{name: "hjson", version: "2.0", files: map[string]string{"hjson/__init__.py": "v = 2\n", "hjson/gone.py": "", "console": "[console_scripts]\nhjson = hjson:main\n"}},
		small{name: "space-one", version: "1.0", files: map[string]string{"space/one/__init__.py": "v = 1\n", "single.py": "v = 1\n"}},
		small{name: "space-two", version: "1.0", files: map[string]string{"space/two/__init__.py": "v = 1\n", "other.py": ""}},
	)
	return e
}

// fullHouse has what lacking lacks, and more than is needed.
func fullHouse(t *testing.T) *wheel.Bundle {
	t.Helper()
	return wheelhouse(t,
		small{name: "einops", version: "0.8.1", requires: []string{"deep-one[fast]>=1", "nothing; extra == 'doc'"}},
		small{name: "deep-one", version: "1.5", requires: []string{"quick; extra == 'fast'"}},
		small{name: "quick", version: "3", files: map[string]string{"quick.py": "", "quick_more.py": "", "console": "[console_scripts]\nquick = quick:main\n"}},
		small{name: "hjson", version: "3.1.0", files: map[string]string{"hjson/__init__.py": "v = 3\n", "console": "[console_scripts]\nhjson = hjson:main\nhjson3 = hjson:main\n"}},
		small{name: "space-one", version: "2.0", companion: true, files: map[string]string{"space/one/__init__.py": "v = 2\n", "space/one/new.py": "", "single.py": "v = 2\n"}},
		small{name: "unneeded", version: "1"},
	)
}

func needy() wheelOptions { return wheelOptions{require: []string{"hjson>=3", "space-two"}} }

func TestBundleFillsWhatANodeLacks(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	e := lacking(t).withPip(t, realPip)
	h, s := host(t, "gpu1", e, sshtest.Options{})
	opt := options(t, load(t, makeWheel(t, t.TempDir(), needy())), []*sshtest.Server{s}, h)
	was := e.snapshot(t)

	r := run(t, context.Background(), opt)
	if n := r.Nodes[0]; n.Status != report.Refused ||
		!strings.Contains(n.Error, "missing requirements: einops, hjson>=3 (this node has 2.0)") ||
		!strings.HasSuffix(n.Hint, fault.Deploy("--deps", "bundle").String()) {
		t.Errorf("without a bundle: %+v", n)
	}

	opt.Bundle = fullHouse(t)
	count := &sshtest.CountingDialer{Dialer: opt.Dialer}
	opt.Dialer = count
	r = run(t, context.Background(), opt)
	want := []string{"deep-one 1.5", "einops 0.8.1", "hjson 3.1.0", "quick 3", "space-one 2.0"}
	if n := r.Nodes[0]; r.Err() != nil || !n.Changed || !slices.Equal(n.ExtraWheels, want) || count.Puts.Load() != 6 {
		t.Fatalf("%v: %+v, %d files sent", r.Err(), n, count.Puts.Load())
	}
	const program = "import einops, deep_one, quick, hjson, space.one, space.two, single; " +
		"print(einops.__version__, hjson.v, space.one.v, space.two.v, single.v)"
	out, err := exec.Command(e.python, "-c", program).CombinedOutput()
	if strings.TrimSpace(string(out)) != "0.8.1 3 2 1 2" {
		t.Errorf("%v: %s", err, out)
	}
	for _, gone := range []string{"hjson/gone.py", "hjson-2.0.dist-info", "unneeded"} {
		if exists(filepath.Join(e.site, gone))() {
			t.Errorf("%s is there", gone)
		}
	}
	after := e.snapshot(t)
	for path, w := range was {
		if (strings.Contains(path, "/torch") || strings.Contains(path, "/two/") || strings.Contains(path, "two-1.0") ||
			strings.HasSuffix(path, "other.py")) && after[path] != w {
			t.Errorf("%s was changed", path)
		}
	}
	if left := e.leftovers(t); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}

	if r = run(t, context.Background(), opt); r.Err() != nil || r.Nodes[0].Changed || count.Puts.Load() != 6 {
		t.Errorf("second run: %+v", r.Nodes[0])
	}
	// Another commit of a companion, which says the same version.
	newer := opt
	newer.Bundle = wheelhouse(t, small{
		name: "space-one", version: "2.0", companion: true,
		files: map[string]string{"space/one/__init__.py": "v = 22\n"},
	})
	if r = run(t, context.Background(), newer); r.Err() != nil ||
		!slices.Equal(r.Nodes[0].ExtraWheels, []string{"space-one 2.0"}) {
		t.Errorf("%v: %+v", r.Err(), r.Nodes[0])
	}
	if r = back(t, newer); r.Err() != nil {
		t.Errorf("rollback: %+v", r.Nodes[0])
	}
	e.mustBe(t, after)
}

func TestRollbackTakesBackWhatWentAlong(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	e := lacking(t)
	h, s := host(t, "gpu1", e, sshtest.Options{})
	opt := options(t, load(t, makeWheel(t, t.TempDir(), needy())), []*sshtest.Server{s}, h)
	opt.Bundle = fullHouse(t)
	was := e.snapshot(t)
	if r := run(t, context.Background(), opt); r.Err() != nil {
		t.Fatal(r.Err())
	}
	if r := back(t, opt); r.Err() != nil {
		t.Errorf("rollback: %+v", r.Nodes[0])
	}
	e.mustBe(t, was)
}

// What one of several wheels breaks is put back for all of them.
func TestBundleIsPutBackAsAWhole(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	e := lacking(t)
	h, s := host(t, "gpu1", e, sshtest.Options{})
	opt := needy()
	opt.files = map[string]string{"deepspeed/__init__.py": "import no_such_module\n"}
	was := e.snapshot(t)
	o := options(t, load(t, makeWheel(t, t.TempDir(), opt)), []*sshtest.Server{s}, h)
	o.Bundle = fullHouse(t)
	r := run(t, context.Background(), o)
	if n := r.Nodes[0]; n.Status != report.Failed || n.Step != "verify" ||
		!strings.Contains(n.Error, "rolled back; DeepSpeed is not installed") {
		t.Errorf("%+v", n)
	}
	e.mustBe(t, was)

	// pip itself fails half way: a folder stands where a command must go.
	if err := os.Chmod(e.site, 0o755); err != nil {
		t.Fatal(err)
	}
	_, remove := e.hook(t, "raise SystemExit(3)")
	o.Wheels = load(t, makeWheel(t, t.TempDir(), needy()))
	if n := run(t, context.Background(), o).Nodes[0]; n.Status != report.Failed || n.Step != "install" {
		t.Errorf("%+v", n)
	}
	e.mustBe(t, was)
	remove()
	if r := run(t, context.Background(), o); r.Err() != nil {
		t.Error(r.Err())
	}
	if left := e.leftovers(t); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestRollbackRefusesWhatWasChangedSince(t *testing.T) {
	t.Parallel()
	e := lacking(t)
	h, s := host(t, "gpu1", e, sshtest.Options{})
	opt := options(t, load(t, makeWheel(t, t.TempDir(), needy())), []*sshtest.Server{s}, h)
	opt.Bundle = fullHouse(t)
	if r := run(t, context.Background(), opt); r.Err() != nil {
		t.Fatal(r.Err())
	}
	e.install(t, small{name: "hjson", version: "3.2"})
	was := e.snapshot(t)
	if n := back(t, opt).Nodes[0]; n.Status != report.Refused ||
		!strings.Contains(n.Error, "was changed: hjson-3.2.dist-info") {
		t.Errorf("%+v", n)
	}
	e.mustBe(t, was)
}

func TestPackageWithoutRecordIsNotReplaced(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	e := lacking(t)
	h, s := host(t, "gpu1", e, sshtest.Options{})
	opt := options(t, load(t, makeWheel(t, t.TempDir(), needy())), []*sshtest.Server{s}, h)
	opt.Bundle = fullHouse(t)
	remove := func(name string) {
		if err := os.RemoveAll(filepath.Join(e.site, name)); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(form string) {
		t.Helper()
		was := e.snapshot(t)
		if n := run(t, context.Background(), opt).Nodes[0]; n.Status != report.Failed || n.Step != "install" ||
			!strings.Contains(n.Error, "has no RECORD, which a rollback of hjson needs") || n.Hint == "" {
			t.Errorf("%s: %+v", form, n)
		}
		e.mustBe(t, was)
	}
	remove("../../../bin/hjson") // else the plan refuses already
	remove("hjson-2.0.dist-info/RECORD")
	refused("no RECORD")
	remove("hjson-2.0.dist-info")
	e.write(t, "hjson.egg-link", "/home/train/hjson\n.")
	refused("a checkout")
	remove("hjson.egg-link")
	e.write(t, "hjson-2.0-py3.11.egg/EGG-INFO/PKG-INFO", "Name: hjson\nVersion: 2.0\n")
	refused("an egg")
}

func TestShadowOfACompanionIsNamed(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	e := lacking(t)
	shadow := environment{dir: t.TempDir()}
	shadow.site = shadow.dir
	shadow.dist(t, "space_one", "0.9")
	h, s := host(t, "gpu1", e, sshtest.Options{})
	h.Env = map[string]string{"PYTHONPATH": shadow.dir}
	opt := options(t, load(t, makeWheel(t, t.TempDir(), needy())), []*sshtest.Server{s}, h)
	opt.Bundle = fullHouse(t)
	was := e.snapshot(t)
	if n := run(t, context.Background(), opt).Nodes[0]; n.Status != report.Failed || n.Step != "verify" ||
		!strings.Contains(n.Error, "space-one 2.0 was installed, but 0.9 in "+shadow.dir) ||
		!strings.Contains(n.Hint, "PYTHONPATH") {
		t.Errorf("%+v", n)
	}
	e.mustBe(t, was)
}

func TestPlanWithABundle(t *testing.T) {
	t.Parallel()
	house := &wheel.Bundle{Python: "3.11", Wheels: []wheel.BundleWheel{
		{File: "a", Name: "einops", Version: "0.8.1", Requires: []string{"numpy>=2", "torch>=2"}, Tags: []string{"py3-none-any"}, Size: 1 << 20},
		{File: "b", Name: "numpy", Version: "2.3.2", Tags: []string{"cp311-cp311-manylinux_2_36_x86_64"}, Size: 1 << 20},
		{File: "c", Name: "hjson", Version: "3.1.0", Tags: []string{"py2.py3-none-any", "py3-none-any"}, Size: 1 << 20},
		{File: "d", Name: "transformers", Version: "4.57.0.dev0", SHA256: "sha-d", Why: wheel.Companion, Requires: []string{"safetensors"}, Tags: []string{"py3-none-any"}, Size: 1 << 20},
		{File: "e", Name: "safetensors", Version: "0.6", Tags: []string{"cp38-abi3-manylinux2014_x86_64"}, Size: 1 << 20},
	}}
	runsIt := &node.Installed{Version: "0.19.8", SHA256: "sha-a.whl", Record: "r", Intact: true}
	full := map[string]string{"einops": "0.9", "hjson": "3.1.0", "transformers": "4.57.0.dev0", "safetensors": "0.5"}
	for name, c := range map[string]struct {
		change func(*node.Facts)
		force  bool
		action change.Action
		want   string // what goes along, or the reason
	}{
		"lacks all":          {nil, false, change.Install, "einops 0.8.1, numpy 2.3.2, hjson 3.1.0, transformers 4.57.0.dev0, safetensors 0.6"},
		"has all":            {func(f *node.Facts) { maps.Copy(f.Dists, full) }, false, change.Install, ""},
		"has all, runs it":   {func(f *node.Facts) { maps.Copy(f.Dists, full); f.DeepSpeed = runsIt }, false, change.UpToDate, ""},
		"forced":             {func(f *node.Facts) { maps.Copy(f.Dists, full); f.DeepSpeed = runsIt }, true, change.Install, "transformers 4.57.0.dev0"},
		"runs it, lacks one": {func(f *node.Facts) { maps.Copy(f.Dists, full); f.DeepSpeed = runsIt; delete(f.Dists, "hjson") }, false, change.Install, "hjson 3.1.0"},
		"other companion":    {func(f *node.Facts) { maps.Copy(f.Dists, full); f.Dists["transformers"] = "4.57.0" }, false, change.Install, "transformers 4.57.0.dev0"},
		"the same version": {func(f *node.Facts) {
			maps.Copy(f.Dists, full)
			f.ExtraWheels = map[string]string{"transformers": "sha-d"}
		}, false, change.Install, ""},
		"of another commit": {func(f *node.Facts) {
			maps.Copy(f.Dists, full)
			f.ExtraWheels = map[string]string{"transformers": "other"}
		}, false, change.Install, "transformers 4.57.0.dev0"},
		"older numpy":  {func(f *node.Facts) { maps.Copy(f.Dists, full); f.Dists["einops"] = "0.1"; f.Dists["numpy"] = "1.26" }, false, change.Install, "einops 0.8.1, numpy 2.3.2"},
		"old glibc":    {func(f *node.Facts) { f.Glibc = "2.35" }, false, change.Refuse, "numpy>=2 (b in the wheelhouse is incompatible with Python 3.11.2, linux_x86_64, glibc 2.35)"},
		"other Python": {func(f *node.Facts) { f.Python, f.Tag = "3.12.1", "cp312" }, false, change.Refuse, "built for Python 3.11"},
		"full disk":    {func(f *node.Facts) { f.FreeBytes = 32<<20 + 5<<20 }, false, change.Refuse, " needed"},
	} {
		w := planWheel("a.whl", nil)
		w.Requires = []string{"torch", "einops>0.5", "hjson"}
		plan, err := deploy.NewPlan([]deploy.ProbeResult{{Name: "n", Facts: facts(c.change)}}, []wheel.Loaded{w},
			deploy.PlanOptions{Bundle: house, Force: c.force})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		p := plan.Nodes[0]
		var along []string
		for _, a := range p.ExtraWheels {
			along = append(along, a.Name+" "+a.Version)
		}
		got := strings.Join(along, ", ")
		if c.action == change.Refuse {
			got = strings.Join(p.Reasons, "; ")
		}
		if p.Action != c.action || c.action == change.Refuse && !strings.Contains(got, c.want) ||
			c.action != change.Refuse && got != c.want {
			t.Errorf("%s: %s %q, want %s %q", name, p.Action, got, c.action, c.want)
		}
	}
	// A wheelhouse is for one machine, as its wheels are.
	arm := planWheel("deepspeed-0.19.8-py3-none-manylinux_2_28_aarch64.whl",
		func(m *wheel.Manifest) { m.CPU = string(wheel.CPUArm) })
	grace := facts(func(f *node.Facts) { f.Platform, f.CPU = "linux_aarch64", string(wheel.CPUArm) })
	other, err := deploy.NewPlan([]deploy.ProbeResult{{Name: "n", Facts: grace}}, []wheel.Loaded{arm},
		deploy.PlanOptions{Bundle: house})
	const alien = "safetensors (e in the wheelhouse is incompatible with " +
		"Python 3.11.2, linux_aarch64, glibc 2.36)"
	if err != nil || other.Nodes[0].Action != change.Refuse ||
		!strings.Contains(strings.Join(other.Nodes[0].Reasons, "; "), alien) {
		t.Errorf("companions for x86_64 on aarch64: %v, %+v", err, other.Nodes[0])
	}
	lacks := planWheel("a.whl", nil)
	lacks.Requires = []string{"torch>=3", "hjson>=4", "nowhere"}
	plan, err := deploy.NewPlan([]deploy.ProbeResult{{Name: "n", Facts: facts(nil)}}, []wheel.Loaded{lacks},
		deploy.PlanOptions{Bundle: house})
	const missing = "missing requirements not met by the wheelhouse: " +
		"torch>=3 (this node has 2.15.0), hjson>=4 (the wheelhouse has 3.1.0), nowhere"
	if err != nil || plan.Nodes[0].Reasons[0] != missing || plan.Nodes[0].Hint == "" {
		t.Errorf("%v: %+v", err, plan.Nodes[0])
	}
	var out strings.Builder
	plan, _ = deploy.NewPlan([]deploy.ProbeResult{{Name: "n", Facts: facts(nil)}},
		[]wheel.Loaded{planWheel("a.whl", nil)}, deploy.PlanOptions{Bundle: house})
	if err := plan.Print(&out); err != nil ||
		!strings.Contains(out.String(), "with transformers 4.57.0.dev0, safetensors 0.6") {
		t.Errorf("%v\n%s", err, out.String())
	}
}

func TestLoadBundle(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	made := wheelhouse(t, small{name: "hjson", version: "3"})
	if err := os.CopyFS(filepath.Join(dir, "wheelhouse"), os.DirFS(filepath.Dir(made.Wheels[0].Path))); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "a.whl")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][2]string{{"", dir}, {"", file}, {filepath.Join(dir, "wheelhouse"), "/nowhere"}} {
		if b, err := deploy.LoadBundle(t.Context(), args[0], args[1]); err != nil || len(b.Wheels) != 1 || b.Wheels[0].Path == "" {
			t.Errorf("%q: %+v, %v", args, b, err)
		}
	}
	if _, err := deploy.LoadBundle(t.Context(), "", "/nowhere/dist"); code(err) != 2 ||
		!strings.Contains(err.Error(), "/nowhere/wheelhouse is not a directory") {
		t.Error(err)
	}
	if _, err := deploy.LoadBundle(t.Context(), dir, ""); code(err) != 4 {
		t.Error(err)
	}
}
