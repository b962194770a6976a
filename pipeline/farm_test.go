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
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/wheel"
)

// imageTime is how long the images of a trial take.
const imageTime = 50 * time.Millisecond

// trial is a worker whose builds are watched, and do what the test says.
type trial struct {
	Worker
	mu      sync.Mutex
	running int
	most    int      // builds at once
	making  int      // images being made
	images  int      // images made at once, at most
	opened  []string // plans, in order
	ends    atomic.Int32
	dead    atomic.Bool
	connect error
	step    func(ctx context.Context, digest string) error
}

func newTrial(name string, parallel int) *trial {
	y := &trial{step: func(context.Context, string) error { return nil }}
	y.Worker = Worker{Name: name, Parallel: parallel, Connect: func(context.Context, ui.Reporter) (Builder, func() error, error) {
		return trialBuilder{y}, func() error { y.ends.Add(1); return nil }, y.connect
	}}
	return y
}

type trialBuilder struct{ *trial }

func (b trialBuilder) Name() string { return b.Worker.Name }

func (b trialBuilder) Ping(context.Context) error {
	if b.dead.Load() {
		return errors.New("connection refused")
	}
	return nil
}

func (b trialBuilder) Open(_ context.Context, p *Plan, log io.Writer, rep ui.Reporter) (Workspace, error) {
	b.count(&b.making, &b.images, 1)
	time.Sleep(imageTime)
	b.count(&b.making, &b.images, -1)
	b.mu.Lock()
	b.opened = append(b.opened, p.Digest)
	b.mu.Unlock()
	step := rep.Step("base: nothing")
	step.Log("line of " + p.Digest)
	step.End(ui.Done, "")
	fmt.Fprintln(log, "line of "+p.Digest)
	return &trialSpace{b.trial, p}, nil
}

func (y *trial) count(now, most *int, by int) {
	y.mu.Lock()
	defer y.mu.Unlock()
	*now += by
	*most = max(*most, *now)
}

type trialSpace struct {
	*trial
	plan *Plan
}

func (s *trialSpace) Run(ctx context.Context, step Step) error {
	if step.Name != StripStep {
		return nil
	}
	s.count(&s.running, &s.most, 1)
	defer s.count(&s.running, &s.most, -1)
	return s.step(ctx, s.plan.Digest)
}

func (s *trialSpace) Import(string, string) error { return nil }

func (s *trialSpace) Export(_ context.Context, step, dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil || step != StripStep {
		return err
	}
	return os.CopyFS(dir, os.DirFS(s.plan.Source.File))
}

// jobs are as many plans whose wheels differ in their version.
func jobs(t *testing.T, n int) []Job {
	t.Helper()
	p := plan(t, image(), Options{}, []string{"cpu_adam", "fused_adam"}, "8.0")
	all := make([]Job, n)
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
		all[i] = Job{fmt.Sprint("w", i), &one}
	}
	return all
}

// farm is one of these workers, which says what happens to said.
func farm(t *testing.T, said io.Writer, workers ...*trial) Farm {
	t.Helper()
	f := Farm{Runner: Runner{
		Store: Store{Dir: t.TempDir(), Keep: 100}, Dir: t.TempDir(), Logs: t.TempDir(), Report: ui.New(said, ui.Options{}),
	}}
	for _, y := range workers {
		f.Workers = append(f.Workers, y.Worker)
	}
	return f
}

// failures are the errors of results by name.
func failures(results []Result) map[string]string {
	out := map[string]string{}
	for _, r := range results {
		if r.Err != nil {
			out[r.Name] = r.Err.Error()
		}
	}
	return out
}

// One failing job stops no other; lines name their job; what is alike is built
// once; images that all need are made one after the other, steps are not.
func TestFarm(t *testing.T) {
	var said bytes.Buffer
	y := newTrial("one", 3)
	all := append(jobs(t, 5), Job{})
	all[5] = Job{"again", all[0].Plan}
	y.step = func(ctx context.Context, digest string) error {
		time.Sleep(2 * imageTime)
		if digest == all[2].Plan.Digest {
			return errors.New("step compile: boom")
		}
		return nil
	}
	f := farm(t, &said, y)
	results := f.Run(t.Context(), all)
	if bad := failures(results); len(bad) != 1 || !strings.Contains(bad["w2"], "boom") {
		t.Errorf("failed: %v", bad)
	}
	if y.images != 1 || y.most < 2 || y.most > 3 || len(y.opened) != 5 || int(y.ends.Load()) != 3 {
		t.Errorf("%d images and %d builds at once, %d builds, %d sessions ended", y.images, y.most, len(y.opened), y.ends.Load())
	}
	if a, b := results[0].Artifact, results[5].Artifact; a.SHA256 == "" || a.SHA256 != b.SHA256 || !b.Cached || results[5].Name != "again" {
		t.Errorf("alike: %+v, %+v", a, b)
	}
	for _, want := range []string{"[w0] base: nothing", "[w2] failed: step compile: boom"} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("%q is not said in\n%s", want, &said)
		}
	}
	sums, err := os.ReadFile(filepath.Join(f.Runner.Dir, wheel.SumsName))
	if err != nil || strings.Count(string(sums), "\n") != 4*3 {
		t.Errorf("%v\n%s", err, sums)
	}
	for _, r := range f.Run(t.Context(), all[:2]) {
		if r.Err != nil || !r.Artifact.Cached {
			t.Errorf("the second time: %+v", r)
		}
	}
}

// An engine that dies is left out, and what it was at is built elsewhere.
func TestFarmLosesAnEngine(t *testing.T) {
	var said bytes.Buffer
	good, bad := newTrial("good", 1), newTrial("bad", 1)
	bad.step = func(context.Context, string) error {
		bad.dead.Store(true)
		return errors.New("step strip: EOF")
	}
	good.step = func(context.Context, string) error { time.Sleep(2 * imageTime); return nil }
	results := farm(t, &said, good, bad).Run(t.Context(), jobs(t, 4))
	if failed := failures(results); len(failed) > 0 || len(bad.opened) != 1 || len(good.opened) != 4 {
		t.Errorf("%v, %v, %v", failed, bad.opened, good.opened)
	}
	if !strings.Contains(said.String(), "dsbuild lost engine bad and leaves it out") {
		t.Error(said.String())
	}
}

// Where no engine is left the rest is said not to be started, once each.
func TestFarmLosesAllEngines(t *testing.T) {
	a, b := newTrial("a", 1), newTrial("b", 1)
	a.connect = errors.New("no route")
	b.step = func(context.Context, string) error {
		b.dead.Store(true)
		return errors.New("step strip: EOF")
	}
	failed := failures(farm(t, io.Discard, a, b).Run(t.Context(), jobs(t, 4)))
	lost, rest := 0, 0
	for _, why := range failed {
		switch {
		case strings.Contains(why, "dsbuild lost engine"):
			lost++
		case why == errNoWorker.Error():
			rest++
		}
	}
	if len(failed) != 4 || lost == 0 || lost+rest != 4 || len(b.opened) > 1 {
		t.Errorf("%v, opened %v", failed, b.opened)
	}
}

func TestFarmIsInterrupted(t *testing.T) {
	y := newTrial("one", 2)
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	y.step = func(ctx context.Context, _ string) error {
		cancel(why)
		<-ctx.Done()
		return context.Cause(ctx)
	}
	results := farm(t, io.Discard, y).Run(ctx, jobs(t, 4))
	if failed := failures(results); len(failed) != 4 || len(y.opened) > 2 {
		t.Errorf("%v, opened %v", failed, y.opened)
	}
	if i := slices.IndexFunc(results, func(r Result) bool { return !errors.Is(r.Err, why) }); i >= 0 {
		t.Errorf("%+v", results[i])
	}
}

// Wheels of one name cannot lie in one directory: the second is refused.
func TestFarmRefusesOneNameTwice(t *testing.T) {
	all := jobs(t, 2)
	all[1].Plan.Source.File = all[0].Plan.Source.File
	results := farm(t, io.Discard, newTrial("one", 1)).Run(t.Context(), all)
	if results[0].Err != nil || results[1].Err == nil || !strings.Contains(results[1].Err.Error(), "the same as the wheel of w0") {
		t.Errorf("%v, %v", results[0].Err, results[1].Err)
	}
}
