package hostbuilder

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/dockerfiles"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/testkit/python"
	"github.com/dsbuild/dsbuild/internal/testkit/wheelindex"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/wheel"
)

// record is a reporter that remembers.
type record struct {
	mu    sync.Mutex
	lines []string
	ends  []ui.Outcome
	seen  chan struct{} // closed at the first line
}

func newRecord() *record { return &record{seen: make(chan struct{})} }

func (r *record) Note(string, ...any)        {}
func (r *record) Detail(string, ...any)      {}
func (r *record) Warn(string, ...any)        {}
func (r *record) Bar(string, int64) ui.Bar   { return nil }
func (r *record) Step(string) ui.Step        { return r }
func (r *record) End(o ui.Outcome, _ string) { r.ends = append(r.ends, o) }
func (r *record) Log(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.lines) == 0 {
		close(r.seen)
	}
	r.lines = append(r.lines, line)
}

// imageScripts stand in for those of the images: each environment is a
// directory with a bin, and each call of a script is a line of DSBUILD_TEST_CALLS.
func imageScripts(t *testing.T) (scripts map[string]string, calls func() []string) {
	file := filepath.Join(t.TempDir(), "calls")
	note := fmt.Sprintf("echo \"${0##*/} $*\" | sed 's/ $//' >>%s\n", file)
	scripts = map[string]string{
		"torch.sh":   note + `mkdir -p "$DSBUILD_ENV/bin"; echo "$PYTHON $TORCH" >"$DSBUILD_ENV/torch"; ln -s torch "$DSBUILD_ENV/link"` + "\n",
		"runtime.sh": note, "ops.sh": note, "uv.sh": note,
		"build.sh": note + `echo "$CUDA_HOME $DSBUILD_CUDA" >"$DSBUILD_ENV/cuda"` + "\n",
	}
	return scripts, func() []string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Fields(strings.ReplaceAll(strings.TrimSpace(string(text)), " ", "+"))
	}
}

// host is a builder on a machine of which little is known, whose uv is new
// enough, with the settings of a user.
func host(t *testing.T, environ ...string) *Builder {
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "uv"), []byte("#!/bin/sh\necho uv 999.0.1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return &Builder{
		opt: Options{
			Dir:     filepath.Join(t.TempDir(), "[host]"),
			Environ: append([]string{"PATH=" + bin + ":.:/usr/bin:/bin", "HOME=/home/of/user"}, environ...),
		},
		host: pipeline.BuildHost{
			BuildHost:    compat.BuildHost{Host: true},
			Interpreters: []pipeline.Interpreter{{Version: "3.11.2", Path: "/usr/bin/python3", Parts: []string{"Python.h"}}},
			Digest:       "sha256:0",
		},
	}
}

// planOf is a plan whose steps run the texts given as their scripts.
func planOf(t *testing.T, steps ...pipeline.Step) (*pipeline.Plan, func() []string) {
	context, calls := imageScripts(t)
	p := &pipeline.Plan{
		Parts:   []pipeline.Part{{Toolchain: compat.Toolchain{Python: "3.11", Torch: "2.15.0", CUDASource: compat.CUDA13}}},
		Context: context, Args: map[string]string{"TORCH": "2.15.0", "PYTHON": "3.11", "CUDA_HOME": "/opt/cuda"},
		Scripts: map[string]string{},
	}
	for _, s := range steps {
		p.Scripts[s.Name+".sh"] = s.Script
		s.Script = s.Name + ".sh"
		p.Steps = append(p.Steps, s)
	}
	return p, calls
}

// open opens a plan and closes it with the test.
func open(t *testing.T, b *Builder, p *pipeline.Plan, log *bytes.Buffer, rep ui.Reporter) *run {
	t.Helper()
	w, err := b.Open(t.Context(), p, pipeline.Work{Log: log, Report: rep})
	if err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	r := w.(*run)
	t.Cleanup(func() { r.Close() })
	return r
}

func read1(t *testing.T, elem ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(elem...))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// Steps run in order, each sees the outputs that it names and no others, and
// what is there is what the contract of scripts says.
func TestSteps(t *testing.T) {
	first := pipeline.Step{Name: "first", Image: pipeline.Toolchain, Script: `
		echo one >"$DSBUILD_OUT/file"; mkdir "$DSBUILD_OUT/dir"; echo deep >"$DSBUILD_OUT/dir/deep"
		cat "$DSBUILD_ENV/torch" "$DSBUILD_ENV/cuda"; ls "$DSBUILD_WORK"; pwd; umask
		echo dirty >"$DSBUILD_WORK/left"; echo "$CUDA_HOME"`}
	second := pipeline.Step{Name: "second", Image: pipeline.Toolchain, Inputs: []string{"first", "given"}, Script: `
		cat "$DSBUILD_IN/first/dir/deep" "$DSBUILD_IN"/given/*; ls "$DSBUILD_IN" "$DSBUILD_TOOLS"; cp -R "$DSBUILD_IN/first/." "$DSBUILD_OUT"`}
	p, calls := planOf(t, first, second)
	var log bytes.Buffer
	b := host(t)
	r := open(t, b, p, &log, newRecord())
	given := t.TempDir()
	if err := os.WriteFile(filepath.Join(given, "file"), []byte("given\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := r.Import("given", given); err != nil {
		t.Fatal(err)
	}
	for _, s := range p.Steps {
		if err := r.Run(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	cuda := r.entries[pipeline.Toolchain].path("cuda")
	want := strings.Join([]string{
		"/usr/bin/python3 2.15.0", cuda + " " + cuda, "tmp", filepath.Join(r.scratch, "work-first"), "0022", cuda,
		"== second: ", "deep", "given", filepath.Join(r.dir, "second/in") + ":", "first", "given",
		filepath.Join(r.dir, "second/tools") + ":", "second.sh", "",
	}, "\n")
	if _, got, _ := strings.Cut(log.String(), "== first: \n"); got != want {
		t.Errorf("the log says\n%s\nwant\n%s", got, want)
	}
	out := filepath.Join(t.TempDir(), "out")
	if err := r.Export(t.Context(), "second", out); err != nil {
		t.Fatal(err)
	}
	if got := read1(t, out, "dir", "deep") + read1(t, out, "file"); got != "deepone" {
		t.Errorf("exported %q", got)
	}
	if got := calls(); !slices.Equal(got, []string{"torch.sh", "runtime.sh", "ops.sh", "build.sh+toolkit", "build.sh+ops"}) {
		t.Errorf("the environments were made by %q", got)
	}
}

// What a step installs into the environment of a node is not there for the
// next, nor in what later builds use.
func TestRuntimeIsFresh(t *testing.T) {
	install := pipeline.Step{Name: "install", Image: pipeline.Runtime, Script: `
		test ! -e "$DSBUILD_ENV/installed" && test -L "$DSBUILD_ENV/link" && test -z "${CUDA_HOME-}"
		cat "$DSBUILD_ENV/link"; touch "$DSBUILD_ENV/installed"; ln -f "$DSBUILD_ENV/torch" "$DSBUILD_OUT/same"`}
	again := install
	again.Name = "again"
	p, _ := planOf(t, install, again)
	for i := range p.Steps {
		p.Scripts[p.Steps[i].Script] = "set -e\n" + p.Scripts[p.Steps[i].Script]
	}
	r := open(t, host(t), p, new(bytes.Buffer), newRecord())
	for _, s := range p.Steps {
		if err := r.Run(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(r.entries[pipeline.Toolchain].path("runtime/installed")); err == nil {
		t.Error("the environment that is kept was changed")
	}
	kept, err := os.Stat(r.entries[pipeline.Toolchain].path("runtime/torch"))
	if err != nil {
		t.Fatal(err)
	}
	same, err := os.Stat(filepath.Join(r.outputs["again"], "same"))
	if err != nil || !os.SameFile(kept, same) {
		t.Errorf("a fresh environment is no hard link of the one that is kept: %v", err)
	}
}

// Of the user's environment the steps get PATH and its kin; what reaches out
// gets the settings of the site too.
func TestEnvironmentOfSteps(t *testing.T) {
	user := []string{
		"PYTHONPATH=/evil", "CFLAGS=-O0", "CPATH=/evil", "PIP_TARGET=/evil", "PIP_USER=1", "UV_SYSTEM_PYTHON=1", "DS_BUILD_OPS=1", "MAX_JOBS=99",
		"LD_LIBRARY_PATH=/module/lib", "https_proxy=http://proxy:3128", "NO_PROXY=.site", "PIP_INDEX_URL=https://index", "UV_INDEX_MINE_PASSWORD=secret", "SSL_CERT_FILE=/ca.pem",
	}
	show := pipeline.Step{Name: "show", Image: pipeline.Toolchain, Compile: true, Script: "env | sort", Env: map[string]string{"DS_ACCELERATOR": "cuda"}}
	fetch := pipeline.Step{Name: "fetch", Image: pipeline.Toolchain, Network: true, Script: "env | sort"}
	p, _ := planOf(t, show, fetch)
	var log bytes.Buffer
	b := host(t, user...)
	r := open(t, b, p, &log, newRecord())
	r.Jobs = 3
	names := map[string][]string{}
	for _, s := range p.Steps {
		log.Reset()
		if err := r.Run(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(log.String(), "\n")[1:] {
			if name, value, ok := strings.Cut(line, "="); ok {
				names[s.Name] = append(names[s.Name], name)
				if strings.Contains(value, "/evil") || name == "PATH" && strings.Contains(value, ":.:") {
					t.Errorf("%s: %s", s.Name, line)
				}
			}
		}
	}
	compiling := "DSBUILD_CUDA DSBUILD_ENV DSBUILD_IN DSBUILD_OUT DSBUILD_SITE DSBUILD_TOOLS DSBUILD_WORK"
	shell := "HOME LANG LC_ALL LD_LIBRARY_PATH"
	for step, want := range map[string]string{
		"show":  "CCACHE_DIR CUDA_HOME " + strings.Replace(compiling, "DSBUILD_OUT", "DSBUILD_OBJECTS DSBUILD_OUT", 1) + " DS_ACCELERATOR " + shell + " MAX_JOBS PATH PWD PYTHONNOUSERSITE TMPDIR UV_CACHE_DIR UV_LINK_MODE VIRTUAL_ENV",
		"fetch": "CUDA_HOME " + compiling + " " + shell + " NO_PROXY PATH PIP_INDEX_URL PWD PYTHONNOUSERSITE SSL_CERT_FILE TMPDIR UV_CACHE_DIR UV_INDEX_MINE_PASSWORD UV_LINK_MODE VIRTUAL_ENV https_proxy",
	} {
		got := slices.DeleteFunc(names[step], func(n string) bool { return n == "_" || n == "OLDPWD" || n == "SHLVL" })
		slices.Sort(got)
		if g := strings.Join(got, " "); g != want {
			t.Errorf("%s has\n%s\nwant\n%s", step, g, want)
		}
	}
}

// Nobody else enters what is a build's own, and nothing of it stays.
func TestPrivateAndGone(t *testing.T) {
	tmp := t.TempDir()
	p, _ := planOf(t, pipeline.Step{Name: "try", Image: pipeline.Toolchain, Script: `mkdir "$DSBUILD_WORK/no" && touch "$DSBUILD_WORK/no/file" && chmod 500 "$DSBUILD_WORK/no"; mkdir "$DSBUILD_OUT/no"; touch "$DSBUILD_OUT/no/file"; chmod 500 "$DSBUILD_OUT/no"`})
	b := host(t, "TMPDIR="+tmp)
	r := open(t, b, p, new(bytes.Buffer), newRecord())
	if err := r.Run(t.Context(), p.Steps[0]); err != nil {
		t.Fatal(err)
	}
	if filepath.Dir(r.scratch) != tmp {
		t.Errorf("scratch files are in %s, not in TMPDIR", r.scratch)
	}
	for _, dir := range []string{b.opt.Dir, r.dir, r.scratch, b.environmentsDir()} {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", dir, info.Mode(), err)
		}
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	left, _ := filepath.Glob(filepath.Join(tmp, "*"))
	runs, _ := fs.Glob(os.DirFS(b.opt.Dir), "run-*")
	if len(left)+len(runs) > 0 {
		t.Errorf("left behind: %q %q", left, runs)
	}
}

// A run that was killed leaves its directory; the next one removes it, but not
// that of one which still runs.
func TestSweep(t *testing.T) {
	p, _ := planOf(t)
	b := host(t)
	running := open(t, b, p, new(bytes.Buffer), newRecord())
	dead := filepath.Join(b.opt.Dir, "run-dead")
	if err := os.MkdirAll(filepath.Join(dead, "work"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dead, lockName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	open(t, b, p, new(bytes.Buffer), newRecord())
	if _, err := os.Stat(dead); err == nil {
		t.Error("the directory of a killed run stays")
	}
	if _, err := os.Stat(running.dir); err != nil {
		t.Errorf("the directory of a run is gone: %v", err)
	}
}

func TestFailureIsExplained(t *testing.T) {
	p, _ := planOf(t,
		pipeline.Step{Name: "try", Title: "try it", Image: pipeline.Toolchain, Script: "echo looking; echo 'x.cu(3): error: no such thing' >&2; exit 3"},
		pipeline.Step{Name: pipeline.SmokeStep, Image: pipeline.Runtime, Script: "kill -9 $$"})
	var log bytes.Buffer
	rep := newRecord()
	r := open(t, host(t), p, &log, rep)
	err := r.Run(t.Context(), p.Steps[0])
	if err == nil || fault.ExitCode(err) != 0 {
		t.Fatalf("%v", err)
	}
	if got := err.Error(); !strings.HasPrefix(got, "step try: exit code 3\n") || !strings.Contains(got, "no such thing") {
		t.Error(got)
	}
	for _, want := range []string{"== try: try it\n", "looking\n", "error: no such thing\n", "exit code 3\n"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%q is not in the log %q", want, &log)
		}
	}
	if !slices.Contains(rep.lines, "looking") || rep.ends[len(rep.ends)-1] != ui.Failed {
		t.Errorf("shown were %q, %v", rep.lines, rep.ends)
	}
	err = r.Run(t.Context(), p.Steps[1])
	if fault.ExitCode(err) != 4 || !strings.Contains(err.Error(), "signal: killed") {
		t.Errorf("smoke: %v", err)
	}
}

// alive reports whether a process runs that was given a word.
func alive(t *testing.T, word string) bool {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil || len(files) == 0 {
		t.Fatal("no /proc: ", err)
	}
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && slices.Contains(strings.Split(string(text), "\x00"), word) {
			return true
		}
	}
	return false
}

// Cancelled, a step ends with all that it has started, also what has left its
// process group, as the compilers of ninja do, and what will not listen.
func TestCancelEndsEverything(t *testing.T) {
	p, _ := planOf(t, pipeline.Step{Name: "try", Image: pipeline.Toolchain, Script: `
		set -m
		sleep 98701.25 &
		sh -c 'trap "" TERM; sleep 98702.25; sleep 98703.25' &
		echo started
		wait`})
	rep := newRecord()
	r := open(t, host(t), p, new(bytes.Buffer), rep)
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-rep.seen
		cancel(cause)
	}()
	if err := r.Run(ctx, p.Steps[0]); !errors.Is(err, cause) {
		t.Errorf("%v", err)
	}
	for _, word := range []string{"98701.25", "98702.25", "98703.25"} {
		if alive(t, word) {
			t.Errorf("sleep %s is still there", word)
		}
	}
}

// A step that ends well leaves no process behind either, and one that holds the
// output open does not hold up the build.
func TestNothingStays(t *testing.T) {
	p, _ := planOf(t, pipeline.Step{Name: "try", Image: pipeline.Toolchain, Script: "set -m; sleep 98711.25 & echo done"})
	var log bytes.Buffer
	r := open(t, host(t), p, &log, newRecord())
	if err := r.Run(t.Context(), p.Steps[0]); err != nil {
		t.Fatal(err)
	}
	if alive(t, "98711.25") {
		t.Error("it is still there")
	}
	if !strings.Contains(log.String(), "done\n") {
		t.Errorf("%q", &log)
	}
}

// The packages of a real plan are installed with the bytes that the plan names, from whatever index, and
// with no others.
func TestOtherBytesUnderTheNameOfThePlan(t *testing.T) {
	x := wheelindex.New(t)
	path := x.Add(t, wheelindex.Wheel{Name: "torch", Version: "2.15.0"})
	good, _, err := wheel.HashFile(path)
	if err != nil {
		t.Fatal(err)
	}
	tables, err := compat.NewTables()
	if err != nil {
		t.Fatal(err)
	}
	tc, err := tables.Resolve(wheel.Request{Ops: []string{"cpu_adam"}, Python: "3.11"})
	if err != nil {
		t.Fatal(err)
	}
	plan := func(packages dockerfiles.Packages) *pipeline.Plan {
		p, err := pipeline.NewPlan([]pipeline.Part{{Toolchain: tc, Packages: packages}}, pipeline.Release(tc.DeepSpeed, tc.Source), pipeline.Base{Host: true, Digest: "sha256:0"}, false)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	network, err := pipeline.NewNetwork(pipeline.NetworkOptions{IndexURL: x.URL}, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	interpreter, err := python.Find(t.Context(), "3.11")
	if err != nil {
		t.Fatal(err)
	}
	b := &Builder{
		opt: Options{Dir: filepath.Join(t.TempDir(), "host"), Environ: append(os.Environ(), "PATH="+filepath.Dir(x.UV)+":"+os.Getenv("PATH")), Network: network},
		host: pipeline.BuildHost{
			BuildHost: compat.BuildHost{Host: true}, Digest: "sha256:0",
			Interpreters: []pipeline.Interpreter{{Version: "3.11.0", Path: interpreter, Parts: []string{"Python.h"}}},
		},
	}
	var log bytes.Buffer
	locked, _ := pipeline.LockedPackages(tc)
	_, err = b.Open(t.Context(), plan(locked), pipeline.Work{Log: &log, Report: newRecord()})
	if fault.ExitCode(err) != 4 || !strings.Contains(fault.Hint(err), "torch==2.15.0") || !strings.Contains(err.Error(), good) || !strings.Contains(err.Error(), "Expected:") {
		t.Fatalf("%v, hint %s\n%s", err, fault.Hint(err), &log)
	}

	// The bytes of the plan pass, from a mirror too; a package that one of them requires and the plan
	// does not name is not installed.
	pinned := func(w wheelindex.Wheel) dockerfiles.Package {
		sum, _, err := wheel.HashFile(x.Add(t, w))
		if err != nil {
			t.Fatal(err)
		}
		return dockerfiles.Package{Name: w.Name, Version: w.Version, SHA256: sum}
	}
	packages := dockerfiles.Packages{
		Runtime: []dockerfiles.Package{{Name: "torch", Version: "2.15.0", SHA256: good}, pinned(wheelindex.Wheel{Name: "sympy", Version: "1", Requires: []string{"nowhere"}})},
		Build: []dockerfiles.Package{
			pinned(wheelindex.Wheel{Name: "cuda-toolkit", Version: "13.2.2", Files: map[string]string{"nvidia/cu13/lib/libx.so.1": "x"}}),
			pinned(wheelindex.Wheel{Name: "pip", Version: "1"}), pinned(wheelindex.Wheel{Name: "setuptools", Version: "1"}), pinned(wheelindex.Wheel{Name: "wheel", Version: "1"}),
		},
	}
	mirror := wheelindex.New(t)
	if err := os.CopyFS(filepath.Join(mirror.Dir, "copy"), os.DirFS(x.Dir)); err != nil {
		t.Fatal(err)
	}
	mirror.Dir = filepath.Join(mirror.Dir, "copy")
	if b.opt.Network, err = pipeline.NewNetwork(pipeline.NetworkOptions{IndexURL: mirror.URL}, func(string) string { return "" }); err != nil {
		t.Fatal(err)
	}
	r := open(t, b, plan(packages), &log, newRecord())
	for _, env := range []string{runtimeEnv, toolchainEnv} {
		installed, _ := fs.Glob(os.DirFS(r.entries[pipeline.Toolchain].path(env)), "lib/python3.11/site-packages/*.dist-info")
		if want := map[string]int{runtimeEnv: 2, toolchainEnv: 6}[env]; len(installed) != want {
			t.Errorf("%s has %q, want %d packages", env, installed, want)
		}
	}
	if got := read1(t, r.entries[pipeline.Toolchain].path(cudaDir), "lib64", "libx.so"); got != "x" {
		t.Errorf("CUDA's root has %q", got)
	}
}

// Two builds at once make an environment once; a third finds it.
func TestEnvironmentIsMadeOnce(t *testing.T) {
	p, calls := planOf(t)
	p.Context["torch.sh"] += "sleep 0.3\n"
	b := host(t)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			w, err := b.Open(t.Context(), p, pipeline.Work{Log: new(bytes.Buffer), Report: newRecord()})
			if err != nil {
				t.Error(err)
				return
			}
			w.(*run).Close()
		})
	}
	wg.Wait()
	if n := len(calls()); n != 5 {
		t.Errorf("scripts were called %d times: %q", n, calls())
	}
	for _, change := range []func(){
		func() { p.Args["TORCH"] = "2.14.0" },
		func() { p.Context["build.sh"] += "# other pins\n" },
		func() { b.host.Digest = "sha256:1" },
	} {
		before, _ := b.entryOf(p.Environment(pipeline.Toolchain))
		change()
		if after, _ := b.entryOf(p.Environment(pipeline.Toolchain)); after.dir == before.dir {
			t.Error("another toolchain has the same environment")
		}
	}
}

// An environment that could not be made whole is none.
func TestHalfAnEnvironment(t *testing.T) {
	p, calls := planOf(t)
	good := p.Context["runtime.sh"]
	p.Context["runtime.sh"] = "echo 'error: no route to the index' >&2; exit 2"
	b := host(t)
	_, err := b.Open(t.Context(), p, pipeline.Work{Log: new(bytes.Buffer), Report: newRecord()})
	if err == nil || !strings.Contains(err.Error(), "step runtime: exit code 2") || !strings.Contains(err.Error(), "no route") {
		t.Fatal(err)
	}
	e, _ := b.entryOf(p.Environment(pipeline.Toolchain))
	if _, err := os.Stat(e.dir); err == nil || e.isComplete() {
		t.Error("a half made environment stays")
	}
	if runs, _ := fs.Glob(os.DirFS(b.opt.Dir), "run-*"); len(runs) > 0 {
		t.Errorf("left behind: %q", runs)
	}
	p.Context["runtime.sh"] = good
	open(t, b, p, new(bytes.Buffer), newRecord())
	if !slices.Contains(calls(), "build.sh+ops") {
		t.Error("it is not made anew")
	}
}

// The environments unused for longest go, but not those in use.
func TestPrune(t *testing.T) {
	b := host(t)
	var first *run
	var dirs []string
	for i := range keepEnvironments + 2 {
		p, _ := planOf(t)
		p.Args["TORCH"] = fmt.Sprint(i)
		r := open(t, b, p, new(bytes.Buffer), newRecord())
		if i == 0 {
			first = r
		} else {
			r.Close()
		}
		old := time.Now().Add(time.Duration(i-100) * time.Hour)
		if err := os.Chtimes(r.entries[pipeline.Toolchain].dir, old, old); err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, r.entries[pipeline.Toolchain].dir)
	}
	var there []bool
	for _, dir := range dirs {
		_, err := os.Stat(dir)
		there = append(there, err == nil)
	}
	if want := []bool{true, false, true, true, true, true}; !first.entries[pipeline.Toolchain].isComplete() || !slices.Equal(there, want) {
		t.Errorf("there are %v, want %v", there, want)
	}
}

// A module's gcc has no other name: the steps find it under the one they call.
func TestCompilerOfAModule(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"gcc", "g++"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\necho this is "+name+" $*\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p, _ := planOf(t, pipeline.Step{Name: "try", Image: pipeline.Toolchain, Script: "gcc-13 -c x; g++-13 -c y"})
	p.Parts[0].Toolchain.GCC = "13"
	b := host(t)
	if _, err := b.Open(t.Context(), p, pipeline.Work{Log: new(bytes.Buffer), Report: newRecord()}); err == nil || !strings.Contains(err.Error(), "gcc and g++ 13") {
		t.Errorf("%v", err)
	}
	b.host.Compilers = []pipeline.Compiler{{Version: "13.2.0", CC: filepath.Join(dir, "gcc"), CXX: filepath.Join(dir, "g++"), Headers: true}}
	var log bytes.Buffer
	r := open(t, b, p, &log, newRecord())
	if err := r.Run(t.Context(), p.Steps[0]); err != nil || !strings.Contains(log.String(), "this is gcc -c x\nthis is g++ -c y\n") {
		t.Errorf("%v: %s", err, &log)
	}
}
