package deploy_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/fleet/verify"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
)

// text reads a file.
func text(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// journal returns the lines of an environment's journal.
func (e environment) journal(t *testing.T) (lines []map[string]any) {
	t.Helper()
	for line := range strings.Lines(text(t, e.own("journal.jsonl"))) {
		var entry map[string]any
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		lines = append(lines, entry)
	}
	return lines
}

// A rollback undoes dsbuild's own change only: it rejects a node whose DeepSpeed was changed by other means since.
func TestRollbackRefusesChangesOfOthers(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	e, opt, _ := withOld(t)
	old := e.snapshot(t)
	if r := run(t, context.Background(), opt); r.Err() != nil {
		t.Fatal(r.Err())
	}
	aside := filepath.Join(t.TempDir(), "aside")
	info := only(t, e.site, "deepspeed-*.dist-info")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	module := filepath.Join(e.site, "deepspeed", "__init__.py")
	for name, c := range map[string]struct {
		do, undo func()
		want     string
	}{
		"an edited file": {
			func() { must(os.Rename(module, aside)); e.write(t, "deepspeed/__init__.py", text(t, aside)+"# fix\n") },
			func() { must(os.Rename(aside, module)) }, "was changed: deepspeed/__init__.py",
		},
		"more code": {
			func() { e.write(t, "deepspeed/more.py", "") },
			func() { must(os.Remove(filepath.Join(e.site, "deepspeed", "more.py"))) }, "was changed: deepspeed/more.py",
		},
		"uninstalled": {
			func() { must(os.Rename(info, aside)) },
			func() { must(os.Rename(aside, info)) }, "was removed",
		},
		"a second distribution": {
			func() {
				e.dist(t, "deepspeed", "0.18.5")
				e.write(t, "deepspeed-0.18.5.dist-info/RECORD", "deepspeed/__init__.py,,\n")
			},
			func() { must(os.RemoveAll(filepath.Join(e.site, "deepspeed-0.18.5.dist-info"))) }, "was replaced: deepspeed-0.18.5.dist-info, deepspeed-0.19.8",
		},
		"a note that is gone": {
			func() { must(os.Rename(e.own("installed.json"), aside)) },
			func() { must(os.Rename(aside, e.own("installed.json"))) }, "cannot read " + e.own("installed.json"),
		},
	} {
		c.do()
		was := e.snapshot(t)
		n := back(t, opt).Nodes[0]
		if n.Status != report.Refused || n.Step != "fit" || !strings.Contains(n.Error, c.want) || !strings.Contains(n.Hint, "deploy the DeepSpeed version you want") {
			t.Errorf("%s: %s at %s: %s, hint %q; want it refused: %s", name, n.Status, n.Step, n.Error, n.Hint, c.want)
		}
		e.mustBe(t, was)
		c.undo()
	}
	// Python's own byte code is no one's work.
	code := only(t, e.site, "deepspeed/__pycache__/__init__.*.pyc")
	must(os.WriteFile(code, []byte(text(t, code)+"more"), 0o644))
	if r := back(t, opt); r.Err() != nil {
		t.Errorf("byte code: %+v", r.Nodes[0])
	}
	e.mustBe(t, old)
}

// What others install or edit is kept, however many deploys follow, and it is named. Notes tell what was really there.
func TestNothingOfOthersIsLost(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	e, opt, _ := withOld(t)
	deployed := func(version string) *report.Report {
		t.Helper()
		opt := opt
		if version != "" {
			opt.Wheels = load(t, makeWheel(t, t.TempDir(), wheelOptions{version: version}))
		}
		r := run(t, context.Background(), opt)
		if r.Err() != nil {
			t.Fatal(r.Err())
		}
		return r
	}
	deployed("")
	e.pipInstall(t, quickPip, makeWheel(t, t.TempDir(), wheelOptions{version: "0.18.5"}))
	e.write(t, "deepspeed/engine.py", "# the user's fix\n")
	was := e.snapshot(t)
	deployed("") // the same wheel again: what comes back is the 0.18.5 with its fix
	r := back(t, opt)
	if n := r.Nodes[0]; r.Err() != nil || n.After == nil || !strings.HasPrefix(n.After.Version, "0.18.5") || n.After.SHA256 != "" {
		t.Errorf("rollback to what pip installed: %+v, after %v", n, n.After)
	}
	e.mustBe(t, was)
	last := e.journal(t)
	if entry := last[len(last)-1]; entry["do"] != "rollback" || entry["sha256"] != "" {
		t.Errorf("journal: %v", entry)
	}

	deployed("")
	d := deploy.New(opt)
	d.Close()
	opt.DryRun = true
	other := opt
	other.Wheels = load(t, makeWheel(t, t.TempDir(), wheelOptions{version: "0.19.6"}))
	planned := deploy.New(other)
	plan, err := planned.Survey(context.Background())
	planned.Close()
	opt.DryRun = false
	if err != nil || !strings.Contains(strings.Join(plan.Nodes[0].Notes, ";"), "keeps files that dsbuild did not install in "+e.own("foreign-")) {
		t.Errorf("plan: %v, %q", err, plan.Nodes[0].Notes)
	}
	r = deployed("0.19.6")
	kept := only(t, e.own("."), "foreign-*")
	if got := text(t, filepath.Join(kept, "site", "deepspeed", "engine.py")); got != "# the user's fix\n" {
		t.Errorf("kept: %q", got)
	}
	lines := e.journal(t)
	if note := strings.Join(r.Nodes[0].Notes, ";"); !strings.Contains(note, kept) || lines[len(lines)-1]["kept"] != kept {
		t.Errorf("notes %q, journal %v; want %s", note, lines[len(lines)-1], kept)
	}

	// An edit of dsbuild's own version: the deploy that repairs it keeps the edited file, and only that.
	e.write(t, "deepspeed/ops/cpu_adam_loaded.py", "# edited\n")
	deployed("0.19.6")
	all, err := filepath.Glob(e.own("foreign-*"))
	if err != nil || len(all) != 2 {
		t.Fatalf("%q, %v, want two folders", all, err)
	}
	all = slices.DeleteFunc(all, func(path string) bool { return path == kept })
	if got := text(t, filepath.Join(all[0], "site", "deepspeed", "ops", "cpu_adam_loaded.py")); got != "# edited\n" {
		t.Errorf("kept: %q", got)
	}
	if _, err := os.Stat(filepath.Join(all[0], "site", "deepspeed", "__init__.py")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file of dsbuild's is kept, too: %v", err)
	}
	deployed("")
	if _, err := os.Stat(filepath.Join(kept, "site", "deepspeed", "engine.py")); err != nil {
		t.Error(err)
	}

	// Two distributions at once: a deploy replaces both, and a rollback brings both back.
	e.dist(t, "deepspeed", "0.17.0")
	e.write(t, "deepspeed-0.17.0.dist-info/RECORD", "deepspeed/__init__.py,,\ndeepspeed-0.17.0.dist-info/METADATA,,\n")
	was = e.snapshot(t)
	deployed("0.19.5")
	if r := back(t, opt); r.Err() != nil {
		t.Errorf("rollback to two distributions: %+v", r.Nodes[0])
	}
	e.mustBe(t, was)
}

// A rollback undoes one run, on those nodes that this run changed.
func TestRollbackUndoesOneRun(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	all, opt := several(t, 3)
	newer := opt.Wheels
	opt.Wheels = load(t, makeWheel(t, t.TempDir(), wheelOptions{version: "0.19.7"}))
	if r := run(t, context.Background(), opt); r.Err() != nil {
		t.Fatal(r.Err())
	}
	first := all[2].journal(t)[0]["run"].(string)
	opt.Wheels, opt.By = newer, "ops@head2" // another control node
	all[2].spoil(t)
	if r := run(t, context.Background(), opt); r.Summary.Failed != 1 {
		t.Fatalf("%+v", r.Summary)
	}
	all[2].write(t, "torch/__init__.py", "from . import version\n__version__ = version.__version__\n")
	opt.Verify = "files"
	opt.By = "tester"
	second := all[0].journal(t)[1]["run"].(string)
	undo := func(run string, opt deploy.Options) *report.Report {
		t.Helper()
		d := deploy.New(opt)
		defer d.Close()
		if _, err := d.SurveyRollback(context.Background(), run); err != nil {
			t.Fatal(err)
		}
		return d.Apply(context.Background())
	}
	mustBe := func(when string, r *report.Report, want ...string) {
		t.Helper()
		for i, n := range r.Nodes {
			version, told, _ := strings.Cut(want[i], ": ")
			after := "none"
			if n.After != nil {
				after, _, _ = strings.Cut(n.After.Version, "+")
			}
			if after != version || !strings.Contains(n.Error+strings.Join(n.Notes, ";"), told) {
				t.Errorf("%s: %s is %s with %s, %q, %q; want %s", when, n.Name, n.Status, after, n.Error, n.Notes, want[i])
			}
		}
	}
	canary := opt
	canary.Hosts = opt.Hosts[:1]
	r := undo("", canary)
	mustBe("one node first", r, "0.19.7")
	r = undo("", opt)
	mustBe("all", r, "0.19.7: rolled back already", "0.19.7", "0.19.7: unchanged: its last change is run "+first)
	if r.Err() != nil || r.Undone == nil || r.Undone.ID != second || r.Undone.By != "ops@head2" || r.Nodes[2].Changed || !r.Nodes[1].Changed {
		t.Errorf("%v: undone %+v", r.Err(), r.Undone)
	}
	var out strings.Builder
	if err := r.Print(&out); err != nil || !strings.Contains(out.String(), "undoes run "+second+" (") || !strings.Contains(out.String(), "UTC, ops@head2)") {
		t.Errorf("%v\n%s", err, out.String())
	}
	r = undo("", opt)
	mustBe("again", r, "0.19.7: rolled back already", "0.19.7: no previous version", "0.19.7: its last change is run "+first)
	if r.Summary.Refused != 2 || code(r.Err()) != 3 {
		t.Errorf("a second rollback: %+v, %v", r.Summary, r.Err())
	}
	d := deploy.New(opt)
	defer d.Close()
	if _, err := d.SurveyRollback(context.Background(), "nope"); code(err) != 2 || !strings.Contains(err.Error(), `"nope"`) {
		t.Errorf("an unknown run: %v", err)
	}
	mustBe("a named run", undo(first, opt), "0.19.7: its last change", "0.19.7: its last change", "none")
}

// A wheel that is installed again is part of both runs, and does not replace the version before it.
func TestRollbackOfAWheelInstalledTwice(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	e, opt, first := withOld(t)
	was := e.snapshot(t)
	h, s := host(t, "gpu2", newEnvironment(t, "2.15.0"), sshtest.Options{})
	both := options(t, opt.Wheels, []*sshtest.Server{first, s}, opt.Hosts[0], h)
	if r := run(t, context.Background(), opt); r.Err() != nil {
		t.Fatal(r.Err())
	}
	both.Force = true
	if r := run(t, context.Background(), both); r.Err() != nil {
		t.Fatal(r.Err())
	}
	r := back(t, both)
	if r.Nodes[0].After == nil || !strings.HasPrefix(r.Nodes[0].After.Version, "0.19.7") || r.Nodes[1].After != nil || !r.Nodes[1].Changed {
		t.Errorf("%+v", r.Nodes)
	}
	e.mustBe(t, was)
}

// A deploy that was cut off is the last change: a rollback undoes it, and nothing more.
func TestRollbackOfAnInterruptedDeploy(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	e := newEnvironment(t, "2.15.0")
	h, s := host(t, "gpu1", e, sshtest.Options{})
	opt := options(t, load(t, makeWheel(t, t.TempDir(), wheelOptions{})), []*sshtest.Server{s}, h)
	e.pipInstall(t, quickPip, makeWheel(t, t.TempDir(), wheelOptions{version: "0.16.0"}))
	was := e.snapshot(t)
	cut := func() {
		t.Helper()
		// No other agent can look after it: as if the node had gone down.
		_, remove := e.hook(t, "open(os.path.join(sys.prefix, 'down'), 'w').close()\n    os.kill(os.getppid(), signal.SIGKILL)\n    raise SystemExit(1)\nif os.path.exists(os.path.join(sys.prefix, 'down')):\n    os._exit(1)")
		if n := run(t, context.Background(), opt).Nodes[0]; n.Status != report.Failed || e.version(t) != "" {
			t.Fatalf("the test did not cut the change off: %+v", n)
		}
		remove()
		if err := os.Remove(filepath.Join(e.dir, "down")); err != nil {
			t.Fatal(err)
		}
	}
	survey := func() (plan deploy.Plan) {
		t.Helper()
		d := deploy.New(opt)
		defer d.Close()
		plan, err := d.SurveyRollback(context.Background(), "")
		if err != nil {
			t.Fatal(err)
		}
		return plan
	}
	cut()
	lock, err := os.OpenFile(e.own("lock"), os.O_RDWR, 0)
	if err != nil || syscall.Flock(int(lock.Fd()), syscall.LOCK_EX) != nil {
		t.Fatal(err)
	}
	if n := survey().Nodes[0]; n.Action != change.Refuse || !strings.Contains(strings.Join(n.Reasons, ";"), "another deploy is changing this environment") || n.Hint == "" {
		t.Errorf("while a deploy runs: %+v", n)
	}
	lock.Close() //nolint:errcheck // only read
	if n := survey().Nodes[0]; n.Action != change.Rollback || !strings.HasPrefix(n.Back, "DeepSpeed 0.16.0") || !strings.Contains(strings.Join(n.Notes, ";"), "interrupted") {
		t.Errorf("plan: %+v", n)
	}
	r := back(t, opt)
	if n := r.Nodes[0]; r.Err() != nil || !n.Changed || n.After == nil || !strings.HasPrefix(n.After.Version, "0.16.0") || r.Undone == nil {
		t.Errorf("%v: %+v", r.Err(), n)
	}
	e.mustBe(t, was)
	if lines := e.journal(t); len(lines) != 1 || lines[0]["do"] != "repair" {
		t.Errorf("journal: %v", lines)
	}
	if r := back(t, opt); r.Summary.Refused != 1 || !strings.Contains(r.Nodes[0].Error, "no previous version") {
		t.Errorf("a second one: %+v", r.Nodes[0])
	}

	// A DeepSpeed that was installed by hand after the cut is not restored over.
	cut()
	for _, left := range []string{"deepspeed", "deepspeed-0.19.8*.dist-info"} {
		found, err := filepath.Glob(filepath.Join(e.site, left))
		for _, path := range found {
			err = errors.Join(err, os.RemoveAll(path))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	e.pipInstall(t, quickPip, makeWheel(t, t.TempDir(), wheelOptions{version: "0.18.5"}))
	was = e.snapshot(t)
	verified, err := verify.Run(t.Context(), verifyOptions(opt))
	if err != nil {
		t.Fatal(err)
	}
	for name, n := range map[string]report.Node{
		"rollback": back(t, opt).Nodes[0], "deploy": run(t, context.Background(), opt).Nodes[0], "verify": verified.Nodes[0],
	} {
		if !strings.Contains(n.Error, "DeepSpeed 0.18.5") || !strings.Contains(n.Error, "was installed after the interrupted deploy") || !strings.Contains(n.Hint, "kept-*") {
			t.Errorf("%s: %s: %s, hint %q", name, n.Status, n.Error, n.Hint)
		}
	}
	e.mustBe(t, was)
	// The hint, word for word.
	kept := only(t, e.own("."), "kept-*")
	foreign := strings.Replace(kept, "kept-", "foreign-", 1)
	if err := errors.Join(os.Rename(kept, foreign), os.Remove(e.own("change.json"))); err != nil {
		t.Fatal(err)
	}
	if r := run(t, context.Background(), opt); r.Err() != nil {
		t.Error(r.Err())
	}
	if r := back(t, opt); r.Err() != nil {
		t.Error(r.Err())
	}
	e.mustBe(t, was)
	only(t, foreign, "*/__init__.py") // the 0.16.0
}

// Notes of another environment are an error, and what is kept stays. A moved environment keeps its own.
func TestRollbackInACopy(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	e, opt, s := withOld(t)
	old := e.snapshot(t)
	if r := run(t, context.Background(), opt); r.Err() != nil {
		t.Fatal(r.Err())
	}
	copied, original := e.copied(t, t.TempDir()), e.snapshot(t)
	in := opt
	in.Hosts = slices.Clone(opt.Hosts)
	in.Hosts[0].Python = copied.python
	n := back(t, in).Nodes[0]
	if n.Status != report.Refused || !strings.Contains(n.Error, "is of "+e.site+", of which this environment is a copy") || n.Hint == "" {
		t.Errorf("a copy: %s: %s, hint %q", n.Status, n.Error, n.Hint)
	}
	in.Wheels = load(t, makeWheel(t, t.TempDir(), wheelOptions{version: "0.19.6"}))
	if r := run(t, context.Background(), in); r.Err() != nil { // what the hint says
		t.Error(r.Err())
	}
	only(t, copied.own("."), "foreign-before-*/*/version.py")

	// The notes stay with their site-packages if the environment gets a newer Python, or a second one.
	lib, newer := filepath.Dir(copied.site), filepath.Join(copied.dir, "lib", "python3.99")
	if err := os.Rename(lib, newer); err != nil {
		t.Fatal(err)
	}
	copied.dist(t, "deepspeed", "0.18.5")
	copied.write(t, "deepspeed-0.18.5.dist-info/RECORD", "deepspeed-0.18.5.dist-info/METADATA,,\n")
	if n := back(t, in).Nodes[0]; n.Status != report.Refused || !strings.Contains(n.Error, "no previous version to roll back to") {
		t.Errorf("a newer Python: %s: %s, want that it has nothing to roll back", n.Status, n.Error)
	}
	if r, err := verify.Run(t.Context(), verifyOptions(in)); err != nil || len(r.Nodes[0].Notes) > 0 {
		t.Errorf("a newer Python: %v, notes %q, want none: dsbuild has installed nothing there", err, r.Nodes[0].Notes)
	}
	if err := errors.Join(os.RemoveAll(lib), os.Rename(newer, lib)); err != nil {
		t.Fatal(err)
	}
	if r := back(t, in); r.Err() != nil || !strings.HasPrefix(r.Nodes[0].After.Version, "0.19.8") {
		t.Errorf("rollback of the copy's own deploy: %+v", r.Nodes[0])
	}
	e.mustBe(t, original)

	moved := environment{dir: filepath.Join(t.TempDir(), "moved")}
	link := filepath.Join(t.TempDir(), "link")
	if err := errors.Join(exec.Command("mv", e.dir, moved.dir).Run(), os.Symlink(moved.dir, link)); err != nil {
		t.Fatal(err)
	}
	opt = options(t, nil, []*sshtest.Server{s}, opt.Hosts...)
	opt.Hosts[0].Python = filepath.Join(link, "bin", "python")
	if r := back(t, opt); r.Err() != nil || !strings.HasPrefix(r.Nodes[0].After.Version, "0.19.7") {
		t.Errorf("moved, and through a link: %+v", r.Nodes[0])
	}
	want := map[string]string{}
	for path, is := range old {
		want[moved.dir+strings.TrimPrefix(path, e.dir)] = is
	}
	moved.mustBe(t, want)
}

// An unfinished change is repaired only in its own environment, and by notes that stay inside of it.
func TestRepairTrustsNoNote(t *testing.T) {
	t.Parallel()
	e, outside := newEnvironment(t, ""), t.TempDir()
	e.write(t, "deepspeed/__init__.py", "old\n")
	e.dist(t, "deepspeed", "0.16.0")
	e.write(t, "deepspeed-0.16.0.dist-info/RECORD", "deepspeed/__init__.py,,\n")
	if err := os.WriteFile(filepath.Join(outside, "theirs"), []byte("theirs"), 0o600); err != nil {
		t.Fatal(err)
	}
	begin := `
env = Environment()
def begin():
    try:
        env.begin(Orders())
        return "ok"
    except Failed as f:
        return "%s | %s" % (f, f.advice)
    finally:
        os.close(env.lock)
`
	out := agentDo(t, e, "", begin+`
OUT = `+"'"+outside+"'"+`
begin()
env.start_change([os.path.join(sites()[0], "deepspeed")])
right = load_json(CHANGE)
kept = os.path.join(HOME, right["kept"])
for name, more in {
    "up": {"roots": [{"name": "site/../../../../" + OUT[1:] + "/theirs", "was": False}]},
    "absolute": {"roots": [{"name": OUT + "/theirs", "was": False}]},
    "base": {"roots": [{"name": "site", "was": False}]},
    "dsbuild": {"roots": [{"name": "site/.dsbuild/lock", "was": False}]},
    "no name": {"roots": [{"name": 5, "was": False}]},
    "kept above": {"kept": "kept-/../../../.."},
    "kept elsewhere": {"kept": OUT},
    "run": {"run": "../x"},
    "copy": {"of": {"path": OUT, "device": 1, "inode": 2}},
    "nothing": {"roots": 7},
}.items():
    save_json(CHANGE, dict(right, **more))
    said = begin()
    print(name, "ok" if said.endswith("| look-at-kept") and os.path.exists(os.path.join(kept, "0")) else said)
os.symlink(OUT, os.path.join(sites()[0], "out"))
save_json(CHANGE, dict(right, roots=[{"name": "site/out/theirs", "was": False}]))
print("link:", begin())
os.rename(kept, kept + "x")
os.symlink(OUT, kept)
save_json(CHANGE, right)
print("kept link:", begin())
os.unlink(kept)
os.rename(kept + "x", kept)
print("right:", begin(), content(os.path.join(sites()[0], "deepspeed", "__init__.py")))
`)
	for line := range strings.Lines(out) {
		if name, said, _ := strings.Cut(strings.TrimSpace(line), ":"); strings.Contains(name, "link") {
			if !strings.Contains(said, "outside the environment") && !strings.Contains(said, "is a link") {
				t.Error(line)
			}
		} else if name != "right" && !strings.HasSuffix(name, " ok") {
			t.Error(line)
		}
	}
	if !strings.HasSuffix(out, "right: ok b'old\\n'\n") {
		t.Errorf("the right note: %s", out)
	}
	if text(t, filepath.Join(outside, "theirs")) != "theirs" {
		t.Error("a file outside was changed")
	}
}

// Conda keeps a record of the DeepSpeed that it installed: the plan says so.
func TestPlanNotesCondasRecord(t *testing.T) {
	t.Parallel()
	e, opt, _ := withOld(t)
	record := filepath.Join(e.dir, "conda-meta", "deepspeed-0.18.5-py311_0.json")
	if err := errors.Join(os.Mkdir(filepath.Dir(record), 0o755), os.WriteFile(record, []byte("{}"), 0o644)); err != nil {
		t.Fatal(err)
	}
	opt.DryRun = true
	d := deploy.New(opt)
	defer d.Close()
	plan, err := d.Survey(context.Background())
	if want := "conda keeps its own record of DeepSpeed (conda-meta/deepspeed-0.18.5-py311_0.json)"; err != nil || !strings.Contains(strings.Join(plan.Nodes[0].Notes, ";"), want) {
		t.Errorf("%v, %q, want %q", err, plan.Nodes[0].Notes, want)
	}
}
