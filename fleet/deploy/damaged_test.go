package deploy_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/fleet/verify"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/wheel"
)

// A deploy repairs files of DeepSpeed, and notes of dsbuild's, that a full disk, a power cut or a person
// has damaged. After it a rollback works, and a second deploy has nothing to do.
func TestDeployRepairsDamagedFiles(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	e, opt, _ := withOld(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(run(t, context.Background(), opt).Err())
	metadata := func() string { return only(t, e.site, "deepspeed-*.dist-info") + "/METADATA" }
	write := func(path, text string) { t.Helper(); must(os.WriteFile(path, []byte(text), 0o644)) }
	home := e.own
	for name, damage := range map[string]func(){
		"no METADATA":             func() { must(os.Remove(metadata())) },
		"empty METADATA":          func() { write(metadata(), "") },
		"METADATA of other bytes": func() { write(metadata(), "\xff\x00\x01") },
		"METADATA is a folder":    func() { must(errors.Join(os.Remove(metadata()), os.Mkdir(metadata(), 0o755))) },
		"RECORD with a stray return": func() {
			record := filepath.Dir(metadata()) + "/RECORD"
			text, err := os.ReadFile(record)
			must(err)
			write(record, string(text)+"\"deepspeed/x.py\",\rsha256=abc,1\n")
		},
		"a note that is a list":         func() { write(home("installed.json"), "[1]") },
		"a note that is a text":         func() { write(home("installed.json"), `"x"`) },
		"a note with other types":       func() { write(home("installed.json"), `{"extra_wheels": [1], "sha256": 5}`) },
		"a note with another type":      func() { write(home("installed.json"), `{"extra_wheels": 5}`) },
		"a last line of no object":      func() { write(home("journal.jsonl"), "[1]\n") },
		"a version before of no object": func() { write(home("previous/change.json"), "[1]") },
	} {
		damage()
		if r := run(t, context.Background(), opt); r.Err() != nil {
			t.Fatalf("%s: the deploy: %v, want that it repairs this", name, r.Err())
		}
		if r := run(t, context.Background(), opt); r.Err() != nil || r.Nodes[0].Changed {
			t.Errorf("%s: the second deploy: %+v, want that there is nothing to do", name, r.Nodes[0])
		}
	}
}

// A deploy that could not put the old files back, or could not write its journal, changes nothing.
func TestDeployRefusesDamagedFiles(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	e, opt, _ := withOld(t)
	record := only(t, e.site, "deepspeed-*.dist-info/RECORD")
	home := e.own()
	journal, change := filepath.Join(home, "journal.jsonl"), filepath.Join(home, "change.json")
	if err := os.MkdirAll(home, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		path   string
		damage func() error
		status report.Status
		want   string
	}{
		"RECORD without rows":    {record, func() error { return os.WriteFile(record, nil, 0o644) }, report.Refused, "has no RECORD"},
		"RECORD of NUL bytes":    {record, func() error { return os.WriteFile(record, make([]byte, 4096), 0o644) }, report.Refused, "has no RECORD"},
		"a journal that waits":   {journal, func() error { return syscall.Mkfifo(journal, 0o644) }, report.Failed, "journal.jsonl is not a writable regular file"},
		"a journal elsewhere":    {journal, func() error { return os.Symlink("/etc/motd", journal) }, report.Failed, "journal.jsonl is not a writable regular file"},
		"a journal that is none": {journal, func() error { return os.Mkdir(journal, 0o755) }, report.Failed, "journal.jsonl is not a writable regular file"},
		"a change without roots": {
			change, func() error { return os.WriteFile(change, []byte(`{"done": true, "roots": 5, "kept": 3}`), 0o644) },
			report.Failed, "missing or invalid run, runs, of, kept, records, roots, journal",
		},
	} {
		text, err := os.ReadFile(c.path)
		there := err == nil
		if err := errors.Join(os.RemoveAll(c.path), c.damage()); err != nil {
			t.Fatal(err)
		}
		was := e.snapshot(t)
		n := run(t, context.Background(), opt).Nodes[0]
		if n.Status != c.status || !strings.Contains(n.Error, c.want) || n.Hint == "" {
			t.Errorf("%s: %s at %s: %s, hint %q; want it %s: %s", name, n.Status, n.Step, n.Error, n.Hint, c.status, c.want)
		}
		e.mustBe(t, was)
		if err := os.RemoveAll(c.path); err != nil {
			t.Fatal(err)
		}
		if there {
			if err := os.WriteFile(c.path, text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	if r := run(t, context.Background(), opt); r.Err() != nil {
		t.Errorf("without the damages: %v", r.Err())
	}
}

// What is left of a DeepSpeed, or stands in its place: where a deploy fails, verify says why, and advises no deploy.
func TestVerifyAdvisesWhatDeployAccepts(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	whole, wheels := withInstalled(t, "0.19.8")
	h, s := host(t, "gpu1", whole, sshtest.Options{})
	opt := options(t, wheels, []*sshtest.Server{s}, h)
	opt.Verify = verify.LevelFiles
	var e environment
	remove := func(names ...string) {
		for _, name := range names {
			if err := os.RemoveAll(only(t, e.site, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	const info, command = "deepspeed-*.dist-info", "../../../bin/ds_report"
	fork := func(path string) {
		e.write(t, path, "fork = 1\n")
		e.dist(t, "fork", "1.0")
		e.write(t, "fork-1.0.dist-info/RECORD", path+",,\n")
	}
	for name, c := range map[string]struct {
		leave  func()
		want   string // what verify reports
		refuse bool   // whether a deploy fails
	}{
		"nothing":                 {func() { remove("deepspeed", info, command, ".dsbuild") }, "no DeepSpeed in the environment of", false},
		"dsbuild's notes":         {func() { remove("deepspeed", info, command) }, "no DeepSpeed in the environment of", false},
		"a command":               {func() { remove("deepspeed", info) }, "existing commands: ds_report belongs to no package", true},
		"a package":               {func() { remove(info, command) }, "deepspeed, which belongs to no package", false},
		"a module":                {func() { remove("deepspeed", info, command); e.write(t, "deepspeed.py", "") }, "deepspeed.py, which belongs to no package", false},
		"a folder without code":   {func() { remove("deepspeed", info, command); e.write(t, "deepspeed/zero.json", "{}") }, "no DeepSpeed in the environment of", false},
		"a dist-info":             {func() { remove("deepspeed") }, "cannot import deepspeed: not found", false},
		"a dist-info, no RECORD":  {func() { remove(info+"/RECORD", "deepspeed/__init__.py") }, "no RECORD, which a rollback needs", true},
		"an empty dist-info":      {func() { remove("deepspeed", info); e.write(t, "deepspeed-0.14.0.dist-info/METADATA", "") }, "no RECORD, which a rollback needs", true},
		"a link to a checkout":    {func() { remove("deepspeed", info, command); e.write(t, "deepspeed.egg-link", "/src\n.") }, "no RECORD, which a rollback needs", true},
		"a fork":                  {func() { remove("deepspeed", info, command); fork("deepspeed/__init__.py") }, "deepspeed, which belongs to fork", true},
		"a fork over it":          {func() { fork(adam) }, "code in DeepSpeed's directory belongs to fork: " + adam, true},
		"a package in its folder": {func() { fork("deepspeed/fork.py") }, "code in DeepSpeed's directory belongs to fork: deepspeed/fork.py", false},
		"no torch":                {func() { remove("deepspeed", info, command, "torch", "torch-*") }, "no torch in the environment of", true},
	} {
		e = whole.twin(t, t.TempDir())
		c.leave()
		opt.Hosts[0].Python = e.python
		for _, offered := range [][]wheel.Loaded{nil, wheels} {
			look := verifyOptions(opt)
			look.Wheels = offered
			r, err := verify.Run(t.Context(), look)
			if err != nil {
				t.Fatal(err)
			}
			n := r.Nodes[0]
			if !strings.Contains(n.Error, c.want) || n.Hint == "" || c.refuse && strings.Contains(n.Hint, `"do":"deploy"`) {
				t.Errorf("%s: verify: %q, hint %q; want %q and, if %v, no deploy", name, n.Error, n.Hint, c.want, c.refuse)
			}
		}
		if r := run(t, t.Context(), opt); (r.Err() != nil) != c.refuse {
			t.Errorf("%s: deploy: %v; want an error: %v", name, r.Err(), c.refuse)
		}
	}
}
