package planner

import (
	"io"
	"os"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
)

// The host builder has one base, this machine: another one is wrong usage, which is told before the
// machine is inspected.
func TestBaseWithTheHostBuilder(t *testing.T) {
	t.Parallel()
	site, err := pipeline.NewSite(pipeline.SiteOptions{}, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	report := ui.New(io.Discard, ui.Options{})
	backend := NewBackend(BackendOptions{Kind: Host, Site: site, Environ: os.Environ(), Report: report})
	defer backend.Close()
	p, err := New(t.Context(), Options{Backend: backend, Report: report})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	r := Request{Archs: []string{"8.0"}, Base: "debian:12"}
	target, err := p.OpenTarget(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.PlanTarget(t.Context(), r, target); fault.ExitCode(err) != 2 || !strings.Contains(err.Error(), "--base debian:12 does not work with the host builder") || backend.machine != nil {
		t.Errorf("%v, code %d", err, fault.ExitCode(err))
	}
}

// Ops that are written as one text are those of a list, also with spaces; archs are not, and the error
// says how to write them.
func TestListsInOneText(t *testing.T) {
	t.Parallel()
	p := dryPlanner(t)
	digest := func(r Request) string {
		t.Helper()
		target, err := p.OpenTarget(t.Context(), r)
		if err != nil {
			t.Errorf("%+v: %v", r, err)
			return ""
		}
		plan, _, err := p.PlanWithoutEngine(t.Context(), r, target)
		if err != nil {
			t.Errorf("%+v: %v", r, err)
			return ""
		}
		return plan.Digest
	}
	entry := func(archs []string, ops ...string) (r Request) {
		r.Set("arch", archs)
		r.Set("ops", ops)
		return r
	}
	want := digest(entry([]string{"8.0", "9.0"}, "cpu_adam", "utils"))
	for _, r := range []Request{
		entry([]string{"8.0;9.0"}, "cpu_adam,utils"),
		entry([]string{"8.0", "9.0"}, "cpu_adam, utils"),
		entry([]string{"9.0", "8.0"}, " cpu_adam", "utils "),
	} {
		if got := digest(r); got != want {
			t.Errorf("archs %q, ops %q: another plan", r.Archs, r.Ops)
		}
	}
	for _, text := range []string{"8.0,9.0", "8.0, 9.0", "9.0 8.0"} {
		if _, err := p.OpenTarget(t.Context(), Request{Archs: []string{text}}); fault.ExitCode(err) != 2 || !strings.Contains(err.Error(), `separate entries with ";"`) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
