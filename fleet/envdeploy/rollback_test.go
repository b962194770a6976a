package envdeploy_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/envdeploy"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/internal/testkit/wheelindex"
)

// lastRun returns the run of the last line of a node's journal.
func lastRun(t *testing.T, s *sshtest.Server) (r node.Run) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(content(t, filepath.Join(place(s), "journal.jsonl"))), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// cutOff makes the last switch of a node one that was cut off after the first rename.
func cutOff(t *testing.T, s *sshtest.Server, previous string) {
	t.Helper()
	journal := filepath.Join(place(s), "journal.jsonl")
	text := content(t, journal)
	at := strings.LastIndex(strings.TrimSuffix(text, "\n"), "\n") + 1
	note, err := json.Marshal(map[string]any{
		"to": filepath.Base(current(t, s)), "previous": previous, "journal": json.RawMessage(text[at:]), "tidy": true,
	})
	err = errors.Join(err, os.WriteFile(journal, []byte(text[:at]), 0o644), os.Remove(filepath.Join(place(s), "previous")),
		os.WriteFile(filepath.Join(place(s), "change.json"), note, 0o644))
	if err != nil {
		t.Fatal(err)
	}
}

// A rollback undoes one run, on those nodes that this run changed.
func TestRollbackUndoesOneRun(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	x := newSite(t)
	l, files := x.lock(t, small)
	h1, s1 := host(t, "gpu1", sshtest.Options{})
	h2, s2 := host(t, "gpu2", sshtest.Options{})
	deploy := func(opt envdeploy.Options) {
		t.Helper()
		if r := run(t, t.Context(), opt); r.Err() != nil {
			t.Fatal(r.Err())
		}
	}
	deploy(options(t, l, files, []*sshtest.Server{s1, s2}, h1, h2))
	first, old := lastRun(t, s1), current(t, s1)
	x.Add(t, wheelindex.Wheel{Name: "alpha", Version: "1.1"})
	l, files = x.lock(t, small)
	all := options(t, l, files, []*sshtest.Server{s1, s2}, h1, h2)
	canary := all
	canary.Hosts, canary.By = all.Hosts[:1], "ops@head2" // another control node
	deploy(canary)
	second := lastRun(t, s1)
	mustBe := func(when string, r *report.Report, want ...string) {
		t.Helper()
		for i, n := range r.Nodes {
			status, told, _ := strings.Cut(want[i], ": ")
			if string(n.Status) != status || !strings.Contains(n.Error+strings.Join(n.Notes, ";"), told) || n.Environment.Digest[:16] != filepath.Base(old)[:16] {
				t.Errorf("%s: %s is %s, %q, %q, want %s", when, n.Name, n.Status, n.Error, n.Notes, want[i])
			}
		}
	}

	// What else has changed the link, or is about to, is not undone.
	link := filepath.Join(place(s1), "current")
	name := filepath.Base(current(t, s1))
	if err := errors.Join(os.Remove(link), os.Symlink(filepath.Base(old), link)); err != nil {
		t.Fatal(err)
	}
	leave := "ok: unchanged: its last change is run " + first.ID + " ("
	mustBe("a link changed by hand", back(t, all), "refused: current was changed after the last deploy", leave)
	if err := errors.Join(os.Remove(link), os.Symlink(name, link)); err != nil {
		t.Fatal(err)
	}
	shared := filepath.Join(place(s1), "../.dsbuild")
	lock, err := os.OpenFile(filepath.Join(shared, "lock"), os.O_RDWR, 0)
	if err = errors.Join(err, os.Mkdir(filepath.Join(shared, "run-other"), 0o700)); err != nil || syscall.Flock(int(lock.Fd()), syscall.LOCK_EX) != nil {
		t.Fatal(err)
	}
	if n := back(t, canary).Nodes[0]; n.Status != report.Refused || n.Error != "node reported: another deploy is changing this environment" || n.Hint == "" {
		t.Errorf("while a deploy runs: %s: %s, hint %q", n.Status, n.Error, n.Hint)
	}
	lock.Close() //nolint:errcheck // only read

	cutOff(t, s1, filepath.Base(old))
	r := back(t, all)
	mustBe("the latest run, of one node", r, "ok: the run was interrupted", leave)
	if u := r.Undone; r.Err() != nil || u == nil || *u != second || !r.Nodes[0].Changed || r.Nodes[1].Changed || current(t, s1) != old {
		t.Errorf("%v: undone %+v, want %+v; current is %s", r.Err(), u, second, current(t, s1))
	}
	var out strings.Builder
	if err := r.Print(&out); err != nil || !strings.Contains(out.String(), "undoes run "+second.ID+" (") || !strings.Contains(out.String(), "UTC, ops@head2)") {
		t.Errorf("%v\n%s", err, out.String())
	}
	mustBe("again", back(t, all), "refused: no previous environment to roll back to: this run was rolled back already", leave)
	mustBe("a named run", undo(t, all, first.ID), "ok: its last change is run "+second.ID, "refused: no previous environment to roll back to")

	// A recreated environment is part of both runs, and does not replace the one before it.
	deploy(canary)
	all.Force = true
	deploy(all)
	r = back(t, all)
	mustBe("recreated", r, "ok: ", "ok: ")
	if r.Err() != nil || !r.Nodes[0].Changed || !r.Nodes[1].Changed {
		t.Errorf("%v: %+v", r.Err(), r.Nodes)
	}
}
