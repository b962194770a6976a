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

	"github.com/dsbuild/dsbuild/internal/testkit/python"
	"github.com/dsbuild/dsbuild/release/nightly"
	"github.com/dsbuild/dsbuild/wheel"
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
	files, err := filepath.Glob(filepath.Join(n.dir, "nightly", "wheels", "*", "*.manifest.json"))
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

// The first night publishes, the second has nothing to do and takes less than 30 s; a third
// builds only what comes from the sources that somebody has changed, a fourth only what is
// asked anew; one that is killed in the middle is ended by the next run; and pip installs by
// name what is there then.
func TestFullNightly(t *testing.T) {
	n := nights{t.TempDir()}
	env := pipEnvironment(t)
	team := n.sources(t, env)
	both := "release, {name: team, deepspeed: \"git+file://" + team + "\"}"
	file := func(sources, second string) {
		n.write(t, "nightly.yaml", "wheels: {defaults: {ops: [utils]}, wheels: [{name: one, cpu: x86-64-v2}"+second+"]}\nsources: ["+sources+"]\nindex: public\n")
	}
	file(both, "")
	r, got, _ := n.run(t, "the first night")
	if got["one@release"] != nightly.Built || got["one@team"] != nightly.Built || r.Publish.Wheels != 2 {
		t.Fatalf("%+v", r)
	}
	_, got, _ = n.run(t, "the second night")
	if got["one@release"] != nightly.Unchanged || got["one@team"] != nightly.Unchanged {
		t.Error(got)
	}
	n.write(t, "team/deepspeed/utils/of_the_team.py", "answer = 42\n")
	commit(t, team, "something new")
	r, got, _ = n.run(t, "the third night, with a changed source")
	if got["one@release"] != nightly.Unchanged || got["one@team"] != nightly.Built {
		t.Errorf("%v", got)
	}
	if changes := changesOf(r, "one@team"); !strings.Contains(changes, "commit") {
		t.Errorf("one@team: changes %q", changes)
	}
	file(both, ", {name: two, cpu: x86-64-v3, ops: [cpu_adam]}")
	r, got, _ = n.run(t, "the fourth night, with another wheel")
	if got["one@release"] != nightly.Unchanged || got["one@team"] != nightly.Unchanged || got["two@release"] != nightly.Built || got["two@team"] != nightly.Built {
		t.Errorf("%v, %+v", got, r)
	}

	// Killed once the first of two is put away.
	file("release", ", {name: two, cpu: x86-64-v3, ops: [cpu_adam, utils]}, {name: three, cpu: x86-64-v4}")
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
	if !r.Resumed || !r.Good || len(got) != 3 || got["one@release"] != nightly.Unchanged || got["two@release"] == nightly.Unchanged || got["three@release"] == nightly.Unchanged {
		t.Errorf("%+v, %v", r, got)
	}
	installByName(t, n.dir, env)
}

// changesOf are the differences of a wheel from the build before, in one line.
func changesOf(r nightly.Report, name string) string {
	for _, e := range r.Entries {
		if e.Name == name {
			return strings.Join(e.Changes, "; ")
		}
	}
	return ""
}

// sources makes a repository of a team's own DeepSpeed, from those of the release.
func (n nights) sources(t *testing.T, python string) string {
	t.Helper()
	team := filepath.Join(n.dir, "team")
	unpackRelease(t, python, team)
	command(t, team, "git", "init", "--quiet", "--initial-branch=main")
	commit(t, team, "what the release has")
	return team
}

// unpackRelease puts the source distribution of the DeepSpeed that the plans take into a new folder; python has pip.
func unpackRelease(t *testing.T, python, dir string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	command(t, dir, python, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", "..", "deepspeed==0.19.8")
	command(t, dir, "tar", "--no-same-owner", "--strip-components=1", "-xzf", "../deepspeed-0.19.8.tar.gz")
}

// commit commits all that lies in a checkout.
func commit(t *testing.T, dir, why string) {
	t.Helper()
	command(t, dir, "git", "add", "--all", "--force")
	command(t, dir, "git", "-c", "user.name=team", "-c", "user.email=team@example.org", "commit", "--quiet", "--message", why)
}

// findUV finds Python 3.11 on this machine, and a uv.
func findUV(t *testing.T) (py string, uv python.UV) {
	t.Helper()
	py, err := python.Find(t.Context(), "3.11")
	if err != nil {
		t.Fatal(err)
	}
	uv, err = python.GetUV(t.Context(), py, func(line string) { t.Log(line) })
	if err != nil {
		t.Fatal(err)
	}
	return py, uv
}

// pipEnvironment is the Python of a fresh environment that has pip.
func pipEnvironment(t *testing.T) string {
	t.Helper()
	py, uv := findUV(t)
	env := filepath.Join(t.TempDir(), "venv")
	if err := uv.Run(t.Context(), "venv", "--quiet", "--seed", "--no-project", "--python", py, env); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(env, "bin", "python")
}

// installByName has pip install from the index that the nights have published.
func installByName(t *testing.T, dir, inside string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "public/custom/deepspeed/*+ops????????-*.whl"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v; want one wheel with the op utils for every CPU", files, err)
	}
	name, err := wheel.ParseFileName(filepath.Base(files[0]))
	if err != nil {
		t.Fatal(err)
	}
	command(t, dir, inside, "-m", "pip", "install", "--quiet", "--no-deps", "--index-url", "file://"+filepath.Join(dir, "public/custom"), "deepspeed=="+name.Version)
	if out := command(t, dir, inside, "-c", "import importlib.metadata as m; print(m.version('deepspeed'))"); strings.TrimSpace(out) != name.Version {
		t.Errorf("pip has installed %s; want %s", out, name.Version)
	}
}
