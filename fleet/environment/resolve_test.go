package environment_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/environment"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/pyindex"
	"github.com/dsbuild/dsbuild/internal/testkit/wheelindex"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// resolver resolves from an index of the test's, and caches into a folder of the test's.
func resolver(t *testing.T, x *wheelindex.Index) environment.Resolver {
	t.Helper()
	return environment.Resolver{
		UV: x.UV, Installer: x.Installer(t), TorchIndex: x.URL + "/torch",
		Environ: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "UV_CACHE_DIR=" + t.TempDir(), "UV_DEFAULT_INDEX=" + x.URL, "UV_NO_CONFIG=1", "UV_PYTHON_DOWNLOADS=never"},
		Collect: collector(t, x),
	}
}

func collector(t *testing.T, x *wheelindex.Index) *environment.Collector {
	t.Helper()
	return &environment.Collector{Cache: t.TempDir(), Indexes: []string{x.URL}, Client: pyindex.New(http.DefaultTransport)}
}

// spec writes an environment.yaml into a folder and reads it.
func spec(t *testing.T, dir, text string) *environment.Spec {
	t.Helper()
	path := filepath.Join(dir, "environment.yaml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := environment.Read(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var old = environment.Platform{Machine: "x86_64", Glibc: "2.28"}

func names(s environment.Set) []string {
	var out []string
	for _, f := range s.Files {
		out = append(out, f.File)
	}
	return out
}

func TestLockListsEveryFileForEachKind(t *testing.T) {
	t.Parallel()
	x, dir := wheelindex.New(t), t.TempDir()
	x.Add(t, wheelindex.Wheel{Name: "alpha", Version: "1.0", Requires: []string{"beta>=1", "gamma; platform_machine == 'aarch64'"}})
	x.Add(t, wheelindex.Wheel{Name: "beta", Version: "1.0"})
	x.Add(t, wheelindex.Wheel{Name: "beta", Version: "1.1", Tag: "cp311-cp311-manylinux_2_17_x86_64"})
	x.Add(t, wheelindex.Wheel{Name: "beta", Version: "1.1", Tag: "cp311-cp311-manylinux_2_34_x86_64"})
	local := wheelindex.Make(t, dir, wheelindex.Wheel{Name: "delta", Version: "2.0+local", Requires: []string{"alpha"}})
	s := spec(t, dir, "name: train\npython: 3.11\ncompanions: ["+filepath.Base(local)+"]\n")
	r, lockFile := resolver(t, x), filepath.Join(dir, "environment.lock")
	kinds := []environment.Platform{old, {Machine: "x86_64", Glibc: "2.35"}}
	l, err := r.Resolve(t.Context(), s, kinds, nil, dir)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"alpha-1.0-py3-none-any.whl", "beta-1.1-cp311-cp311-manylinux_2_17_x86_64.whl", "delta-2.0+local-py3-none-any.whl"}
	if got := names(l.Sets[0]); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	want[1] = "beta-1.1-cp311-cp311-manylinux_2_34_x86_64.whl"
	if got := names(l.Sets[1]); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if f := l.Sets[0].Files[2]; f.Path != f.File || f.Size == 0 || l.Sets[0].Files[0].Path != "" || l.Sets[0].Installer.Name != "uv" || l.Sets[0].Digest == l.Sets[1].Digest {
		t.Errorf("%+v", l.Sets[0])
	}
	if changed, err := l.Write(lockFile); !changed || err != nil {
		t.Error(changed, err)
	}
	text, err := os.ReadFile(lockFile)
	if err != nil || strings.Contains(string(text), "://") {
		t.Errorf("%v: the lock has a URL:\n%s", err, text)
	}

	// A second run changes nothing, though the index has something newer by now.
	x.Add(t, wheelindex.Wheel{Name: "beta", Version: "1.2"})
	read, err := environment.ReadLock(lockFile)
	if err != nil {
		t.Fatal(err)
	}
	again, err := r.Resolve(t.Context(), s, kinds, read, dir)
	if err != nil {
		t.Fatal(err)
	}
	if changed, err := again.Write(lockFile); changed || err != nil {
		t.Errorf("changed %v, %v", changed, err)
	}
	// What is asked for anew comes along, and the versions that are there stay.
	x.Add(t, wheelindex.Wheel{Name: "epsilon", Version: "3"})
	newer := x.Add(t, wheelindex.Wheel{Name: "beta", Version: "1.1", Tag: "cp311-cp311-manylinux_2_17_x86_64", Files: map[string]string{"beta/built.py": "again = 1\n"}})
	if err := os.Rename(newer, strings.Replace(newer, "-1.1-", "-1.1-2_bbbbbbbb-", 1)); err != nil {
		t.Fatal(err)
	}
	x.Add(t, wheelindex.Wheel{Name: "beta", Version: "1.1", Tag: "cp311-cp311-manylinux_2_17_x86_64"})
	r = resolver(t, x) // which has not read the index yet
	more, err := r.Resolve(t.Context(), spec(t, dir, "name: train\npython: 3.11\ncompanions: ["+filepath.Base(local)+"]\nrequirements: [epsilon]\n"), kinds, read, dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := names(more.Sets[0]); len(got) != 4 || got[1] != "beta-1.1-cp311-cp311-manylinux_2_17_x86_64.whl" || got[3] != "epsilon-3-py3-none-any.whl" {
		t.Errorf("%q", got)
	}
	pinned := spec(t, dir, "name: train\npython: 3.11\nrequirements: [beta==1.1]\n")
	if fresh, err := r.Resolve(t.Context(), pinned, kinds[:1], nil, dir); err != nil || names(fresh.Sets[0])[0] != "beta-1.1-2_bbbbbbbb-cp311-cp311-manylinux_2_17_x86_64.whl" {
		t.Errorf("%v, %v: without a lock, the newest build is taken", fresh, err)
	}
	// A deterministic lock: from nothing twice the same.
	one, err1 := r.Resolve(t.Context(), s, kinds, nil, dir)
	two, err2 := resolver(t, x).Resolve(t.Context(), s, kinds, nil, dir)
	a, _ := json.Marshal(one)
	b, _ := json.Marshal(two)
	if err1 != nil || err2 != nil || string(a) != string(b) || one.Sets[0].Files[1].Version != "1.2" {
		t.Errorf("%v, %v\n%s\n%s", err1, err2, a, b)
	}
}

// Each kind of node gets the wheels of its machine: uv's, those of the index, and the local ones. A local package without a wheel
// for a kind is named, with its place in the file; so is a second one for the same kind.
func TestLockOfBothMachines(t *testing.T) {
	t.Parallel()
	x, dir := wheelindex.New(t), t.TempDir()
	x.AddUV(t, "manylinux_2_28_aarch64")
	for _, machine := range []string{"x86_64", "aarch64"} {
		x.Add(t, wheelindex.Wheel{Name: "beta", Version: "1", Tag: "cp311-cp311-manylinux_2_17_" + machine})
		wheelindex.Make(t, dir, wheelindex.Wheel{Name: "ours", Version: "1+" + machine, Tag: "py3-none-manylinux_2_28_" + machine})
		wheelindex.Make(t, dir, wheelindex.Wheel{Name: "fast", Version: "2", Tag: "cp311-cp311-linux_" + machine, Requires: []string{"beta"}})
	}
	const (
		x86Ours, armOurs = "ours-1+x86_64-py3-none-manylinux_2_28_x86_64.whl", "ours-1+aarch64-py3-none-manylinux_2_28_aarch64.whl"
		x86Fast, armFast = "fast-2-cp311-cp311-linux_x86_64.whl", "fast-2-cp311-cp311-linux_aarch64.whl"
	)
	kinds := []environment.Platform{{Machine: "aarch64", Glibc: "2.36"}, {Machine: "x86_64", Glibc: "2.28"}}
	lock := func(deepspeed, companions string) (*environment.Lock, error) {
		s := spec(t, dir, "name: train\npython: 3.11\ndeepspeed: "+deepspeed+"\ncompanions: "+companions+"\n")
		l, err := resolver(t, x).Resolve(t.Context(), s, kinds, nil, dir)
		if err == nil && !l.Answers(s) {
			t.Error("the lock does not answer its own request")
		}
		return l, err
	}
	l, err := lock("["+x86Ours+", "+armOurs+"]", "["+armFast+", "+x86Fast+"]")
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range [][]string{
		{"beta-1-cp311-cp311-manylinux_2_17_aarch64.whl", armFast, armOurs},
		{"beta-1-cp311-cp311-manylinux_2_17_x86_64.whl", x86Fast, x86Ours},
	} {
		set := l.Sets[i]
		if got := names(set); !slices.Equal(got, want) || set.Platform != kinds[i] || !strings.HasSuffix(set.Installer.File, "_"+kinds[i].Machine+".whl") {
			t.Errorf("%s: %q and %s, want %q and the uv of that machine", set.Platform, got, set.Installer.File, want)
		}
		for _, f := range set.Files {
			if local := f.Name != "beta"; local != (f.Path == f.File) {
				t.Errorf("%s: path %q", f.File, f.Path)
			}
		}
	}
	for want, c := range map[string][2]string{
		"environment.yaml:3:12: ours: no wheel for Python 3.11, aarch64 with glibc 2.36; available: " + x86Ours: {x86Ours, "[" + armFast + ", " + x86Fast + "]"},
		"environment.yaml:4:14: fast: no wheel for Python 3.11, aarch64 with glibc 2.36; available: " + x86Fast: {"[" + x86Ours + ", " + armOurs + "]", "[" + x86Fast + "]"},
		"environment.yaml:3:63: duplicate wheel of ours for x86_64 with glibc 2.28":                             {"[" + x86Ours + ", " + x86Ours + ", " + armOurs + "]", "[" + armFast + ", " + x86Fast + "]"},
	} {
		_, err := lock(c[0], c[1])
		mustBeCode(t, err, 2, want)
		if err != nil && (strings.Contains(err.Error(), "\n") || fault.Hint(err) == "") {
			t.Errorf("%v, hint %q; want one line and a hint", err, fault.Hint(err))
		}
	}
}

// A package without a wheel for the nodes' Python or glibc is named.
func TestPackageWithoutAFittingWheelIsNamed(t *testing.T) {
	t.Parallel()
	x, dir := wheelindex.New(t), t.TempDir()
	x.Add(t, wheelindex.Wheel{Name: "newpython", Version: "1", Tag: "cp313-cp313-manylinux_2_17_x86_64"})
	x.Add(t, wheelindex.Wheel{Name: "newglibc", Version: "1", Tag: "cp311-cp311-manylinux_2_39_x86_64"})
	wheelindex.Make(t, dir, wheelindex.Wheel{Name: "ours", Version: "1", Tag: "cp312-cp312-linux_x86_64"})
	for text, want := range map[string]string{
		"requirements: [newpython]":                          "newpython",
		"requirements: [newglibc]":                           "newglibc",
		"requirements: [missing]":                            "missing was not found",
		"companions: [ours-1-cp312-cp312-linux_x86_64.whl]":  "environment.yaml:3:14: ours: no wheel for Python 3.11, x86_64 with glibc 2.28; available: ours-1-cp312-cp312-linux_x86_64.whl",
		"deepspeed: nowhere-1-py3-none-any.whl":              "environment.yaml:3:12: ",
		"companions: [nonsense.whl]":                         "environment.yaml:3:14: ",
		"requirements: [\"newglibc; python_version < '3'\"]": "no requirement applies",
	} {
		_, err := resolver(t, x).Resolve(t.Context(), spec(t, dir, "name: train\npython: 3.11\n"+text+"\n"), []environment.Platform{old}, nil, dir)
		mustBeCode(t, err, 2, want)
	}
	_, err := resolver(t, x).Resolve(t.Context(), spec(t, dir, "name: train\npython: 3.11\nrequirements: [newglibc]\n"), []environment.Platform{{Machine: "x86_64", Glibc: "2.12"}}, nil, dir)
	if err == nil || !strings.Contains(err.Error(), "too old") {
		t.Error(err)
	}
}

// An index that does not answer is no mistake of the file, and its password is not shown.
func TestUnreachableIndex(t *testing.T) {
	t.Parallel()
	x, dir := wheelindex.New(t), t.TempDir()
	r := resolver(t, x)
	r.Environ = append(r.Environ, "UV_DEFAULT_INDEX=http://me:sEcRet@127.0.0.1:9/simple", "UV_HTTP_RETRIES=0")
	_, err := r.Resolve(t.Context(), spec(t, dir, "name: train\npython: 3.11\nrequirements: [alpha]\n"), []environment.Platform{old}, nil, dir)
	var c interface{ ExitCode() int }
	if err == nil || strings.Contains(err.Error(), "sEcRet") || errors.As(err, &c) && c.ExitCode() == 2 {
		t.Error(err)
	}
}

// torch for a CUDA of its own comes from torch's own index, and nothing else does.
func TestTorchComesFromItsOwnIndex(t *testing.T) {
	t.Parallel()
	x, own, dir := wheelindex.New(t), wheelindex.New(t), t.TempDir()
	own.Add(t, wheelindex.Wheel{Name: "torch", Version: "2.15.0+cu126", Requires: []string{"beta"}})
	own.Add(t, wheelindex.Wheel{Name: "beta", Version: "0.1"})
	x.Add(t, wheelindex.Wheel{Name: "beta", Version: "1.0"})
	r := resolver(t, x)
	r.TorchIndex = strings.TrimSuffix(own.URL, "/simple") + "/torch"
	r.Collect.Torch = r.TorchIndex
	l, err := r.Resolve(t.Context(), spec(t, dir, "name: train\npython: 3.11\ntorch: 2.15.0+cu126\n"), []environment.Platform{old}, nil, dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := names(l.Sets[0]); !slices.Equal(got, []string{"beta-1.0-py3-none-any.whl", "torch-2.15.0+cu126-py3-none-any.whl"}) {
		t.Errorf("%q", got)
	}
	if _, err := r.Collect.Collect(t.Context(), l, l.Sets[0].Files); err != nil {
		t.Error(err)
	}
}

func TestCollect(t *testing.T) {
	t.Parallel()
	x, dir := wheelindex.New(t), t.TempDir()
	path := x.Add(t, wheelindex.Wheel{Name: "alpha", Version: "1.0"})
	local := wheelindex.Make(t, dir, wheelindex.Wheel{Name: "delta", Version: "2.0"})
	s := spec(t, dir, "name: train\npython: 3.11\nrequirements: [alpha]\ncompanions: ["+filepath.Base(local)+"]\n")
	l, err := resolver(t, x).Resolve(t.Context(), s, []environment.Platform{old}, nil, dir)
	if err != nil {
		t.Fatal(err)
	}
	files, c := l.Sets[0].Files, collector(t, x)
	x.Gets.Store(0) // uv has looked into the files
	said := ""      // before the first download
	c.Note = func(format string, args ...any) {
		if x.Gets.Load() == 0 {
			said += fmt.Sprintf(format, args...) + "\n"
		}
	}
	paths, err := c.Collect(t.Context(), l, files)
	if want := "1 file to download, " + ui.Size(files[0].Size) + "\n"; !strings.HasPrefix(said, want) {
		t.Errorf("before the download: %q, want %q", said, want)
	}
	if err != nil || len(paths) != 2 || paths[files[1].SHA256] != local || x.Gets.Load() != 1 {
		t.Errorf("%v, %v, %d downloads", paths, err, x.Gets.Load())
	}
	if _, err = c.Collect(t.Context(), l, files); err != nil || x.Gets.Load() != 1 {
		t.Errorf("%v, %d downloads", err, x.Gets.Load())
	}
	// A damaged file in the cache is fetched again.
	if err := os.WriteFile(paths[files[0].SHA256], []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err = c.Collect(t.Context(), l, files); err != nil || x.Gets.Load() != 2 {
		t.Errorf("%v, %d downloads", err, x.Gets.Load())
	}
	// A file of the folder comes before the index; it must be the one of the lock.
	c = collector(t, x)
	c.Folder = x.Dir
	if _, err = c.Collect(t.Context(), l, files); err != nil || x.Gets.Load() != 2 {
		t.Errorf("%v, %d downloads", err, x.Gets.Load())
	}
	x.Add(t, wheelindex.Wheel{Name: "alpha", Version: "1.0", Files: map[string]string{"alpha/more.py": ""}})
	_, err = c.Collect(t.Context(), l, files)
	mustBeCode(t, err, 4, path+" has sha256 ")
	// So must the file of an index, and a local one.
	c = collector(t, x)
	_, err = c.Collect(t.Context(), l, files)
	if err == nil || !strings.Contains(err.Error(), "not found on any index") {
		t.Error(err)
	}
	wheelindex.Make(t, dir, wheelindex.Wheel{Name: "delta", Version: "2.0", Files: map[string]string{"delta/more.py": ""}})
	_, err = c.Collect(t.Context(), l, files[1:])
	mustBeCode(t, err, 4, "delta-2.0-py3-none-any.whl has sha256 ")
	if err := os.Remove(local); err != nil {
		t.Fatal(err)
	}
	_, err = c.Collect(t.Context(), l, files[1:])
	mustBeCode(t, err, 4, "delta-2.0-py3-none-any.whl not found")
}

// An index that serves other bytes than it says leaves nothing in the cache.
func TestIndexThatLies(t *testing.T) {
	t.Parallel()
	x, dir := wheelindex.New(t), t.TempDir()
	path := x.Add(t, wheelindex.Wheel{Name: "alpha", Version: "1.0"})
	l, err := resolver(t, x).Resolve(t.Context(), spec(t, dir, "name: train\npython: 3.11\nrequirements: [alpha]\n"), []environment.Platform{old}, nil, dir)
	if err != nil {
		t.Fatal(err)
	}
	c := collector(t, x)
	if _, err := c.Client.Files(t.Context(), x.URL, "alpha"); err != nil { // the page is read before the file changes
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("other bytes"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err = c.Collect(t.Context(), l, l.Sets[0].Files)
	mustBeCode(t, err, 4, "on the index, but ")
	left, _ := filepath.Glob(filepath.Join(c.Cache, "*", "*"))
	if len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

func mustBeCode(t *testing.T, err error, code int, want string) {
	t.Helper()
	var c interface{ ExitCode() int }
	if !errors.As(err, &c) || c.ExitCode() != code || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q with exit code %d", err, want, code)
	}
}

// A lock that somebody changed is refused, with the place as far as JSON has one.
func TestDamagedLock(t *testing.T) {
	t.Parallel()
	x, dir := wheelindex.New(t), t.TempDir()
	x.Add(t, wheelindex.Wheel{Name: "alpha", Version: "1.0"})
	l, err := resolver(t, x).Resolve(t.Context(), spec(t, dir, "name: train\npython: 3.11\nrequirements: [alpha]\n"), []environment.Platform{old}, nil, dir)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "environment.lock")
	if _, err := l.Write(path); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sum := l.Sets[0].Files[0].SHA256
	for from, c := range map[string][2]string{
		`"name": "train"`:     {`"name": "../train"`, "invalid name, "},
		sum:                   {strings.Repeat("a", 64), "edited by hand"},
		`alpha-1.0-py3`:       {`../alpha-1.0-py3`, "invalid wheel file name: want"},
		`"version": "1.0"`:    {`"version": "1.1"`, "file name does not match name"},
		`"format": 1`:         {`"format": 2`, "unsupported lockfile format 2"},
		`"python": "3.11"`:    {`"python": 3`, ":4: "},
		`"machine": "x86_64"`: {`"machine": "x86_64", "url": ""`, "unknown field"},
		`"sets": [`:           {`"sets": [[`, ":"},
	} {
		bad := strings.Replace(string(text), from, c[0], 1)
		if err := os.WriteFile(path, []byte(bad), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := environment.ReadLock(path)
		mustBeCode(t, err, 2, c[1])
	}
	_, err = environment.ReadLock(filepath.Join(dir, "none"))
	mustBeCode(t, err, 2, "no such file")
}

func TestFor(t *testing.T) {
	t.Parallel()
	l := &environment.Lock{Python: "3.11", Sets: []environment.Set{{Platform: environment.Platform{Machine: "x86_64", Glibc: "2.28"}}, {Platform: environment.Platform{Machine: "x86_64", Glibc: "2.35"}}}}
	f := node.Facts{Python: "3.11.2", Tag: "cp311", Platform: "linux_x86_64", Glibc: "2.36"}
	if s, err := l.For(f); err != nil || s.Glibc != "2.35" {
		t.Error(s, err)
	}
	f.Glibc = "2.31"
	if s, err := l.For(f); err != nil || s.Glibc != "2.28" {
		t.Error(s, err)
	}
	for want, change := range map[string]func(*node.Facts){
		"no files for linux_x86_64 with glibc 2.17":                  func(f *node.Facts) { f.Glibc = "2.17" },
		"no files for linux_aarch64 with glibc 2.31":                 func(f *node.Facts) { f.Platform = "linux_aarch64" },
		"requires Python 3.11, but the node's interpreter is 3.12.1": func(f *node.Facts) { f.Python = "3.12.1" },
		"with the GIL, but the node's interpreter is cp311t":         func(f *node.Facts) { f.Tag = "cp311t" },
	} {
		g := f
		change(&g)
		if _, err := l.For(g); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// A download ends at the size in the lock, however much the index sends. What the nodes run is a uv that this dsbuild
// knows, whatever the lock says.
func TestLockIsTheLimit(t *testing.T) {
	t.Parallel()
	x, dir := wheelindex.New(t), t.TempDir()
	path := x.Add(t, wheelindex.Wheel{Name: "alpha", Version: "1.0"})
	l, err := resolver(t, x).Resolve(t.Context(), spec(t, dir, "name: train\npython: 3.11\nrequirements: [alpha]\n"), []environment.Platform{old}, nil, dir)
	if err != nil {
		t.Fatal(err)
	}
	c := collector(t, x)
	if _, err := c.Client.Files(t.Context(), x.URL, "alpha"); err != nil { // the page is read before the file changes
		t.Fatal(err)
	}
	if err := os.Truncate(path, 1<<40); err != nil {
		t.Fatal(err)
	}
	_, err = c.Collect(t.Context(), l, l.Sets[0].Files)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("more than %d bytes", l.Sets[0].Files[0].Size)) || fault.ExitCode(err) != 4 {
		t.Errorf("a file of a terabyte: %v (exit code %d), want an error about its size and 4", err, fault.ExitCode(err))
	}
	if left, _ := filepath.Glob(filepath.Join(c.Cache, l.Sets[0].Files[0].SHA256, "*")); len(left) > 0 {
		t.Errorf("left %q, want nothing", left)
	}

	uv := x.Installer(t)
	if err := l.CheckInstaller("environment.lock", uv); err != nil {
		t.Errorf("the uv of the resolver: %v", err)
	}
	l.Sets[0].Installer.SHA256 = strings.Repeat("ab", 32)
	err = l.CheckInstaller("environment.lock", uv)
	if err == nil || !strings.HasPrefix(err.Error(), "environment.lock: x86_64 with glibc 2.28: installer uv-") || fault.ExitCode(err) != 2 || !strings.Contains(fault.Hint(err), "env lock") {
		t.Errorf("another installer: %v (exit code %d, hint %q), want an error with exit code 2", err, fault.ExitCode(err), fault.Hint(err))
	}
}
