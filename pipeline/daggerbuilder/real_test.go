package daggerbuilder

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"dagger.io/dagger"

	"github.com/dsbuild/dsbuild/dockerfiles"
	"github.com/dsbuild/dsbuild/internal/testkit/built"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/pipeline/engine"
)

// connect returns a builder on a real engine, and the base tar of dsbuild's own
// engine, "" on any other. With -short the test is skipped; without an engine too, but there
// it fails in CI.
func connect(t *testing.T) (*Builder, string) {
	t.Helper()
	needs.Time(t)
	built.Engine(t)
	missing := t.Skipf
	if os.Getenv("CI") == "true" {
		missing = t.Fatalf
	}
	found, err := engine.NewFinder("", t.Logf).Find(t.Context())
	if err != nil {
		missing("needs an engine (make engine): %v", err)
	}
	b, done, err := Connect(t.Context(), found, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := done(); err != nil {
			t.Error(err)
		}
	})
	return b, engine.NewBases(nil).There("bookworm")
}

// record is a reporter that remembers.
type record struct {
	mu    sync.Mutex
	lines []string
	ends  []ui.Outcome
}

func (r *record) Note(string, ...any)        {}
func (r *record) Detail(string, ...any)      {}
func (r *record) Warn(string, ...any)        {}
func (r *record) Bar(string, int64) ui.Bar   { return nil }
func (r *record) Step(string) ui.Step        { return r }
func (r *record) End(o ui.Outcome, _ string) { r.ends = append(r.ends, o) }
func (r *record) Log(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, line)
}

// on prepares a run whose images are the base alone.
func on(b *Builder, tar string, rep ui.Reporter, log io.Writer) *run {
	r := &run{
		Builder: b, Work: pipeline.Work{Log: log, Report: rep}, outputs: map[string]*dagger.Directory{},
		plan: &pipeline.Plan{Base: pipeline.Base{Ref: "base", File: tar}, Scripts: map[string]string{"try.sh": `eval "$TRY"`}},
	}
	base := b.client.Container().From(dockerfiles.DefaultImage)
	if tar != "" {
		base = b.root(r.plan.Base)
	}
	r.images = map[pipeline.Image]*dagger.Container{pipeline.Runtime: base}
	return r
}

// step is one of a script, which it finds in its environment.
func step(script string, env ...string) pipeline.Step {
	s := pipeline.Step{
		Name: "try", Title: "try", Image: pipeline.Runtime, Script: "try.sh", Env: map[string]string{"TRY": script},
	}
	for _, e := range env {
		k, v, _ := strings.Cut(e, "=")
		s.Env[k] = v
	}
	return s
}

// Lines arrive whole while the step runs, the output is kept, and the same
// step again is said to be cached.
func TestRealStep(t *testing.T) {
	b, tar := connect(t)
	rep, log := &record{}, &bytes.Buffer{}
	r := on(b, tar, rep, log)
	s := step("printf half; sleep 0.3; echo ' line'; echo two >&2; echo done >/out/file", "NOW="+time.Now().String())
	for range 2 {
		if err := r.Run(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	if text, err := r.outputs["try"].File("file").Contents(t.Context()); err != nil || text != "done\n" {
		t.Errorf("%q, %v", text, err)
	}
	if len(rep.ends) != 2 || rep.ends[0] != ui.Done || rep.ends[1] != ui.Cached {
		t.Errorf("outcomes %v, want done and cached", rep.ends)
	}
	for _, want := range []string{"half line\n", "two\n"} {
		if !strings.Contains(log.String(), want) || !strings.Contains(strings.Join(rep.lines, "\n")+"\n", want) {
			t.Errorf("%q is not in the log %q or the lines %q", want, log, rep.lines)
		}
	}
}

func TestRealStepFails(t *testing.T) {
	b, tar := connect(t)
	rep := &record{}
	err := on(b, tar, rep, io.Discard).Run(t.Context(), step("echo x.cpp:1: error: no luck >&2; exit 7"))
	if err == nil || !strings.Contains(err.Error(), "exit code 7") || !strings.Contains(err.Error(), "error: no luck") {
		t.Errorf("%v", err)
	}
	if len(rep.ends) != 1 || rep.ends[0] != ui.Failed {
		t.Errorf("outcomes %v", rep.ends)
	}
}

func TestRealStepCancelled(t *testing.T) {
	b, tar := connect(t)
	r := on(b, tar, &record{}, io.Discard)
	if _, err := r.images[pipeline.Runtime].Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	start := time.Now()
	err := r.Run(ctx, step("sleep 600", "NOW="+start.String()))
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 2*time.Minute {
		t.Errorf("after %v: %v", time.Since(start), err)
	}
}

// An OCI image serves as base, owners and all.
func TestRealOCIBase(t *testing.T) {
	b, tar := connect(t)
	rootfs := on(b, tar, &record{}, io.Discard).images[pipeline.Runtime]
	oci := filepath.Join(t.TempDir(), "oci.tar")
	owned := rootfs.WithExec([]string{"sh", "-c", "echo mine >/srv/file && chown 12:34 /srv/file"})
	if _, err := owned.AsTarball().Export(t.Context(), oci); err != nil {
		t.Fatal(err)
	}
	base, err := pipeline.NewBase(oci)
	if err != nil || !base.OCI {
		t.Fatalf("%+v, %v", base, err)
	}
	out, err := b.root(base).WithExec([]string{"stat", "-c", "%u:%g", "/srv/file"}).Stdout(t.Context())
	if err != nil || strings.TrimSpace(out) != "12:34" {
		t.Errorf("owner %q, %v", out, err)
	}
}

// What a base holds is read in it.
func TestRealLook(t *testing.T) {
	b, tar := connect(t)
	base := pipeline.Base{Ref: dockerfiles.DefaultImage, File: tar}
	g, err := b.Inspect(t.Context(), base)
	if err != nil || g.Suite != "bookworm" || g.Glibc != "2.36" || g.Machine != "x86_64" || g.Host || g.CUDA != "" {
		t.Errorf("%+v, %v", g, err)
	}
}
