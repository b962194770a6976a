package nightly_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gofrs/flock"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/release/nightly"
	"github.com/dsbuild/dsbuild/wheel"
)

// yard plans for real and builds small wheels that say what was planned.
type yard struct {
	t      *testing.T
	tables *compat.Tables
	dir    string
	commit string   // of main
	asked  int      // plans made for an engine
	built  []string // names of wheels, in order
	broken string   // of the wheel that fails
	dies   string   // the wheel after which the program is killed
	stop   context.CancelCauseFunc
	nodes  func(dir, limit string) (nightly.Nodes, error)
	now    time.Time
}

func newYard(t *testing.T) *yard {
	t.Helper()
	tables, err := compat.NewTables()
	if err != nil {
		t.Fatal(err)
	}
	return &yard{t: t, tables: tables, dir: t.TempDir(), commit: strings.Repeat("1", 40), now: time.Date(2026, 11, 20, 2, 17, 0, 0, time.UTC)}
}

func (y *yard) resolve(r wheel.Request, source, digest string) (*pipeline.Plan, error) {
	tc, err := y.tables.Resolve(wheel.Request{ABI: wheel.TorchMinor, Archs: r.Archs, Ops: []string{"cpu_adam", "fused_adam"}, CPU: wheel.CPUv3})
	if err != nil {
		return nil, err
	}
	src := pipeline.Release(tc.DeepSpeed, tc.Source)
	if source != compat.Latest {
		src = pipeline.Source{Kind: pipeline.SourceGit, Ref: "git+https://github.com/a/b@main", Commit: y.commit, SHA256: strings.Repeat(y.commit[:1], 64), Version: "0.19.9", File: "main.tar.gz"}
	}
	packages, _ := pipeline.LockedPackages(tc)
	return pipeline.NewPlan([]pipeline.Part{{Toolchain: tc, Packages: packages}}, src, pipeline.Base{Ref: tc.Environment.Ref, Digest: digest}, false)
}

func (y *yard) open(_ context.Context, source string) (nightly.Planner, error) {
	return yardPlanner{y, source}, nil
}

// yardPlanner is a nightly.Planner of one source.
type yardPlanner struct {
	*yard
	source string
}

func (p yardPlanner) Sketch(_ context.Context, r wheel.Request) (*pipeline.Plan, error) {
	plan, err := p.resolve(r, p.source, "")
	if err != nil {
		return nil, err
	}
	plan.Key = pipeline.KeyOf(plan, "auto")
	return plan, nil
}

func (p yardPlanner) Plan(_ context.Context, name string, r wheel.Request) (*pipeline.Plan, error) {
	p.asked++
	plan, err := p.resolve(r, p.source, "sha256:"+strings.Repeat("ab", 32))
	if err == nil {
		plan.Name = name
	}
	return plan, err
}

func entry(name, arch string) nightly.Entry {
	archs, err := wheel.ParseArchs([]string{arch})
	if err != nil {
		panic(err)
	}
	return nightly.Entry{Name: name, Request: wheel.Request{Archs: archs}}
}

var errAudit = wheel.MismatchError("a wheel", []string{"an op is missing"})

func (y *yard) build(ctx context.Context, dir string, plans []*pipeline.Plan, done func(pipeline.Result)) {
	for _, p := range plans {
		r := pipeline.Result{Plan: p}
		switch {
		case ctx.Err() != nil:
			r.Err = context.Cause(ctx)
		case p.Name == y.broken:
			r.Err = errAudit
		default:
			r.Artifact = y.make(dir, p)
			y.built = append(y.built, p.Name)
		}
		done(r)
		if p.Name == y.dies {
			y.stop(errKilled)
		}
	}
}

var errKilled = errors.New("killed")

// wheelOf describes a wheel that a plan asks for.
func wheelOf(p *pipeline.Plan) wheeltest.Options {
	tc := p.Toolchain()
	return wheeltest.Options{
		Version: p.Source.Version, Commit: p.Source.Commit, Python: "cp" + strings.ReplaceAll(tc.Python, ".", ""), Torch: tc.Torch, CUDA: tc.CUDA, CPU: tc.CPU, Plan: p.Digest,
		Ops: []wheeltest.Op{{Name: "cpu_adam", Dir: "adam"}, {Name: "fused_adam", Dir: "adam", SASS: []string{tc.Archs[0].Capability()}}},
	}
}

func (y *yard) make(dir string, p *pipeline.Plan) wheel.Artifact {
	file, m, statement := wheeltest.Built(y.t, y.t.TempDir(), wheelOf(p))
	at := y.now
	m.BuiltAt = &at
	a, err := pipeline.Export(y.t.Context(), pipeline.StoredWheel{File: file, Manifest: m, Provenance: statement}, dir)
	if err != nil {
		y.t.Fatal(err)
	}
	a.Seconds = 12
	return a
}

// night runs one, and returns what became of each wheel.
func (y *yard) night(change func(*nightly.Options)) (*nightly.Report, map[string]nightly.Status, error) {
	y.t.Helper()
	y.built, y.asked = nil, 0
	opt := nightly.Options{
		Config: nightly.Config{
			Dir: filepath.Join(y.dir, "nightly"), Keep: 2, Sources: []nightly.Source{{Name: "release"}, {Name: "main", DeepSpeed: "git+https://github.com/a/b@main"}},
			Entries: []nightly.Entry{entry("a100", "8.0"), entry("h100", "9.0")},
			Index:   &nightly.Index{Dir: filepath.Join(y.dir, "www")},
		},
		Open: y.open, Build: y.build, Store: pipeline.Store{Dir: filepath.Join(y.dir, "store"), Keep: 10},
		Report: ui.New(testLog{y.t}, ui.Options{}), Now: func() time.Time { return y.now }, By: "tester@here",
	}
	if y.nodes != nil {
		opt.Config.Deploy = &nightly.Deploy{Inventory: "i", Source: "release", Canary: "first"}
		opt.Deploy = func(_ context.Context, dir, limit, _, _ string) (nightly.Nodes, error) { return y.nodes(dir, limit) }
	}
	if change != nil {
		change(&opt)
	}
	ctx, stop := context.WithCancelCause(y.t.Context())
	defer stop(nil)
	y.stop = stop
	r, err := nightly.Run(ctx, opt)
	y.now = y.now.Add(24 * time.Hour)
	status := map[string]nightly.Status{}
	if r != nil {
		for _, e := range r.Entries {
			status[e.Name] = e.Status
		}
	}
	return r, status, err
}

type testLog struct{ t *testing.T }

func (l testLog) Write(b []byte) (int, error) {
	l.t.Logf("%s", b)
	return len(b), nil
}

func want(t *testing.T, what string, got, want any) {
	t.Helper()
	a, _ := json.Marshal(got)
	b, _ := json.Marshal(want)
	if string(a) != string(b) {
		t.Errorf("%s: %s, want %s", what, a, b)
	}
}

type statuses = map[string]nightly.Status

func all(s nightly.Status) statuses {
	return statuses{"a100@release": s, "h100@release": s, "a100@main": s, "h100@main": s}
}

// The first night builds all, the second nothing, and asks for no engine; the third
// builds what the new commit has changed, and says so.
func TestNights(t *testing.T) {
	y := newYard(t)
	r, got, err := y.night(nil)
	if err != nil {
		t.Fatal(err)
	}
	want(t, "the first night", got, all(nightly.Built))
	if !r.Good || r.Publish.Status != nightly.Done || r.Publish.Wheels != 4 {
		t.Errorf("%+v, %+v", r, r.Publish)
	}

	r, got, err = y.night(nil)
	if err != nil {
		t.Fatal(err)
	}
	want(t, "the second night", got, all(nightly.Unchanged))
	if y.asked != 0 || len(y.built) != 0 || r.Publish.Status != nightly.Unchanged {
		t.Errorf("%d plans for an engine, %q built, the index %s", y.asked, y.built, r.Publish.Status)
	}

	y.commit = strings.Repeat("2", 40)
	r, got, err = y.night(nil)
	if err != nil {
		t.Fatal(err)
	}
	third := all(nightly.Unchanged)
	third["a100@main"], third["h100@main"] = nightly.Built, nightly.Built
	want(t, "the third night", got, third)
	if said := strings.Join(r.Entries[2].Changes, "; "); !strings.Contains(said, "commit 222222222222, was 111111111111") {
		t.Errorf("changes: %s", said)
	}
	text, err := os.ReadFile(filepath.Join(y.dir, "nightly", "report.txt"))
	if err != nil || !strings.Contains(string(text), "commit 222222222222, was 111111111111") {
		t.Errorf("the report for people: %v\n%s", err, text)
	}
	// Of each wheel two builds are kept, and the index has them.
	y.commit = strings.Repeat("3", 40)
	if r, _, err = y.night(nil); err != nil || r.Pruned != 2 || r.Publish.Wheels != 6 || r.Publish.Removed == 0 {
		t.Errorf("the fourth night: %v, %d pruned, %+v", err, r.Pruned, r.Publish)
	}
	kept, err := filepath.Glob(filepath.Join(y.dir, "nightly", "wheels", "*", "*.whl"))
	if err != nil || len(kept) != 6 {
		t.Errorf("kept: %q, %v", kept, err)
	}
	// A commit that was there before is not built again.
	y.commit = strings.Repeat("2", 40)
	if _, got, err = y.night(nil); err != nil || got["a100@main"] != nightly.Stored || len(y.built) != 0 {
		t.Errorf("an older commit: %v, %v, %q built", err, got, y.built)
	}
}

// A wheel that fails stops no other, and the last good one stays.
func TestFailure(t *testing.T) {
	y := newYard(t)
	if _, _, err := y.night(nil); err != nil {
		t.Fatal(err)
	}
	y.commit, y.broken = strings.Repeat("2", 40), "h100@main"
	r, got, err := y.night(nil)
	third := all(nightly.Unchanged)
	third["a100@main"], third["h100@main"] = nightly.Built, nightly.Failed
	want(t, "with a failure", got, third)
	var coded interface{ ExitCode() int }
	if !errors.As(err, &coded) || coded.ExitCode() != 4 || !strings.Contains(err.Error(), "1 of 4 wheels failed: h100@main") {
		t.Error(err)
	}
	if e := r.Entries[3]; e.Build == nil || !strings.Contains(e.Build.Version, "g1111111") || !strings.Contains(e.Error, "an op is missing") {
		t.Errorf("%+v", e)
	}
	if r.Publish.Status != nightly.Done || r.Publish.Wheels != 5 {
		t.Errorf("%+v", r.Publish)
	}
	y.broken = ""
	if _, got, err := y.night(nil); err != nil || got["h100@main"] != nightly.Built || len(y.built) != 1 {
		t.Errorf("the next night: %v, %v", err, got)
	}
}

// Wheels are built one after another. A failed build does not stop the others, and equal plans are built once.
func TestBuildsOneAfterAnother(t *testing.T) {
	y := newYard(t)
	b := &builder{t: t}
	r, got, err := y.night(func(o *nightly.Options) {
		o.Sources = o.Sources[:1]
		o.Entries = []nightly.Entry{entry("a100", "8.0"), entry("fails", "8.6"), entry("h100", "9.0"), entry("twin", "8.0")}
		o.Build = func(ctx context.Context, dir string, plans []*pipeline.Plan, done func(pipeline.Result)) {
			b.fails = plans[1].Digest
			pipeline.Runner{
				Store: o.Store, Dir: dir, Logs: t.TempDir(), Report: o.Report,
				Builder: func(context.Context) (pipeline.Builder, error) { return b, nil },
			}.RunAll(ctx, plans, done)
		}
	})
	if err == nil || !strings.Contains(err.Error(), "1 of 4 wheels failed: fails@release") || b.most != 1 {
		t.Errorf("%v, %d builds in parallel", err, b.most)
	}
	want(t, "the wheels", got, statuses{"a100@release": nightly.Built, "fails@release": nightly.Failed, "h100@release": nightly.Built, "twin@release": nightly.Stored})
	if e := r.Entries; len(b.plans) != 3 || e[0].Build.SHA256 != e[3].Build.SHA256 || e[1].Build != nil || !strings.Contains(e[1].Error, "boom") {
		t.Errorf("%d builds, %+v", len(b.plans), e)
	}
}

// builder compiles the wheels of plans, except for one that fails.
type builder struct {
	t         *testing.T
	fails     string   // a plan
	plans     []string // of the builds, in order
	now, most int      // builds in parallel
}

func (b *builder) Name() string { return "test" }

func (b *builder) Open(_ context.Context, p *pipeline.Plan, _ pipeline.Work) (pipeline.Workspace, error) {
	b.plans = append(b.plans, p.Digest)
	b.now++
	b.most = max(b.most, b.now)
	return workspace{b, p}, nil
}

type workspace struct {
	*builder
	plan *pipeline.Plan
}

func (w workspace) Close() error {
	w.now--
	return nil
}

func (w workspace) Import(string, string) error { return nil }

func (w workspace) Run(_ context.Context, steps ...pipeline.Step) error {
	if steps[0].Name == pipeline.CompileStep && w.plan.Digest == w.fails {
		return errors.New("step compile: boom")
	}
	return nil
}

func (w workspace) Export(_ context.Context, step, dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil || step != pipeline.StripStep {
		return err
	}
	wanted := wheelOf(w.plan)
	wheeltest.Compiled(w.t, dir, wanted)
	facts := fmt.Sprintf(`{"gcc": "12.2.0", "python": %q, "torch": %q, "cuda": %q, "packages": []}`, w.plan.Toolchain().Python, wanted.Torch, wanted.CUDA)
	return os.WriteFile(filepath.Join(dir, pipeline.BuildFile), []byte(facts), 0o644)
}

// What a night had built before it was killed is not built again, and the next run
// ends that night.
func TestResumes(t *testing.T) {
	y := newYard(t)
	y.dies = "h100@release"
	broken, _, err := y.night(nil)
	if !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	want(t, "built before", y.built, []string{"a100@release", "h100@release"})
	if _, err := os.Stat(filepath.Join(y.dir, "www")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a broken night has published: %v", err)
	}
	y.dies = ""
	r, got, err := y.night(nil)
	if err != nil {
		t.Fatal(err)
	}
	want(t, "built after", y.built, []string{"a100@main", "h100@main"})
	want(t, "in all", got, all(nightly.Built))
	if !r.Resumed || r.ID != broken.ID || r.Publish.Wheels != 4 {
		t.Errorf("%+v", r)
	}
	left, err := os.ReadDir(filepath.Join(y.dir, "nightly", "staging"))
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left in staging: %v, %v", left, err)
	}
}

// A kept wheel whose bytes are not what they were is built anew.
func TestDamagedBuild(t *testing.T) {
	y := newYard(t)
	if _, _, err := y.night(nil); err != nil {
		t.Fatal(err)
	}
	kept, err := filepath.Glob(filepath.Join(y.dir, "nightly", "wheels", "h100@release-*", "*.whl"))
	if err != nil || len(kept) != 1 {
		t.Fatal(kept, err)
	}
	if err := os.WriteFile(kept[0], []byte("torn"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, got, err := y.night(nil); err != nil || got["h100@release"] != nightly.Built || len(y.built) != 1 {
		t.Errorf("%v, %v, %q", err, got, y.built)
	}
}

func TestTwoAtOnce(t *testing.T) {
	y := newYard(t)
	dir := filepath.Join(y.dir, "nightly")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	other := flock.New(filepath.Join(dir, "lock"))
	if err := other.Lock(); err != nil {
		t.Fatal(err)
	}
	_, _, err := y.night(nil)
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%s is in use by another dsbuild nightly: process %d (", dir, os.Getpid())) {
		t.Errorf("while another runs: %v, want an error that names this process", err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := y.night(nil); err != nil {
		t.Error(err)
	}
}

// What another run has built lies in the store: it is taken from there, with no engine.
func TestFromTheStore(t *testing.T) {
	y := newYard(t)
	store := pipeline.Store{Dir: filepath.Join(y.dir, "store"), Keep: 10}
	plans, r := yardPlanner{y, compat.Latest}, entry("a100", "8.0").Request
	p, err := plans.Plan(t.Context(), "", r)
	if err != nil {
		t.Fatal(err)
	}
	sketch, err := plans.Sketch(t.Context(), r)
	if err == nil {
		err = store.Put(t.Context(), p.Digest, y.make(filepath.Join(y.dir, "dist"), p))
	}
	if err == nil {
		err = store.LinkKey(t.Context(), sketch.Key, p.Digest)
	}
	if err != nil {
		t.Fatal(err)
	}
	one := func(o *nightly.Options) { o.Entries, o.Sources = o.Entries[:1], o.Sources[:1] }
	signed := 0
	signing := func(err error) func(*nightly.Options) {
		return func(o *nightly.Options) {
			one(o)
			o.Sign = func(path string) error {
				signed++
				return errors.Join(err, os.WriteFile(wheel.SignatureFile(path, "0123456789abcdef"), []byte("signature"), 0o644))
			}
			if err != nil {
				o.Sign = func(string) error { return err }
			}
		}
	}
	if _, got, err := y.night(signing(errors.New("no agent"))); err == nil || got["a100@release"] != nightly.Failed {
		t.Errorf("a wheel of the store that cannot be signed: %v, %v", err, got)
	}
	if _, got, err := y.night(signing(nil)); err != nil || got["a100@release"] != nightly.Stored && got["a100@release"] != nightly.Unchanged || signed != 1 {
		t.Errorf("signed %d times: %v, %v", signed, err, got)
	}
	if _, got, err := y.night(signing(nil)); err != nil || got["a100@release"] != nightly.Unchanged || signed != 1 {
		t.Errorf("signed %d times: %v, %v", signed, err, got)
	}
	if err := os.RemoveAll(filepath.Join(y.dir, "nightly")); err != nil {
		t.Fatal(err)
	}
	if r, got, err := y.night(one); err != nil || got["a100@release"] != nightly.Stored || y.asked != 0 || r.Publish.Wheels != 1 {
		t.Errorf("%v, %v, %d plans for an engine", err, got, y.asked)
	}
	if _, got, err := y.night(one); err != nil || got["a100@release"] != nightly.Unchanged {
		t.Errorf("%v, %v", err, got)
	}
}

// The canary goes first; where it fails, the others keep what they have.
func TestDeploy(t *testing.T) {
	y := newYard(t)
	var limits []string
	bad := false
	y.nodes = func(dir, limit string) (nightly.Nodes, error) {
		limits = append(limits, limit)
		names, err := filepath.Glob(filepath.Join(dir, "*.whl"))
		if err != nil || len(names) != 2 || slices.ContainsFunc(names, func(n string) bool { return strings.Contains(n, "+g") }) {
			t.Errorf("deployed: %q, %v", names, err)
		}
		if bad {
			return nightly.Nodes{All: 1}, &nodesError{}
		}
		return nightly.Nodes{OK: 1, All: 1}, nil
	}
	r, _, err := y.night(nil)
	if err != nil || len(r.Deploys) != 2 || r.Deploys[1].Status != nightly.Done {
		t.Errorf("%v, %+v", err, r)
	}
	want(t, "in order", limits, []string{"first", ""})
	bad, limits = true, nil
	r, _, err = y.night(nil)
	var coded interface{ ExitCode() int }
	if !errors.As(err, &coded) || coded.ExitCode() != 3 || r.Good {
		t.Error(err)
	}
	want(t, "with a bad canary", limits, []string{"first"})
	if r.Deploys[0].Status != nightly.Failed || r.Deploys[1].Status != nightly.Skipped {
		t.Errorf("%+v", r.Deploys)
	}
}

type nodesError struct{}

func (*nodesError) Error() string { return "1 of 1 nodes not ok" }
func (*nodesError) ExitCode() int { return 3 }
