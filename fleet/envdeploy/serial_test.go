package envdeploy_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/envdeploy"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/inventory"
)

// Nodes change in groups; after a group with a failure the others stay as they are.
func TestSerial(t *testing.T) {
	t.Parallel()
	x := newSite(t)
	l, files := x.lock(t, "name: train\npython: 3.11\nrequirements: [alpha]\n")
	var hosts []inventory.Host
	var servers []*sshtest.Server
	for name, o := range map[string]sshtest.Options{"gpu1": {}, "gpu2": {NoSpaceAfter: 1}, "gpu3": {}} {
		h, s := host(t, name, o)
		hosts, servers = append(hosts, h), append(servers, s)
	}
	opt := options(t, l, files, servers, hosts...)
	opt.Hosts = nil
	for _, name := range []string{"gpu1", "gpu2", "gpu3"} {
		for _, h := range hosts {
			if h.Name == name {
				opt.Hosts = append(opt.Hosts, h)
			}
		}
	}
	opt.Serial = fleet.Serial{{N: 1}}
	d := envdeploy.New(opt)
	defer d.Close()
	plan, err := d.Survey(t.Context())
	if err != nil || plan.Nodes[2].Serial != 3 {
		t.Fatalf("%v, %+v", err, plan)
	}
	r := told(t, d.Apply(t.Context()))
	for i, want := range []report.Status{report.OK, report.Failed, report.Skipped} {
		n := r.Nodes[i]
		if n.Status != want || want != report.Skipped && n.Serial != i+1 {
			t.Errorf("%s: %s, group %d", n.Name, n.Status, n.Serial)
		}
	}
	if n := r.Nodes[2]; !strings.Contains(n.Error, "failed in batch 2 ") {
		t.Error(n.Error)
	}
}

// Two runs at once: one makes the environment, the other waits for it or says who is at work. Both
// leave one whole environment.
func TestTwoRunsAtOnce(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	x := newSite(t)
	l, files := x.lock(t, small)
	h, s := host(t, "gpu1", sshtest.Options{})
	opts := []envdeploy.Options{options(t, l, files, []*sshtest.Server{s}, h), options(t, l, files, []*sshtest.Server{s}, h)}
	reports := make([]*report.Report, len(opts))
	var both sync.WaitGroup
	for i := range opts {
		both.Go(func() {
			d := envdeploy.New(opts[i])
			defer d.Close()
			if _, err := d.Survey(t.Context()); err != nil {
				t.Error(err)
				return
			}
			reports[i] = d.Apply(t.Context())
		})
	}
	both.Wait()
	changed := 0
	for _, r := range reports {
		n := told(t, r).Nodes[0]
		if n.Changed {
			changed++
		}
		if n.Status != report.OK && !strings.Contains(n.Error, "another deploy is changing this environment") {
			t.Errorf("%s: %s", n.Status, n.Error)
		}
	}
	if changed != 1 || len(leftovers(t, s)) > 0 {
		t.Errorf("%d runs have changed it, left %q", changed, leftovers(t, s))
	}
	if r := look(t, opts[0]); r.Err() != nil {
		t.Error(r.Err())
	}
}
