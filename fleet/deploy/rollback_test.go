package deploy_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
)

// back rolls back and returns the report.
func back(t *testing.T, opt deploy.Options) *report.Report {
	t.Helper()
	d := deploy.New(opt)
	defer d.Close()
	if _, err := d.SurveyRollback(context.Background(), ""); err != nil {
		t.Fatal(err)
	}
	r := d.Apply(context.Background())
	t.Logf("%+v", r.Nodes)
	return r
}

func TestRollbackBringsBackWhatWasThere(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	e := newEnvironment(t, "2.15.0")
	h, s := host(t, "gpu1", e, sshtest.Options{})
	opt := options(t, load(t, makeWheel(t, t.TempDir(), wheelOptions{version: "0.19.7"})), []*sshtest.Server{s}, h)

	if r := back(t, opt); r.Summary.Refused != 1 || code(r.Err()) != 3 || !strings.Contains(r.Nodes[0].Error, "no previous version to roll back to") {
		t.Errorf("before any deploy: %+v", r.Nodes[0])
	}

	if r := run(t, context.Background(), opt); r.Err() != nil {
		t.Fatal(r.Err())
	}
	old := e.snapshot(t)
	newer := opt
	newer.Wheels = load(t, makeWheel(t, t.TempDir(), wheelOptions{}))
	if r := run(t, context.Background(), newer); r.Err() != nil {
		t.Fatal(r.Err())
	}
	r := back(t, newer)
	n := r.Nodes[0]
	if r.Err() != nil || !n.Changed || n.After == nil || n.After.SHA256 != opt.Wheels[0].Manifest.SHA256 || n.Before.SHA256 != newer.Wheels[0].Manifest.SHA256 {
		t.Errorf("%v: %+v", r.Err(), n)
	}
	e.mustBe(t, old)
	if left := e.leftovers(t); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	// What came back counts as dsbuild's own: nothing is to be done.
	if r := run(t, context.Background(), opt); r.Err() != nil || r.Nodes[0].Changed {
		t.Errorf("deploy of the version put back: %+v", r.Nodes[0])
	}
	if r := back(t, newer); r.Summary.Refused != 1 {
		t.Errorf("a second step back: %+v", r.Nodes[0])
	}
	// From a first deploy back to nothing.
	fresh := newEnvironment(t, "2.15.0")
	opt.Hosts[0].Python = fresh.python
	none := fresh.snapshot(t)
	run(t, context.Background(), opt)
	r = back(t, opt)
	var out strings.Builder
	if err := r.Print(&out); err != nil || r.Err() != nil || !strings.Contains(out.String(), "1 node ok: no deepspeed") {
		t.Errorf("%v, %v\n%s", err, r.Err(), out.String())
	}
	fresh.mustBe(t, none)
}

// Rollback brings a version back as it was, also if it did not match its RECORD, lay elsewhere or was a link;
// a wheel that is installed anew does not take its place.
func TestRollbackBringsBackWhatDoesNotMatchItsRecord(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	e, opt, _ := withOld(t)
	elsewhere := filepath.Join(t.TempDir(), "deepspeed")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	add := func(path, text string) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		must(err)
		_, err = f.WriteString(text)
		must(errors.Join(err, f.Close()))
	}
	for _, c := range []struct {
		name string
		make func()
	}{
		{"a hot fix, a missing file, edited METADATA, another first line", func() {
			add(filepath.Join(e.site, "deepspeed", "__init__.py"), "# hot fix\n")
			add(only(t, e.site, "deepspeed-*.dist-info/METADATA"), "\nedited\n")
			must(os.Remove(filepath.Join(e.site, "deepspeed", "ops", "cpu_adam_loaded.py")))
			must(os.WriteFile(filepath.Join(e.dir, "bin", "ds_report"), []byte("#!/opt/moved/bin/python\nprint('report')\n"), 0o755))
		}},
		{"a linked package", func() {
			must(os.Rename(filepath.Join(e.site, "deepspeed"), elsewhere))
			must(os.Symlink(elsewhere, filepath.Join(e.site, "deepspeed")))
		}},
		{"pip install -e", func() {
			must(os.Remove(filepath.Join(e.site, "deepspeed")))
			must(os.WriteFile(filepath.Join(e.site, "__editable__.deepspeed.pth"), []byte(filepath.Dir(elsewhere)+"\n"), 0o644))
			record := only(t, e.site, "deepspeed-*.dist-info/RECORD")
			sum := sha256.Sum256([]byte(text(t, filepath.Join(e.dir, "bin", "ds_report"))))
			command := "../../../bin/ds_report,sha256=" + base64.RawURLEncoding.EncodeToString(sum[:]) + ",\n"
			must(os.WriteFile(record, []byte("__editable__.deepspeed.pth,,\n"+command+filepath.Base(filepath.Dir(record))+"/RECORD,,\n"), 0o644))
		}},
	} {
		c.make()
		was := e.snapshot(t)
		if r := run(t, context.Background(), opt); r.Err() != nil {
			t.Fatalf("%s: deploy: %v", c.name, r.Err())
		}
		add(filepath.Join(e.site, "deepspeed", "__init__.py"), "# edited, too\n")
		if r := run(t, context.Background(), opt); r.Err() != nil || !r.Nodes[0].Changed {
			t.Fatalf("%s: the deploy that repairs the wheel: %+v", c.name, r.Nodes[0])
		}
		if r := back(t, opt); r.Err() != nil {
			t.Errorf("%s: rollback: %+v", c.name, r.Nodes[0])
		}
		e.mustBe(t, was)
	}
}

// only is the only path that a pattern matches in a folder.
func only(t *testing.T, dir, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %q, %v, want one", pattern, found, err)
	}
	return found[0]
}

// What changes while it is kept does not come back, and nothing else is lost.
func TestRollbackRefusesWhatWasChangedWhileKept(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	e, opt, _ := withOld(t)
	if r := run(t, context.Background(), opt); r.Err() != nil {
		t.Fatal(r.Err())
	}
	was := e.snapshot(t)
	kept := only(t, e.own(), "previous/*/ops/cpu_adam_loaded.py")
	if err := os.WriteFile(kept, []byte("evil = 1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	n := back(t, opt).Nodes[0]
	if n.Status != report.Failed || !strings.Contains(n.Error, "deepspeed/ops/cpu_adam_loaded.py differs from its state before the deploy") || n.Hint == "" {
		t.Errorf("%+v", n)
	}
	e.mustBe(t, was)
}

// A node that shares the environment compares what it sees after a rollback with the node that rolled back.
func TestFollowerOfARollback(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	// What gpu2 sees differs only once the old version is back.
	const late = "import sys\nif os.environ.get('NODE') == 'gpu2' and any(e.startswith('deepspeed-0.19.7') for p in sys.path if os.path.isdir(p) for e in os.listdir(p)):\n"
	for name, c := range map[string]struct{ code, want string }{
		"the same, with a hot fix": {},
		"another file": {late + `
    real = os.open
    def other(path, *a, **k):
        if str(path).endswith('deepspeed/ops/cpu_adam_loaded.py'):
            raise FileNotFoundError(path)
        return real(path, *a, **k)
    os.open = other
`, "shares an environment with gpu1, but sees different files"},
		"no version yet": {late + `
    real = os.listdir
    os.listdir = lambda path='.': [e for e in real(path) if not e.startswith('deepspeed-')]
`, "shares an environment with gpu1, which now has OLD, but this node sees no DeepSpeed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, opt, first := withOld(t)
			h, s := host(t, "gpu2", e, sshtest.Options{})
			h.Env = map[string]string{"NODE": "gpu2"}
			if c.want == "" {
				e.write(t, "deepspeed/ops/cpu_adam_loaded.py", "# hot fix\n")
			}
			both := options(t, opt.Wheels, []*sshtest.Server{first, s}, opt.Hosts[0], h)
			if r := run(t, context.Background(), both); r.Err() != nil {
				t.Fatal(r.Err())
			}
			if c.code != "" {
				e.patch(t, c.code)
			}
			both.Wheels = nil // a rollback has none
			r := back(t, both)
			if n := r.Nodes[0]; n.Status != report.OK || !n.Changed {
				t.Errorf("%+v", n)
			}
			n := r.Nodes[1]
			if c.want == "" {
				if n.Status != report.OK || !n.Changed || n.After == nil || n.After.SHA256 != r.Nodes[0].After.SHA256 {
					t.Errorf("%+v", n)
				}
				return
			}
			want := strings.Replace(c.want, "OLD", r.Nodes[0].After.String(), 1)
			if n.Status != report.Failed || n.Step != "install" || n.Error != want || !strings.Contains(n.Hint, "rerun the command") {
				t.Errorf("%+v", n)
			}
		})
	}
}
