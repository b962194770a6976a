package planner

import (
	"io"
	"os"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/pipeline/matrix"
)

// Each engine that was named is a worker; dsbuild knows the memory of this machine alone, so an engine
// elsewhere gets one build at a time unless --parallel says more.
func TestWorkers(t *testing.T) {
	t.Parallel()
	here := pipeline.BuildsAtOnce()
	for _, c := range []struct {
		o    BackendOptions
		want []pipeline.Worker // Name, Parallel, Jobs
	}{
		{BackendOptions{Kind: Host, Parallel: 4}, []pipeline.Worker{{Name: "this machine", Parallel: 1}}},
		{BackendOptions{Kind: Auto}, []pipeline.Worker{{Name: "found here", Parallel: here, Jobs: pipeline.JobsOf(here)}}},
		{BackendOptions{Kind: Dagger, Engines: []string{"tcp://a:1", "unix:///run/b"}}, []pipeline.Worker{{Name: "tcp://a:1", Parallel: 1}, {Name: "unix:///run/b", Parallel: here, Jobs: pipeline.JobsOf(here)}}},
		{BackendOptions{Kind: Dagger, Engines: []string{"tcp://a:1", "unix:///run/b"}, Parallel: 3}, []pipeline.Worker{{Name: "tcp://a:1", Parallel: 3}, {Name: "unix:///run/b", Parallel: 3}}},
	} {
		got := NewBackend(c.o).Workers()
		if len(got) != len(c.want) {
			t.Errorf("%+v: %d workers", c.o, len(got))
			continue
		}
		for i, w := range got {
			if w.Name != c.want[i].Name || w.Parallel != c.want[i].Parallel || w.Jobs != c.want[i].Jobs || w.Connect == nil {
				t.Errorf("%+v: worker %+v, want %+v", c.o, w, c.want[i])
			}
		}
	}
}

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
	want := digest(EntryRequest(matrix.Entry{Archs: []string{"8.0", "9.0"}, Ops: []string{"cpu_adam", "utils"}}))
	for _, e := range []matrix.Entry{
		{Archs: []string{"8.0;9.0"}, Ops: []string{"cpu_adam,utils"}},
		{Archs: []string{"8.0", "9.0"}, Ops: []string{"cpu_adam, utils"}},
		{Archs: []string{"9.0", "8.0"}, Ops: []string{" cpu_adam", "utils "}},
	} {
		if got := digest(EntryRequest(e)); got != want {
			t.Errorf("archs %q, ops %q: another plan", e.Archs, e.Ops)
		}
	}
	for _, text := range []string{"8.0,9.0", "8.0, 9.0", "9.0 8.0"} {
		if _, err := p.OpenTarget(t.Context(), EntryRequest(matrix.Entry{Archs: []string{text}})); fault.ExitCode(err) != 2 || !strings.Contains(err.Error(), `separate entries with ";"`) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
