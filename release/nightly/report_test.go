package nightly

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/wheel"
)

// codedError is an error with an exit code.
type codedError int

func (c codedError) Error() string { return fmt.Sprintf("code %d\nmore", int(c)) }
func (c codedError) ExitCode() int { return int(c) }

// entries are wheels with these errors; nil for one that was built.
func entries(errs ...error) []*EntryReport {
	var all []*EntryReport
	for i, err := range errs {
		e := &EntryReport{Name: fmt.Sprintf("w%d@main", i+1), Outcome: Outcome{Status: Built}}
		if err != nil {
			e.fail(err)
		}
		all = append(all, e)
	}
	return all
}

// The exit code of a night is that of its first failure, and its error names all.
func TestErrorOfNight(t *testing.T) {
	t.Parallel()
	nodes := DeployReport{Name: "canary"}
	nodes.fail(codedError(3))
	lost := DeployReport{Name: "nodes"}
	lost.fail(errors.New("no network"))
	for name, c := range map[string]struct {
		report Report
		text   string
		code   int
	}{
		"good":              {Report{Entries: entries(nil, nil), Publish: &PublishReport{Outcome: Outcome{Status: Done}}, Deploys: []DeployReport{{Outcome: Outcome{Status: Done}}}}, "", 0},
		"a wheel":           {Report{Entries: entries(nil, errors.New("no gcc"))}, "1 of 2 wheels failed: w2@main", 1},
		"not as asked":      {Report{Entries: entries(codedError(4), fault.WithHint(codedError(4), "look"))}, "2 of 2 wheels failed: w1@main, w2@main", 4},
		"for two reasons":   {Report{Entries: entries(codedError(4), codedError(2))}, "2 of 2 wheels failed: w1@main, w2@main", 1},
		"the index":         {Report{Publish: &PublishReport{Outcome: Outcome{Status: Failed, Error: "full"}}}, "index: full", 1},
		"nodes":             {Report{Deploys: []DeployReport{nodes}}, "canary: code 3\nmore", 3},
		"nodes without":     {Report{Deploys: []DeployReport{lost}}, "nodes: no network", 1},
		"a wheel and nodes": {Report{Entries: entries(errors.New("x")), Deploys: []DeployReport{nodes, lost}}, "1 of 1 wheels failed: w1@main; canary: code 3\nmore; nodes: no network", 1},
		"nodes not reached": {Report{Entries: entries(codedError(4)), Deploys: []DeployReport{{Outcome: Outcome{Status: Skipped}}}}, "1 of 1 wheels failed: w1@main", 4},
	} {
		c.report.countResults()
		err := c.report.Err()
		if c.report.Good != (err == nil) || (err == nil) != (c.text == "") || err != nil && (err.Error() != c.text || fault.ExitCode(err) != c.code) {
			t.Errorf("%s: %v, code %d; good %v", name, err, fault.ExitCode(err), c.report.Good)
		}
	}
}

// A wheel that failed keeps its last good build.
func TestFailedWheelKeepsItsBuild(t *testing.T) {
	t.Parallel()
	e := &EntryReport{Before: &Build{Name: "old.whl"}}
	e.fail(fault.WithHint(errors.New("no \x1b[31mgcc"), "install \x1b[1mgcc"))
	if e.Status != Failed || e.Build != e.Before || e.Error != "no gcc" || e.Hint != "install gcc" {
		t.Errorf("%+v", e)
	}
	all := &Report{Entries: []*EntryReport{e, {Outcome: Outcome{Status: Stored}}, {Outcome: Outcome{Status: Unchanged}}, {Outcome: Outcome{Status: Built}}}}
	if all.countResults(); all.Summary != (Summary{Built: 1, Stored: 1, Unchanged: 1, Failed: 1}) || all.Good {
		t.Errorf("%+v", all.Summary)
	}
}

func TestNightForPeople(t *testing.T) {
	t.Parallel()
	r := &Report{
		Dir: "/nights",
		Entries: []*EntryReport{
			{Name: "a@main", Outcome: Outcome{Status: Built}, Seconds: 125, Build: &Build{Size: 3 << 20}, Changes: []string{"commit 1, was 0", "size 3.0 MiB (+1.0 MiB)"}},
			{Name: "b@main", Outcome: Outcome{Status: Unchanged}, Build: &Build{Size: 1 << 20}},
			{Name: "c@v1", Outcome: Outcome{Status: Failed, Error: "no gcc\x1b[2J\nmany lines"}},
		},
		Publish: &PublishReport{Dir: "/index", Outcome: Outcome{Status: Failed, Error: "disk full"}, Wheels: 2},
		Deploys: []DeployReport{{Name: "canary", Outcome: Outcome{Status: Done}, Nodes: Nodes{OK: 1, Changed: 1, All: 2}}, {Name: "nodes", Outcome: Outcome{Status: Skipped, Error: "the canary\x07 failed"}}},
	}
	var out bytes.Buffer
	if err := r.Print(&out); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	want := []string{
		"WHEEL STATUS SIZE TIME CHANGES", "a@main built 3.0 MiB 2m05s commit 1, was 0; size 3.0 MiB (+1.0 MiB)", "b@main unchanged 1.0 MiB", "c@v1 failed no gcc",
		"index /index: failed, 2 wheels: disk full", "canary: done, 1 of 2 nodes ok, 1 changed", "nodes: skipped: the canary failed", "c@v1: no gcc", "many lines", "report: /nights/report.json",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Each difference between two builds is told once, with both values.
func TestChangesBetweenBuilds(t *testing.T) {
	t.Parallel()
	before := Build{
		Plan: "p1", Commit: "0123456789abcdef", Source: "main", Torch: "2.14.0", CUDA: "13.2", Python: "3.11", GCC: "13", Archs: []string{"8.0"}, Ops: []string{"a"}, Size: 10 << 20, Seconds: 60,
	}
	if got := describeChanges(&before, before); len(got) != 0 {
		t.Errorf("the same build differs: %v", got)
	}
	now := before
	now.Plan, now.Commit, now.Torch, now.GCC, now.PTX, now.Ops, now.Size, now.Seconds = "p2", "fedcba9876543210", "2.15.0", "", []string{"9.0"}, []string{"a", "b"}, 9<<20, 90
	want := []string{
		"commit fedcba987654, was 0123456789ab", "torch 2.15.0, was 2.14.0", "gcc none, was 13", "PTX 9.0, was none", "ops a b, was a",
		"size 9.0 MiB (-1.0 MiB)", "built in 1m30s, was 1m00s",
	}
	if got := describeChanges(&before, now); !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
	if got := describeChanges(nil, now); !slices.Equal(got, []string{"first build"}) {
		t.Error(got)
	}
}

// stateWith is a state with builds of a wheel, the newest first, whose files are there.
func stateWith(t *testing.T, name string, plans ...string) *state {
	t.Helper()
	s := &state{Builds: map[string][]Build{}, dir: t.TempDir()}
	for _, plan := range plans {
		b := Build{Plan: plan + strings.Repeat("0", 20), Request: "request " + plan, Night: "n " + plan, Name: "deepspeed.whl"}
		file := s.buildPath(name, b)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(plan), 0o600); err != nil {
			t.Fatal(err)
		}
		sum, size, err := wheel.HashFile(file)
		if err != nil {
			t.Fatal(err)
		}
		b.SHA256, b.Size = sum, size
		s.Builds[name] = append(s.Builds[name], b)
	}
	return s
}

// A kept build serves again by its request or its plan, unless its file was changed or is gone.
func TestKeptBuildsServeAgain(t *testing.T) {
	t.Parallel()
	const name = "train/../w@main"
	s := stateWith(t, name, "a", "b", "c")
	if rel, err := filepath.Rel(s.dir, s.buildPath(name, s.Builds[name][0])); err != nil || strings.HasPrefix(rel, "..") || strings.Count(rel, "/") != 2 {
		t.Errorf("the wheel lies at %s: %v", rel, err)
	}
	for query, want := range map[[2]string]int{
		{"request b", ""}: 1, {"", "c" + strings.Repeat("0", 20)}: 2, {"", ""}: -1, {"another", "another"}: -1, {"another", "a" + strings.Repeat("0", 20)}: 0,
	} {
		if got := s.findBuild(name, query[0], query[1]); got != want {
			t.Errorf("%q: %d, want %d", query, got, want)
		}
	}
	if got := s.findBuild("another wheel", "request a", ""); got != -1 {
		t.Errorf("a build of another wheel: %d", got)
	}
	b := s.makeNewest(name, 1, "tonight")
	if b.Night != "tonight" || s.Builds[name][0].Request != "request b" || len(s.Builds[name]) != 2 || s.Builds[name][1].Request != "request c" {
		t.Errorf("%+v", s.Builds[name])
	}
	if b := s.makeNewest(name, 0, "later"); b.Night != "tonight" {
		t.Errorf("the newest build is new again: %+v", b)
	}
	if err := os.WriteFile(s.buildPath(name, b), []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := s.findBuild(name, "request b", ""); got != -1 {
		t.Errorf("a damaged build is taken: %d", got)
	}
}

// Old builds and reports are removed, and nothing else below the folder.
func TestOldBuildsAreRemoved(t *testing.T) {
	t.Parallel()
	const name = "w@main"
	s := stateWith(t, name, "a", "b", "c")
	gone := stateWith(t, "gone@main", "d")
	s.Builds["gone@main"] = gone.Builds["gone@main"]
	folders := []string{buildFolder("gone@main", "d"+strings.Repeat("0", 20)), filepath.Join(runsName, "night0"), "mine/deep"}
	for _, dir := range folders {
		if err := os.MkdirAll(filepath.Join(s.dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s.dropOldBuilds([]string{name}, 2)
	removed, err := s.removeUnknown()
	if err != nil || removed != 2 || len(s.Builds) != 1 {
		t.Errorf("%v: removed %d; %d wheels", err, removed, len(s.Builds))
	}
	for dir, kept := range map[string]bool{
		buildFolder(name, "a"+strings.Repeat("0", 20)): true, buildFolder(name, "b"+strings.Repeat("0", 20)): true, buildFolder(name, "c"+strings.Repeat("0", 20)): false,
		folders[0]: false, folders[1]: true, folders[2]: true,
	} {
		if _, err := os.Stat(filepath.Join(s.dir, dir)); (err == nil) != kept {
			t.Errorf("%s: %v, want it kept: %v", dir, err, kept)
		}
	}
}

// The state survives a night; one that dsbuild cannot read is an error that names the file, not an
// empty state: dsbuild would build all wheels again and drop the old ones.
func TestStateFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := loadState(dir)
	if err != nil || s.Builds == nil {
		t.Fatalf("%+v, %v", s, err)
	}
	s.Builds["w"] = []Build{{Name: "x.whl"}}
	s.Running, s.RunningAt = "tonight", time.Unix(1, 0).UTC()
	if err := s.saveFile(); err != nil {
		t.Fatal(err)
	}
	again, err := loadState(dir)
	if err != nil || again.Builds["w"][0].Name != "x.whl" || again.Running != "tonight" || !again.RunningAt.Equal(s.RunningAt) {
		t.Errorf("%+v, %v", again, err)
	}
	file := filepath.Join(dir, stateName)
	for _, text := range []string{"", "{", `{"builds": []}`, "null garbage"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := loadState(dir); err == nil || !strings.HasPrefix(err.Error(), file+": ") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if err := os.WriteFile(file, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := loadState(dir); err != nil || s.Builds == nil {
		t.Errorf("%+v, %v", s, err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(file, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := loadState(dir); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder in place of the state: %v", err)
	}
}
