package pipeline

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/wheel"
)

// trial is a builder whose compile step is step. Its wheels are in Source.File of the plans.
type trial struct {
	opened []string // plans, in order
	step   func(ctx context.Context, digest string) error
}

func newTrial() *trial {
	return &trial{step: func(context.Context, string) error { return nil }}
}

func (y *trial) Name() string { return "trial" }

func (y *trial) Open(_ context.Context, p *Plan, w Work) (Workspace, error) {
	y.opened = append(y.opened, p.Digest)
	w.Report.Step("base: nothing").End(ui.Done, "")
	return &trialSpace{y, p}, nil
}

type trialSpace struct {
	*trial
	plan *Plan
}

func (s *trialSpace) Run(ctx context.Context, steps ...Step) error {
	step := steps[0]
	if step.Name != StripStep {
		return nil
	}
	return s.step(ctx, s.plan.Digest)
}

func (s *trialSpace) Import(string, string) error { return nil }

func (s *trialSpace) Export(_ context.Context, step, dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil || step != StripStep {
		return err
	}
	return os.CopyFS(dir, os.DirFS(s.plan.Source.File))
}

// severalPlans are n plans whose wheels differ in their version.
func severalPlans(t *testing.T, n int) []*Plan {
	t.Helper()
	p := plan(t, image(), []string{"cpu_adam", "fused_adam"}, "8.0")
	all := make([]*Plan, n)
	for i := range all {
		dir := t.TempDir()
		wheeltest.Compiled(t, dir, wheeltest.Options{Version: fmt.Sprintf("0.19.%d", i)})
		facts := `{"gcc":"12.2.0","python":"3.11","torch":"2.15.0","cuda":"13.2","packages":[]}`
		if err := os.WriteFile(filepath.Join(dir, BuildFile), []byte(facts), 0o644); err != nil {
			t.Fatal(err)
		}
		one := *p
		one.Digest = strings.Repeat(fmt.Sprintf("%02x", i), 32)
		one.Manifest.PlanDigest = one.Digest
		one.Source.File = dir
		one.Name = fmt.Sprint("w", i)
		all[i] = &one
	}
	return all
}

// runner builds with y and reports to said.
func (y *trial) runner(t *testing.T, said io.Writer) Runner {
	t.Helper()
	return Runner{
		Store: Store{Dir: t.TempDir(), Keep: 100}, Dir: t.TempDir(), Logs: t.TempDir(), Report: ui.New(said, ui.Options{}),
		Builder: func(context.Context) (Builder, error) { return y, nil },
	}
}

// failures are the errors of results by name.
func failures(results []Result) map[string]string {
	out := map[string]string{}
	for _, r := range results {
		if r.Err != nil {
			out[r.Plan.Name] = r.Err.Error()
		}
	}
	return out
}

// A failing build stops no other. Lines name their plan. Equal plans are built once. Each result arrives in order.
func TestRunAll(t *testing.T) {
	var said bytes.Buffer
	y := newTrial()
	all := severalPlans(t, 3)
	again := *all[0]
	again.Name, again.Key, all[2].Key = "again", "asked again", "asked"
	all = append(all, &again)
	y.step = func(_ context.Context, digest string) error {
		if digest == all[1].Digest {
			return errors.New("step compile: boom")
		}
		return nil
	}
	r := y.runner(t, &said)
	var done []string
	results := r.RunAll(t.Context(), all, func(r Result) { done = append(done, r.Plan.Name) })
	if bad := failures(results); len(bad) != 1 || !strings.Contains(bad["w1"], "boom") {
		t.Errorf("failed: %v", bad)
	}
	if !slices.Equal(y.opened, []string{all[0].Digest, all[1].Digest, all[2].Digest}) || !slices.Equal(done, []string{"w0", "w1", "w2", "again"}) {
		t.Errorf("built %q, done %q", y.opened, done)
	}
	if a, b := results[0].Artifact, results[3].Artifact; a.SHA256 == "" || a.SHA256 != b.SHA256 || a.Cached || !b.Cached || results[3].Plan != &again {
		t.Errorf("equal plans: %+v, %+v", a, b)
	}
	const begins = "building DeepSpeed 0.19.8 for torch 2.15.0, CUDA 13.2, Python 3.11, x86-64-v3; " +
		"ops cpu_adam, fused_adam; archs 8.0; time a few minutes\n"
	for _, want := range []string{
		"[w0] " + begins + "✓ [w0] base: nothing", "[w2] " + begins + "✓ [w2] base: nothing", "[w1] failed: step compile: boom",
	} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("no %q in\n%s", want, &said)
		}
	}
	for _, p := range all[2:] {
		if digest, err := r.Store.PlanOf(t.Context(), p.Key); err != nil || digest != p.Digest {
			t.Errorf("the key %s leads to %q, %v", p.Key, digest, err)
		}
	}
	sums, err := os.ReadFile(filepath.Join(r.Dir, wheel.SumsName))
	if err != nil || strings.Count(string(sums), "\n") != 2*3 {
		t.Errorf("%v\n%s", err, sums)
	}
	said.Reset()
	for _, r := range r.RunAll(t.Context(), all[2:], nil) {
		if r.Err != nil || !r.Artifact.Cached || strings.Contains(said.String(), "building") {
			t.Errorf("the second time: %+v\n%s", r, &said)
		}
	}
}

// The builder is asked again for each wheel: one that cannot be reached now may answer later.
func TestRunAllWithoutABuilder(t *testing.T) {
	y, tries := newTrial(), 0
	r := y.runner(t, io.Discard)
	r.Builder = func(context.Context) (Builder, error) {
		if tries++; tries == 1 {
			return nil, errors.New("no route")
		}
		return y, nil
	}
	if bad := failures(r.RunAll(t.Context(), severalPlans(t, 2), nil)); len(bad) != 1 || bad["w0"] != "no route" {
		t.Errorf("%v", bad)
	}
}

func TestRunAllIsInterrupted(t *testing.T) {
	y := newTrial()
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	y.step = func(ctx context.Context, _ string) error {
		cancel(why)
		return context.Cause(ctx)
	}
	results := y.runner(t, io.Discard).RunAll(ctx, severalPlans(t, 3), nil)
	if len(y.opened) != 1 {
		t.Errorf("opened %v", y.opened)
	}
	if i := slices.IndexFunc(results, func(r Result) bool { return !errors.Is(r.Err, why) }); i >= 0 {
		t.Errorf("%+v", results[i])
	}
}

// Two wheels with the same file name cannot be in one directory: the second is rejected.
func TestRunAllRejectsOneNameTwice(t *testing.T) {
	all := severalPlans(t, 2)
	all[1].Source.File = all[0].Source.File
	results := newTrial().runner(t, io.Discard).RunAll(t.Context(), all, nil)
	if results[0].Err != nil || results[1].Err == nil || !strings.Contains(results[1].Err.Error(), "is already used by w0") {
		t.Errorf("%v, %v", results[0].Err, results[1].Err)
	}
}
