//go:build full && linux

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/ci/python"
	"github.com/dsbuild/dsbuild/internal/flow/nightly"
)

// nights are real ones, one after another, in a folder of their own with a store of its own.
type nights struct{ dir string }

// start starts a night as a program.
func (n nights) start(t *testing.T) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Args, cmd.Dir = []string{"dsbuild", "nightly", "--json"}, n.dir
	cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+filepath.Join(n.dir, "cache"))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, testLog{t}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, &out
}

// run runs one, which must be good, and returns what became of each wheel.
func (n nights) run(t *testing.T, what string) (nightly.Report, map[string]nightly.Status, time.Duration) {
	t.Helper()
	start := time.Now()
	cmd, out := n.start(t)
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%s: %v\n%s", what, err, out)
	}
	took := time.Since(start)
	var r nightly.Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%s: %v\n%s", what, err, out)
	}
	got := map[string]nightly.Status{}
	for _, e := range r.Entries {
		got[e.Name] = e.Status
	}
	t.Logf("result: %s: %.0f s, %d built, %d unchanged", what, took.Seconds(), r.Summary.Built, r.Summary.Unchanged)
	return r, got, took
}

func (n nights) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(n.dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// kept are the wheels that a night has put away so far.
func (n nights) kept(t *testing.T) int {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(n.dir, "nightly", "wheels", "*", "*", "*.manifest.json"))
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

// The first night publishes, the second has nothing to do and takes less than 30 s, a third
// builds only what a changed request asks anew; one that is killed in the middle is ended
// by the next run; and pip installs by name what is there then.
func TestFullNight(t *testing.T) {
	n := nights{t.TempDir()}
	file := func(second string) {
		n.write(t, "nightly.yaml", "wheels: {defaults: {ops: [utils]}, wheels: [{name: one, cpu: v2}, "+second+"]}\nindex: public\n")
	}
	file("{name: two, cpu: v3}")
	r, got, _ := n.run(t, "the first night")
	if got["one@release"] != nightly.Built || got["two@release"] != nightly.Built || r.Publish.Wheels != 2 {
		t.Fatalf("%+v", r)
	}
	r, got, took := n.run(t, "the second night")
	if got["one@release"] != nightly.Unchanged || got["two@release"] != nightly.Unchanged || took > 30*time.Second {
		t.Errorf("%v in %s", got, took)
	}
	file("{name: two, cpu: v3, ops: [cpu_adam]}")
	r, got, _ = n.run(t, "the third night, with other ops")
	if got["one@release"] != nightly.Unchanged || got["two@release"] != nightly.Built || !strings.Contains(strings.Join(r.Entries[1].Changes, "; "), "ops cpu_adam, was utils") {
		t.Errorf("%v, %q", got, r.Entries[1].Changes)
	}

	// Killed once the first of two is put away.
	file("{name: two, cpu: v3, ops: [cpu_adam, utils]}, {name: three, cpu: v4}")
	before := n.kept(t)
	cmd, _ := n.start(t)
	for deadline := time.Now().Add(10 * time.Minute); n.kept(t) == before; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nothing is built")
		}
	}
	time.Sleep(200 * time.Millisecond) // until it is written down, too
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	if n.kept(t) != before+1 {
		t.Errorf("%d wheels were put away before it was killed", n.kept(t)-before)
	}
	r, got, _ = n.run(t, "the run after the killed one")
	if !r.Resumed || !r.Good || got["one@release"] != nightly.Unchanged || got["two@release"] == nightly.Unchanged || got["three@release"] == nightly.Unchanged {
		t.Errorf("%+v, %v", r, got)
	}
	installByName(t, n.dir)
}

// installByName has pip install from the index that the nights have published.
func installByName(t *testing.T, dir string) {
	t.Helper()
	py, err := python.Find(t.Context(), "3.11")
	if err != nil {
		t.Fatal(err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	uv, err := python.GetUV(t.Context(), filepath.Join(cache, "dsbuild"), py, func(line string) { t.Log(line) })
	if err != nil {
		t.Fatal(err)
	}
	env := filepath.Join(t.TempDir(), "venv")
	if err := uv.Run(t.Context(), "venv", "--quiet", "--seed", "--no-project", "--python", py, env); err != nil {
		t.Fatal(err)
	}
	inside := filepath.Join(env, "bin", "python")
	command(t, dir, inside, "-m", "pip", "install", "--quiet", "--no-deps", "--index-url", "file://"+filepath.Join(dir, "public", "torch2.15-cu132-v2"), "deepspeed")
	if out := command(t, dir, inside, "-c", "import importlib.metadata as m; print(m.version('deepspeed'))"); !strings.HasSuffix(strings.TrimSpace(out), "+torch2.15.cu132.v2") {
		t.Errorf("pip has installed %s", out)
	}
}
