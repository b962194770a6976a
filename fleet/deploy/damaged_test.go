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
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
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
