//go:build linux

package ship_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/fleet/ship"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
	"github.com/dsbuild/dsbuild/internal/testkit/signingtest"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/release/signing"
	"github.com/dsbuild/dsbuild/wheel"
)

// Three nodes of three kinds get two wheels; asked again nothing is built or
// sent, over one connection for each node; and what somebody changed is mended.
func TestShip(t *testing.T) {
	t.Parallel()
	f := newFleet(t, a100, turing, older)
	plan, r, err := f.run(t)
	if err != nil || !r.Consistent || r.Summary.OK != 3 || len(plan.Wheels) != 2 {
		t.Fatalf("%v, %+v", err, r.Summary)
	}
	if !sameNames(plan.Wheels[0].Nodes, "node1", "node2") || !sameNames(plan.Wheels[1].Nodes, "node3") {
		t.Errorf("%v, %v", plan.Wheels[0].Nodes, plan.Wheels[1].Nodes)
	}
	dials, puts := f.dials.count()
	if dials != 3 || len(puts) != 3 || len(f.works.built) != 2 {
		t.Errorf("%d connections, files %q, built %q", dials, puts, f.works.built)
	}
	if !strings.Contains(plan.Wheels[0].Artifact.Manifest.Name, "+torch2.15.cu132.sm75.sm80.") {
		t.Error(plan.Wheels[0].Artifact.Manifest.Name)
	}
	if err := os.RemoveAll(f.dir); err != nil { // the store is enough
		t.Fatal(err)
	}

	f.works.built, f.works.plans = nil, func(string) error { return errors.New("an engine was asked") }
	_, r, err = f.run(t)
	dials, puts = f.dials.count()
	if err != nil || !r.Consistent || len(changed(r)) > 0 || len(f.works.built) > 0 || len(puts) > 0 || dials != 3 {
		t.Errorf("again: %v, changed %q, built %q, %d connections, files %q", err, changed(r), f.works.built, dials, puts)
	}
	var out strings.Builder
	if err := r.Print(&out); err != nil ||
		!strings.HasSuffix(out.String(), "\nnothing to do: 3 nodes already run their wheels\n") {
		t.Errorf("%v\n%s", err, out.String())
	}
	if entries, _ := os.ReadDir(f.dir); len(entries) > 0 {
		t.Errorf("nothing to do, but %s holds %v", f.dir, entries)
	}

	write(t, filepath.Join(f.site(1), "deepspeed", "version.py"), 0o644, "__version__ = 'edited'\n")
	_, r, err = f.run(t)
	if err != nil || !sameNames(changed(r), "node2") || len(f.works.built) > 0 {
		t.Errorf("one was changed by hand: %v, changed %q, built %q", err, changed(r), f.works.built)
	}
}

// testKey signs with a key of the tests.
type testKey struct {
	t   *testing.T
	key ssh.Signer
}

func (k testKey) Sign(message []byte, namespace string) ([]byte, error) {
	return []byte(signingtest.SignWith(k.t, k.key, string(message), namespace)), nil
}

// A wheel that the policy refuses is sent to no node, and the wheel is named as the cause; once it is
// signed, it is deployed from the folder without a build.
func TestShipJudgesWheelsByThePolicy(t *testing.T) {
	t.Parallel()
	f := newFleet(t, a100)
	keys := signingtest.NewKeys(t)
	f.policy = keys.Policy(t, "signers: [{name: ci, key: $a}]")
	plan, r, err := f.run(t)
	n := r.Nodes[0]
	if code(err) != 4 || n.Status != report.Skipped || n.Changed ||
		!strings.Contains(n.Error, "rejected by policy: 0 of 1 required signatures") {
		t.Errorf("unsigned: %v, %+v", err, n)
	}
	if _, puts := f.dials.count(); len(puts) > 0 || len(f.works.built) != 1 || plan.Wheels[0].State != ship.Failed {
		t.Errorf("unsigned: files %q, built %q, %s", puts, f.works.built, plan.Wheels[0].State)
	}

	f.works.built = nil
	f.sign = func(path string) error {
		_, err := signing.Sign(path, testKey{t, keys["a"]})
		return err
	}
	_, r, err = f.run(t)
	if err != nil || !sameNames(changed(r), "node1") || len(f.works.built) > 0 {
		t.Errorf("signed: %v, changed %q, built %q", err, changed(r), f.works.built)
	}
}

// A node whose DeepSpeed has an op that the wheel for it lacks keeps it, unless the user says otherwise.
func TestShipRemovesNoOpUnasked(t *testing.T) {
	t.Parallel()
	f := newFleet(t, a100)
	if _, _, err := f.run(t); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(f.Nodes[0].Dir, "bin", "nvidia-smi"), 0o755, "#!/bin/sh\nexit 9\n")
	f.want.Ops, f.works.built = []string{"async_io"}, nil
	plan, r, err := f.run(t)
	const want = "wheel would remove cpu_adagrad, cpu_adam, cpu_lion, fused_adam, utils from the installed DeepSpeed: no GPU found on the node"
	if err == nil || len(f.works.built)+len(changed(r)) > 0 || len(plan.Excluded) != 1 || plan.Excluded[0].Reasons[0] != want {
		t.Errorf("%v, built %q, changed %q, left out %+v", err, f.works.built, changed(r), plan.Excluded)
	}
	if n := r.Nodes[0]; n.Status != report.Refused || !strings.Contains(n.Hint, "--allow-op-removal") {
		t.Errorf("%s, hint %q", n.Status, n.Hint)
	}

	f.allowOpRemoval = true
	plan, r, err = f.run(t)
	if len(plan.Wheels) != 1 || !slices.Contains(plan.Wheels[0].Why, "removes cpu_adagrad, cpu_adam, cpu_lion, fused_adam, utils from node1") ||
		len(changed(r)) != 1 {
		t.Errorf("with AllowOpRemoval: %v, %+v, changed %q", err, plan.Wheels, changed(r))
	}
}

// An environment has a wheel of DeepSpeed for each machine type, and only nodes that get one decide its kinds of nodes.
func TestWheelsByMachine(t *testing.T) {
	t.Parallel()
	f := newFleet(t, a100, grace)
	f.hosts[1].Env["LD_PRELOAD"] = nodestest.ClaimArm(t)
	f.keep = true
	wheelsOf := func() (s *ship.Ship, names string, err error) {
		t.Helper()
		s = f.ship(t)
		if _, err := s.Survey(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.Build(t.Context())
		paths, err := s.WheelsByMachine()
		for _, path := range paths {
			names += strings.TrimSuffix(path[strings.LastIndexByte(path, '_')+1:], ".whl") + " "
		}
		return s, names, err
	}
	f.want.ABI = wheel.StableABI
	s, names, err := wheelsOf()
	if err != nil || names != "64 aarch64 " || len(s.Served()) != 2 || s.Served()[1].Platform != "linux_aarch64" {
		t.Errorf("%v, %q for %+v; want a wheel for each machine", err, names, s.Served())
	}
	f.want.CPU = wheel.CPUv2
	if s, names, err := wheelsOf(); err != nil || names != "64 " || len(s.Served()) != 1 ||
		s.Served()[0].Platform != "linux_x86_64" {
		t.Errorf("%v, %q for %+v; want that the node of aarch64 is left out", err, names, s.Served())
	}
	f.hosts[1].Env["LD_PRELOAD"] = ""
	f.be(t, 1, older)
	f.want = wheel.Request{ABI: wheel.TorchMinor}
	if _, _, err := wheelsOf(); code(err) != 2 ||
		!strings.Contains(err.Error(), "nodes of x86_64 need different wheels (") || fault.Hint(err) == "" {
		t.Errorf("two wheels for one machine: %v, want a refusal", err)
	}
	f.want = wheel.Request{ABI: wheel.StableABI}
	f.works.plans = func(string) error { return errors.New("no engine") }
	f.fresh = true
	if _, _, err := wheelsOf(); err == nil || !strings.HasSuffix(err.Error(), ": no engine") {
		t.Errorf("a wheel that failed: %v", err)
	}
}

// A build that fails takes its nodes with it, and no others.
func TestShipFailedBuild(t *testing.T) {
	t.Parallel()
	f := newFleet(t, a100, older)
	f.works.during = func(name string) error {
		if strings.Contains(name, "torch2.14") {
			return errors.New("step compile: nvcc gave up\nand much more")
		}
		return nil
	}
	_, r, err := f.run(t)
	n := r.Nodes[1]
	if code(err) != 3 || r.Nodes[0].Status != report.OK || n.Status != report.Skipped || n.Step != "build" ||
		!strings.HasSuffix(n.Error, ": step compile: nvcc gave up") {
		t.Errorf("%v, %+v", err, r.Nodes)
	}
	if g := r.Groups[1]; g.State != string(ship.Failed) || !strings.Contains(g.Error, "and much more") {
		t.Errorf("%+v", g)
	}
	if found, err := filepath.Glob(filepath.Join(f.Nodes[1].Dir, "venv/lib/*/site-packages/.dsbuild")); err != nil || len(found) > 0 {
		t.Error("the node without a wheel was written to")
	}

	f.works.during = func(string) error { return coded{errors.New("not what was asked"), 4} }
	f.fresh = true
	if _, r, err = f.run(t); code(err) != 4 || r.Summary.Skipped != 2 ||
		!strings.Contains(err.Error(), "all 2 wheels failed") {
		t.Errorf("all fail: %v, %+v", err, r.Summary)
	}
}

type coded struct {
	error
	code int
}

func (c coded) ExitCode() int { return c.code }

// The first signal while wheels are built leaves the nodes as they were.
func TestShipInterruptedBuild(t *testing.T) {
	t.Parallel()
	f := newFleet(t, a100)
	stop := errors.New("interrupted (SIGINT)")
	ctx, cancel := context.WithCancelCause(t.Context())
	f.works.during = func(string) error { cancel(stop); return nil }
	s := f.ship(t)
	if _, err := s.Survey(ctx); err != nil {
		t.Fatal(err)
	}
	r, err := s.Run(ctx)
	if !errors.Is(err, stop) || r.Summary.Skipped != 1 || !strings.Contains(r.Nodes[0].Error, stop.Error()) {
		t.Errorf("%v, %+v", err, r.Nodes)
	}
	if _, puts := f.dials.count(); len(puts) > 0 {
		t.Errorf("files %q", puts)
	}
}

// While a wheel is built a node restarts, and another gets a newer torch: the
// first is reached again, the second refused.
func TestShipLooksAgainAfterABuild(t *testing.T) {
	t.Parallel()
	f := newFleet(t, a100, a100)
	f.works.during = func(string) error {
		f.be(t, 1, older)
		return errors.Join(f.Stop(0), f.Start(0))
	}
	_, r, err := f.run(t)
	if code(err) != 3 || r.Nodes[0].Status != report.OK || r.Nodes[1].Status != report.Refused ||
		!strings.Contains(r.Nodes[1].Error, "node has 2.14") ||
		!strings.Contains(r.Nodes[1].Hint, "rerun the command") {
		t.Errorf("%v, %+v", err, r.Nodes)
	}
}

// What is to happen is said beforehand, and nothing of it done: a node whose
// environment cannot be changed gets no wheel built for it.
func TestShipPreview(t *testing.T) {
	t.Parallel()
	f := newFleet(t, a100, older, older)
	f.hosts[1].Python = filepath.Join(f.Nodes[1].Dir, "nowhere")
	f.hosts[2].Port = 1
	s := f.ship(t)
	plan, err := s.Survey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	preview, err := s.Preview(t.Context())
	if code(err) != 3 || len(plan.Wheels) != 1 || plan.Wheels[0].State != ship.ToBuild || len(plan.Excluded) != 2 {
		t.Errorf("%v\n%s", err, strings.Join(plan.Lines(), "\n"))
	}
	var actions []change.Action
	for _, n := range preview.Nodes {
		actions = append(actions, n.Action)
	}
	if !slices.Equal(actions, []change.Action{change.Install, change.Refuse, change.Absent}) || len(f.works.built) > 0 {
		t.Errorf("%q, built %q", actions, f.works.built)
	}
	if lines := strings.Join(plan.Lines(), "\n"); !strings.HasPrefix(lines, "3 nodes, 1 wheel: 1 to build\n") ||
		!strings.Contains(lines, "\nexcluded\n  node2: no usable Python") {
		t.Error(lines)
	}

	f.want.Torch = "2.99"
	if _, r, err := f.run(t); code(err) != 3 || r.Summary.Refused != 2 { // and one is not reached
		t.Errorf("no wheel for anybody: %v, %+v", err, r.Summary)
	}
	f.hosts = f.hosts[:1]
	if _, r, err := f.run(t); code(err) != 2 || r.Summary.Refused != 1 {
		t.Errorf("no wheel for what was asked: %v, %+v", err, r.Summary)
	}
}

// Without an engine, a preview knows the wheel that this machine has built, as the run does.
func TestPreviewFindsTheWheelOfThisMachine(t *testing.T) {
	t.Parallel()
	f := newFleet(t, a100)
	states := func() (ship.State, wheel.Request) {
		plan, err := f.ship(t).Survey(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return plan.Wheels[0].State, plan.Wheels[0].Request
	}
	f.works.here = true
	state, request := states()
	if state != ship.ToBuild {
		t.Fatalf("an empty cache: %s, want %s", state, ship.ToBuild)
	}
	p, err := f.works.Plan(t.Context(), "", request) // as dsbuild wheel does, which knows no nodes
	if err == nil {
		_, err = f.works.make(p)
	}
	if err := errors.Join(err, os.RemoveAll(f.dir)); err != nil {
		t.Fatal(err)
	}
	if state, _ := states(); state != ship.Stored {
		t.Errorf("without an engine: %s, want %s", state, ship.Stored)
	}
	f.works.here = false
	if state, _ := states(); state != ship.ToBuild {
		t.Errorf("with an engine: %s, want %s", state, ship.ToBuild)
	}
}

// Where the wheels alone are wanted the nodes stay as they are, and each wheel
// lies where it is wanted: from the store, too.
func TestWheelsAlone(t *testing.T) {
	t.Parallel()
	f := newFleet(t, a100, older)
	f.keep = true
	for _, builds := range []int{2, 0} {
		f.works.built = nil
		s := f.ship(t)
		plan, err := s.Survey(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		s.Build(t.Context())
		if plan.Err() != nil || len(f.works.built) != builds {
			t.Errorf("%v, built %q", plan.Err(), f.works.built)
		}
		for _, w := range plan.Wheels {
			if _, err := os.Stat(w.Artifact.Path); err != nil || filepath.Dir(w.Artifact.Path) != f.dir {
				t.Errorf("%s: %q, %v", w.Name, w.Artifact.Path, err)
			}
		}
		if err := os.RemoveAll(f.dir); err != nil {
			t.Fatal(err)
		}
	}
	if _, puts := f.dials.count(); len(puts) > 0 {
		t.Errorf("files %q", puts)
	}
}

// What a node lacks is gathered once, for those nodes alone that lack it.
func TestShipGathersWhatNodesLack(t *testing.T) {
	t.Parallel()
	f := newFleet(t, a100)
	house := t.TempDir()
	wheeltest.Write(t, filepath.Join(house, "extra-1.2-py3-none-any.whl"), map[string]string{
		"extra.py":                     "x = 1\n",
		"extra-1.2.dist-info/METADATA": "Metadata-Version: 2.1\nName: extra\nVersion: 1.2\n",
		"extra-1.2.dist-info/WHEEL":    "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
	})
	gathered := 0
	f.works.requires = []string{"extra>=1"}
	f.works.bundle = func(_ context.Context, _ string, p *pipeline.Plan, a wheel.Artifact) (*wheel.Bundle, error) {
		gathered++
		if _, err := os.Stat(a.Path); err != nil || p.Base.Digest == "" {
			t.Errorf("a wheelhouse for %q of a plan on %+v", a.Path, p.Base)
		}
		if _, err := wheel.WriteBundle(t.Context(), house, "3.11", nil); err != nil {
			return nil, err
		}
		b, err := wheel.ReadBundle(t.Context(), house)
		return &b, err
	}
	_, r, err := f.run(t)
	if err != nil || gathered != 1 || !slices.Equal(r.Nodes[0].ExtraWheels, []string{"extra 1.2"}) {
		t.Errorf("%v, gathered %d times, along %q", err, gathered, r.Nodes[0].ExtraWheels)
	}
	_, r, err = f.run(t)
	if err != nil || gathered != 1 || len(changed(r)) > 0 {
		t.Errorf("again: %v, gathered %d times, changed %q", err, gathered, changed(r))
	}

	if err := os.RemoveAll(filepath.Join(f.site(0), "extra-1.2.dist-info")); err != nil {
		t.Fatal(err)
	}
	s := f.ship(t)
	if _, err := s.Survey(t.Context()); err != nil {
		t.Fatal(err)
	}
	if preview, err := s.Preview(t.Context()); err != nil || preview.Nodes[0].Action != change.Install || gathered != 1 {
		t.Errorf("preview: %v, %+v", err, preview.Nodes[0])
	}
	f.works.bundle = func(context.Context, string, *pipeline.Plan, wheel.Artifact) (*wheel.Bundle, error) {
		return nil, errors.New("no index answers")
	}
	f.force = true // the wheel is there already
	if _, r, err := f.run(t); code(err) != 3 || r.Nodes[0].Status != report.Refused ||
		!strings.Contains(r.Nodes[0].Error, "extra>=1") {
		t.Errorf("no wheelhouse: %v, %+v", err, r.Nodes[0])
	}
}

// Nodes with torches for CUDA 12 and 13 need two wheels, and one of the stable ABI, which has code for both. A node whose torch is
// too old for that is left out; without --abi it has a wheel of its own.
func TestShipByABI(t *testing.T) {
	t.Parallel()
	f := newFleet(t, a100, volta, oldest)
	f.want.Ops, f.want.ABI = []string{"cpu_adam", "fused_adam"}, wheel.StableABI
	plan, r, err := f.run(t)
	if code(err) != 3 || len(plan.Wheels) != 1 || plan.Wheels[0].Name != "py3-torch2.10" ||
		!sameNames(plan.Wheels[0].Nodes, "node1", "node2") || r.Summary.OK != 2 {
		t.Fatalf("stable: %v, %+v\n%s", err, r.Summary, strings.Join(plan.Lines(), "\n"))
	}
	if g := r.Groups[0]; g.Torch != "2.10" || g.Python != "3.10+" || g.CUDA != "12, 13" || g.State != string(ship.Built) ||
		!slices.Contains(g.Archs, "7.0") || !slices.Contains(g.Archs, "12.0+PTX") || !strings.Contains(g.Wheel, "-py3-none-") {
		t.Errorf("%+v", g)
	}
	if n := r.Nodes[2]; n.Status != report.Refused ||
		!strings.Contains(n.Error, "built for torch 2.10 or newer, but this node has 2.9") ||
		!strings.Contains(n.Hint, "omit --abi stable to get torch 2.9.1 for CUDA ") {
		t.Errorf("%+v", n)
	}

	// By default only torch 2.9 has a wheel of its own.
	for abi, want := range map[wheel.ABI]int{"": 2, wheel.TorchMinor: 3} {
		f.want.ABI = abi
		if plan, err := f.ship(t).Survey(t.Context()); err != nil || len(plan.Wheels) != want {
			t.Errorf("--abi %q: %v, %d wheels, want %d", abi, err, len(plan.Wheels), want)
		}
	}
}
