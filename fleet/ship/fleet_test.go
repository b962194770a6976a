//go:build linux

package ship_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/fleet/ship"
	"github.com/dsbuild/dsbuild/fleet/verify"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/release/signing"
	"github.com/dsbuild/dsbuild/wheel"
)

// kind is what a test node is: the stub of a torch, and a GPU that nvidia-smi
// names.
type kind struct{ torch, cuda, gpu string }

// The kinds of nodes of these tests.
var (
	a100   = kind{"2.15.0", "13.2", "NVIDIA A100-SXM4-80GB, 8.0, 580.65.06"}
	turing = kind{"2.15.0", "13.2", "NVIDIA GeForce RTX 2080 Ti, 7.5, 580.65.06"}
	grace  = kind{"2.15.0", "13.2", "NVIDIA GH200 480GB, 9.0, 580.65.06"}
	older  = kind{"2.14.1", "13.0", "NVIDIA A100-SXM4-80GB, 8.0, 580.65.06"}
	volta  = kind{"2.10.0", "12.8", "Tesla V100-SXM2-32GB, 7.0, 550.54.15"}
	oldest = kind{"2.9.1", "12.8", "NVIDIA A100-SXM4-80GB, 8.0, 580.65.06"}
)

// testFleet is some real OpenSSH nodes, and all that a run needs of this machine.
type testFleet struct {
	*nodes.Fleet
	hosts []inventory.Host
	known string
	dials dialer
	works *works
	store pipeline.Store
	dir   string
	want  wheel.Request
	fresh bool
	keep  bool
	force bool
	// allowOpRemoval is ship.Options.AllowOpRemoval.
	allowOpRemoval bool

	policy *signing.Policy
	sign   func(path string) error
}

func newFleet(t *testing.T, kinds ...kind) *testFleet {
	t.Helper()
	up := nodestest.Up(t, nodes.Options{Count: len(kinds), Env: nodes.FakeTorch, QuickPip: true})
	inv, err := inventory.Open(t.Context(), up.Inventory, inventory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	f := &testFleet{Fleet: up, hosts: inv.Hosts, known: inv.KnownHosts, works: newWorks(t), dir: t.TempDir()}
	f.want.ABI = wheel.TorchMinor // so that nodes of several torches need several wheels
	f.store = pipeline.Store{Dir: filepath.Join(t.TempDir(), "wheels"), Keep: 10}
	f.works.fleet = f
	for i, k := range kinds {
		f.be(t, i, k)
		bin := filepath.Join(up.Nodes[i].Dir, "bin")
		f.hosts[i].Env = map[string]string{"PATH": bin + ":/usr/local/bin:/usr/bin:/bin"}
	}
	f.dials.Dialer = remote.NewSSH(remote.Options{Config: remote.NoConfig, AgentSocket: "none", Timeout: time.Minute})
	return f
}

// be makes a node one of this kind.
func (f *testFleet) be(t *testing.T, i int, k kind) {
	t.Helper()
	version := fmt.Sprintf("__version__ = '%s+cu%s'\ncuda = '%s'\nhip = None\n",
		k.torch, strings.ReplaceAll(k.cuda, ".", ""), k.cuda)
	write(t, filepath.Join(f.site(i), "torch", "version.py"), 0o644, version)
	dists, _ := filepath.Glob(filepath.Join(f.site(i), "torch-*.dist-info"))
	for _, d := range dists {
		if err := os.RemoveAll(d); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(f.site(i), "torch-"+k.torch+".dist-info", "METADATA"), 0o644,
		"Metadata-Version: 2.1\nName: torch\nVersion: "+k.torch+"\n")
	write(t, filepath.Join(f.Nodes[i].Dir, "bin", "nvidia-smi"), 0o755, "#!/bin/sh\necho '"+k.gpu+"'\n")
}

func (f *testFleet) site(i int) string {
	return filepath.Join(f.Nodes[i].Dir, "venv", "lib", "python3.11", "site-packages")
}

func write(t *testing.T, path string, mode os.FileMode, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// ship prepares a run over the fleet.
func (f *testFleet) ship(t *testing.T) *ship.Ship {
	t.Helper()
	rep := ui.New(testWriter{t}, ui.Options{})
	d := deploy.New(deploy.Options{
		Options: fleet.Options{
			Hosts:      f.hosts,
			KnownHosts: f.known,
			Dialer:     &f.dials,
			Reporter:   rep,
			Forks:      4,
			By:         "tester",
		},
		Verify: verify.LevelLoad,
		Rules:  change.Rules{Force: f.force, Policy: f.policy},

		VerifyUnchanged: verify.LevelFiles,
	})
	t.Cleanup(d.Close)
	return ship.New(d, ship.Options{
		Want: f.want, Plans: f.works, SketchHere: f.works.SketchHere, Build: f.works.build, Bundle: f.works.bundle, Store: f.store, Dir: f.dir,
		Fresh: f.fresh, BuildOnly: f.keep, Sign: f.sign, AllowOpRemoval: f.allowOpRemoval, Report: rep,
	})
}

// run takes a run through all its stages.
func (f *testFleet) run(t *testing.T) (*ship.Selection, *report.Report, error) {
	t.Helper()
	s := f.ship(t)
	plan, err := s.Survey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range plan.Lines() {
		t.Log(line)
	}
	r, err := s.Run(t.Context())
	var out strings.Builder
	if err := r.Print(&out); err != nil {
		t.Fatal(err)
	}
	t.Log("\n"+out.String(), err)
	return plan, r, err
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Logf("%s", b)
	return len(b), nil
}

// dialer counts connections and files.
type dialer struct {
	remote.Dialer
	mu    sync.Mutex
	dials int
	puts  []string
}

func (d *dialer) Dial(ctx context.Context, t remote.Target) (remote.Conn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dials++
	c, err := d.Dialer.Dial(ctx, t)
	if err != nil {
		return nil, err
	}
	return conn{c, d}, nil
}

type conn struct {
	remote.Conn
	dialer *dialer
}

func (c conn) Put(ctx context.Context, up remote.Upload) error {
	c.dialer.mu.Lock()
	c.dialer.puts = append(c.dialer.puts, filepath.Base(up.Path))
	c.dialer.mu.Unlock()
	return c.Conn.Put(ctx, up)
}

// count returns what has been counted, and starts again.
func (d *dialer) count() (dials int, puts []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	dials, puts = d.dials, d.puts
	d.dials, d.puts = 0, nil
	return dials, puts
}

// hereDigest is the base of wheels that are built without an engine.
const hereDigest = "sha256:here"

// works plans wheels for real, and builds small ones that say what was planned.
// It is a ship.Planner.
type works struct {
	t      *testing.T
	fleet  *testFleet
	tables *compat.Tables
	asked  int      // plans made without an engine
	here   bool     // there is no engine
	built  []string // names of wheels, in order
	plans  func(name string) error
	during func(name string) error

	requires []string // of every wheel
	bundle   func(context.Context, string, *pipeline.Plan, wheel.Artifact) (*wheel.Bundle, error)
}

func newWorks(t *testing.T) *works {
	t.Helper()
	tables, err := compat.NewTables()
	if err != nil {
		t.Fatal(err)
	}
	good := func(string) error { return nil }
	return &works{t: t, tables: tables, plans: good, during: good}
}

// resolve is a plan for an image, of which an engine alone knows the digest.
func (w *works) resolve(r wheel.Request, digest string) (*pipeline.Plan, error) {
	tc, err := w.tables.Resolve(r)
	if err != nil {
		return nil, err
	}
	packages, _ := pipeline.LockedPackages(tc)
	parts := []pipeline.Part{{Toolchain: tc, Packages: packages}}
	for _, further := range w.tables.Variants(r, tc) {
		packages, _ := pipeline.LockedPackages(further)
		parts = append(parts, pipeline.Part{Toolchain: further, Packages: packages})
	}
	return pipeline.NewPlan(parts, pipeline.Release(tc.DeepSpeed, tc.Source),
		pipeline.Base{Ref: tc.Environment.Ref, Digest: digest}, false)
}

// Group implements ship.Planner.
func (w *works) Group(_ context.Context, nodes []compat.Member, r wheel.Request) compat.Grouping {
	return w.tables.Group(nodes, r)
}

// Sketch implements ship.Planner.
func (w *works) Sketch(_ context.Context, r wheel.Request) (*pipeline.Plan, error) {
	w.asked++
	p, err := w.resolve(r, "")
	if err != nil {
		return nil, err
	}
	p.Key = pipeline.KeyOf(p, "auto")
	return p, nil
}

// SketchHere plans a wheel for this machine.
func (w *works) SketchHere(_ context.Context, r wheel.Request) *pipeline.Plan {
	if !w.here {
		return nil
	}
	p, err := w.resolve(r, hereDigest)
	if err != nil {
		w.t.Error(err)
	}
	return p
}

// Plan implements ship.Planner.
func (w *works) Plan(_ context.Context, name string, r wheel.Request) (*pipeline.Plan, error) {
	if err := w.plans(name); err != nil {
		return nil, err
	}
	digest := "sha256:" + strings.Repeat("ab", 32)
	if w.here {
		digest = hereDigest
	}
	p, err := w.resolve(r, digest)
	if err == nil {
		p.Name = name
	}
	return p, err
}

func (w *works) build(ctx context.Context, plans []*pipeline.Plan) []pipeline.Result {
	results := make([]pipeline.Result, len(plans))
	for i, p := range plans {
		results[i].Plan = p
		w.built = append(w.built, p.Name)
		if results[i].Err = w.during(p.Name); results[i].Err == nil && ctx.Err() != nil {
			results[i].Err = context.Cause(ctx)
		}
		if results[i].Err == nil {
			results[i].Artifact, results[i].Err = w.make(p)
		}
	}
	return results
}

// make packs a wheel of a plan. Its ops are written in Python; an audit and the compatibility with nodes look at their
// shared objects.
func (w *works) make(p *pipeline.Plan) (wheel.Artifact, error) {
	tc := p.Toolchain()
	var ops []wheeltest.Op
	for _, o := range tc.Ops {
		op := wheeltest.Op{Name: o.Name, Dir: "adam"}
		if tc.ABI == wheel.StableABI {
			op.Imports = []string{"torch_library_impl"}
		}
		if o.DeviceCode {
			op.SASS = wheel.Capabilities(o.Archs, false)
		}
		whole := len(ops)
		for _, v := range p.Manifest.Variants {
			if slices.Contains(v.Ops, o.Name) {
				build := op
				build.Variant, build.Runtime, build.SASS, build.PTX = v.Name, v.CUDA, v.Archs, v.PTX
				ops = append(ops, build)
			}
		}
		if len(ops) == whole { // without variants
			ops = append(ops, op)
		}
	}
	opt := wheeltest.Options{
		Version: tc.DeepSpeed, Python: "cp" + strings.ReplaceAll(tc.Python, ".", ""),
		Torch: tc.Torch, CUDA: tc.CUDA, CPU: tc.CPU, Plan: p.Digest,
		Variants: p.Manifest.Variants, Ops: ops, Requires: w.requires, Files: wheeltest.LoadedByPython(tc.OpNames(false)...),
	}
	if tc.ABI == wheel.StableABI {
		opt.Stable = compat.StableTorch
	}
	file, m, statement := wheeltest.Built(w.t, w.t.TempDir(), opt)
	a, err := pipeline.Export(w.t.Context(), pipeline.StoredWheel{File: file, Manifest: m, Provenance: statement}, w.fleet.dir)
	if err != nil {
		return a, err
	}
	if err := w.fleet.store.Put(w.t.Context(), p.Digest, a); err != nil {
		return a, err
	}
	return a, w.fleet.store.LinkKey(w.t.Context(), p.Key, p.Digest)
}

// code is the exit code that an error asks for.
func code(err error) int {
	var c interface{ ExitCode() int }
	switch {
	case err == nil:
		return 0
	case errors.As(err, &c):
		return c.ExitCode()
	}
	return 1
}

// changed are the nodes that a run changed.
func changed(r *report.Report) []string {
	var names []string
	for _, n := range r.Nodes {
		if n.Changed {
			names = append(names, n.Name)
		}
	}
	return names
}

func sameNames(got []string, want ...string) bool { return slices.Equal(got, want) }
