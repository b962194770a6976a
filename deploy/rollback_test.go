package deploy_test

import (
	"context"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/deploy"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
)

// back rolls back and returns the report.
func back(t *testing.T, opt deploy.Options) *report.Report {
	t.Helper()
	d := deploy.New(opt)
	defer d.Close()
	if _, err := d.SurveyRollback(context.Background()); err != nil {
		t.Fatal(err)
	}
	r := d.Apply(context.Background())
	t.Logf("%+v", r.Nodes)
	return r
}

func TestRollbackBringsBackWhatWasThere(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t, "2.15.0")
	h, s := host(t, "gpu1", e, sshtest.Options{})
	opt := options(t, load(t, makeWheel(t, t.TempDir(), wheelOptions{version: "0.19.7"})), []*sshtest.Server{s}, h)

	if r := back(t, opt); r.Summary.Refused != 1 || code(r.Err()) != 3 || !strings.Contains(r.Nodes[0].Error, "nothing to go back to") {
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
