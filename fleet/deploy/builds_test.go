package deploy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/inventory"
	"github.com/dsbuild/dsbuild/wheel"
)

// completeBuild describes a complete build of DeepSpeed 0.19.8 by a recipe, whose version is plain.
func completeBuild(t *testing.T, recipe int) wheeltest.Options {
	t.Helper()
	o, like := wheeltest.OfKind(wheel.KindComplete), testWheel(t, wheelOptions{})
	o.Python, o.Scripts, o.Requires = like.Python, like.Scripts, like.Requires
	o.Recipe, o.Plan = recipe, strings.Repeat(fmt.Sprint(recipe), 64)
	o.Files = wheeltest.LoadedByPython(wheel.DefaultOps()...)
	o.Files["deepspeed/recipe.py"] = fmt.Sprintf("recipe = %d\n", recipe)
	return o
}

// Three nodes have DeepSpeed 0.19.8: one the package index's build, one an older build of dsbuild's, one the newest. Its
// version does not tell them apart; verify, deploy and rollback do.
func TestBuildsOfOneVersion(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	dist := t.TempDir()
	older := load(t, wheeltest.Packed(t, dist, completeBuild(t, 1)))
	newest := load(t, wheeltest.Packed(t, dist, completeBuild(t, 2)))
	var f few
	var hosts []inventory.Host
	var servers []*sshtest.Server
	for i := range 3 {
		e := newEnvironment(t, "2.15.0")
		h, s := host(t, fmt.Sprintf("gpu%d", i+1), e, sshtest.Options{})
		f.envs, hosts, servers = append(f.envs, e), append(hosts, h), append(servers, s)
	}
	f.envs[0].pipInstall(t, quickPip, wheeltest.Compiled(t, t.TempDir(), completeBuild(t, 3)))
	f.opt = options(t, nil, servers, hosts...)
	for i, wheels := range map[int][]wheel.Loaded{1: older, 2: newest} {
		one := f.opt
		one.Hosts, one.Wheels = hosts[i:i+1], wheels
		if r := run(t, t.Context(), one); r.Err() != nil {
			t.Fatal(r.Err())
		}
	}
	named := func(w wheel.Loaded) string {
		return fmt.Sprintf("%s (sha256 %.12s)", w.Manifest.Name, w.Manifest.SHA256)
	}
	is := func(w wheel.Loaded) string { return fmt.Sprintf("DeepSpeed 0.19.8 (sha256 %.12s)", w.Manifest.SHA256) }
	// errors compares the nodes' errors.
	errors := func(r *report.Report, want ...string) {
		t.Helper()
		for i, n := range r.Nodes {
			if n.Error != want[i] {
				t.Errorf("%s: %s\nwant: %s", n.Name, n.Error, want[i])
			}
		}
	}

	apart := "build: no majority: from another tool on gpu1, " + named(older[0]) + " on gpu2, " + named(newest[0]) + " on gpu3"
	errors(f.look(t), apart, apart, apart)
	if f.opt.Wheels = load(t, dist); len(f.opt.Wheels) != 1 {
		t.Fatalf("%d wheels, want the newest build alone", len(f.opt.Wheels))
	}
	errors(f.look(t), "runs DeepSpeed 0.19.8 from another tool, not "+named(newest[0]), "runs "+is(older[0])+", not "+named(newest[0]), "")

	d := deploy.New(f.opt)
	defer d.Close()
	plan, err := d.Survey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct {
		action change.Action
		note   string
	}{
		{change.Install, "replaces DeepSpeed 0.19.8, which another tool installed"},
		{change.Install, fmt.Sprintf("replaces another wheel of DeepSpeed 0.19.8 (sha256 %.12s)", older[0].Manifest.SHA256)},
		{change.UpToDate, ""},
	} {
		n := plan.Nodes[i]
		said := strings.Join(n.Notes, "; ")
		if n.Action != want.action || !strings.HasSuffix(said, want.note) || strings.Contains(said, "replaces") != (want.note != "") {
			t.Errorf("%s: %s, %q, want %+v", n.Name, n.Action, n.Notes, want)
		}
	}
	r := d.Apply(t.Context())
	if want := "3 nodes ok, all equal: deepspeed 0.19.8 " + named(newest[0])[len(newest[0].Manifest.Name)+1:]; r.Err() != nil || !strings.HasPrefix(r.Verdict(), want) {
		t.Errorf("%v: %s, want %s", r.Err(), r.Verdict(), want)
	}

	r = back(t, f.opt)
	var out strings.Builder
	if err := r.Print(&out); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"DeepSpeed 0.19.8", is(older[0]), is(newest[0])} {
		inTable := " " + strings.ReplaceAll(strings.TrimPrefix(want, "DeepSpeed "), "sha256 ", "") + " "
		if got := r.Nodes[i].After.String(); got != want || !strings.Contains(out.String(), inTable) {
			t.Errorf("%s after the rollback: %s, want %s\n%s", r.Nodes[i].Name, got, want, out.String())
		}
	}
	if r.Verdict() != "3 nodes ok, but running different software" || code(r.Err()) != 3 {
		t.Errorf("%s, %v", r.Verdict(), r.Err())
	}

	// What pip installs over a wheel of dsbuild's is another build, not a changed file.
	f.envs[2].pipInstall(t, quickPip, older[0].Path)
	f.opt.Wheels, f.opt.Hosts = nil, hosts[2:]
	r = f.look(t)
	want := "dsbuild installed " + newest[0].Manifest.Name + ", which another tool has replaced by " + older[0].Manifest.Name
	if n := r.Nodes[0]; n.Status != report.OK || strings.Join(n.Notes, "; ") != want {
		t.Errorf("%s: %s, %q, want %q", n.Status, n.Error, n.Notes, want)
	}
}
