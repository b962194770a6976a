//go:build linux

package deploy_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/fleet/verify"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/built"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
	"github.com/dsbuild/dsbuild/wheel"
)

func realOptions(t *testing.T, up *nodes.Fleet, wheels []wheel.Loaded) deploy.Options {
	t.Helper()
	inv, err := inventory.Open(t.Context(), up.Inventory, inventory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return deploy.Options{
		Options: fleet.Options{
			Hosts:      inv.Hosts,
			KnownHosts: inv.KnownHosts,
			By:         "tester",
			Dialer:     remote.NewSSH(remote.Options{Config: remote.NoConfig, AgentSocket: "none", Timeout: time.Minute}),
			Reporter:   ui.New(testWriter{t}, ui.Options{}),
		},
		Verify: verify.LevelLoad,
		Wheels: wheels,
	}
}

// TestRealDeploy deploys the real wheel to two OpenSSH nodes with the real torch. A third one's torch is too old. To load torch and all
// ops takes seconds of CPU, so a run does it only where it is what the run shows.
func TestRealDeploy(t *testing.T) {
	t.Parallel()
	wheels := load(t, built.Wheel(t))
	if m := wheels[0].Manifest; wheel.KindOf(m) != wheel.KindComplete || !m.TorchABI.IsStable() || m.TorchABI.Min != "2.10" || !slices.Contains(wheels[0].Requires, "torch>=2.10") {
		t.Errorf("%s: %+v, requires %q", m.Name, m.TorchABI, wheels[0].Requires)
	}
	up := nodestest.Up(t, nodes.Options{Count: 3, Env: nodes.WithTorch, Each: map[int]nodes.Env{2: nodes.FakeTorch}})
	opt := realOptions(t, up, wheels)
	all := opt.Hosts
	t.Run("BundleWithNoRoute", func(t *testing.T) { deployWithNoRoute(t, up, opt) })

	r := run(t, context.Background(), opt)
	for i, n := range r.Nodes {
		switch {
		case i < 2 && (n.Status != report.OK || !n.Changed || n.After == nil || n.After.SHA256 != wheels[0].Manifest.SHA256):
			t.Errorf("%s: %+v", n.Name, n)
		case i == 2 && (n.Status != report.Refused || n.Sent > 0 || !strings.Contains(n.Error, "built for torch 2.10 or newer, but this node has "+xy(nodes.FakeTorchVersion)) || n.Hint == ""):
			t.Errorf("%s: %+v", n.Name, n)
		}
	}
	if code(r.Err()) != 3 {
		t.Errorf("error %v", r.Err())
	}
	if found, err := filepath.Glob(filepath.Join(filepath.Dir(up.Nodes[2].Python), "../lib/*/site-packages/.dsbuild")); err != nil || len(found) > 0 {
		t.Error("the refused node was written to")
	}

	opt.Hosts, opt.Verify = all[:2], verify.LevelFiles
	count := &sshtest.CountingDialer{Dialer: opt.Dialer}
	opt.Dialer = count
	r = run(t, context.Background(), opt)
	if r.Err() != nil || !r.Consistent || count.Puts.Load() != 0 {
		t.Errorf("second run: %v, consistent %v, %d files sent", r.Err(), r.Consistent, count.Puts.Load())
	}
	for _, n := range r.Nodes {
		if n.Changed {
			t.Errorf("second run changed %s", n.Name)
		}
	}
	var out strings.Builder
	if err := r.Print(&out); err != nil || !strings.Contains(out.String(), "2 nodes ok, all equal: deepspeed "+wheels[0].Version) {
		t.Errorf("%v\n%s", err, out.String())
	}

	verifyReal(t, up, opt)

	if err := up.Rekey(1); err != nil {
		t.Fatal(err)
	}
	r = run(t, context.Background(), realOptionsOf(t, opt, up))
	if n := r.Nodes[1]; n.Status != report.Unreachable || n.Step != "connect" || !strings.Contains(n.Error, "host key") {
		t.Errorf("changed host key: %+v", n)
	}
	if code(r.Err()) != 3 || r.Summary.OK != 1 {
		t.Errorf("changed host key: %v, %+v", r.Err(), r.Summary)
	}
}

// realOptionsOf are the same options with a dialer that has read no keys before.
func realOptionsOf(t *testing.T, opt deploy.Options, up *nodes.Fleet) deploy.Options {
	t.Helper()
	fresh := realOptions(t, up, opt.Wheels)
	fresh.Hosts, fresh.Verify = opt.Hosts, opt.Verify
	return fresh
}

// TestRealNodePutsItselfBack breaks the connection to an OpenSSH node in the
// middle of an installation, as a killed controller would.
func TestRealNodePutsItselfBack(t *testing.T) {
	t.Parallel()
	up := nodestest.Up(t, nodes.Options{Count: 1, Env: nodes.FakeTorch})
	python := up.Nodes[0].Python
	dir := filepath.Dir(filepath.Dir(python))
	sites, _ := filepath.Glob(filepath.Join(dir, "lib", "python3*", "site-packages"))
	if len(sites) != 1 {
		t.Fatalf("site-packages: %q", sites)
	}
	e := environment{dir, python, sites[0]}
	e.dist(t, "einops", "0.8.0")
	started, _ := e.hook(t, "time.sleep(60)")
	was := e.snapshot(t)
	opt := realOptions(t, up, load(t, makeWheel(t, t.TempDir(), fakeTorchWheel())))
	dialer := &lastConn{Dialer: opt.Dialer}
	opt.Dialer = dialer
	go func() {
		waitFor(t, "pip starts", exists(started))
		dialer.conn.Close() //nolint:errcheck // the point is that it breaks
	}()
	r := run(t, context.Background(), opt)
	if n := r.Nodes[0]; n.Status != report.Failed || n.Step != "install" {
		t.Errorf("%+v", n)
	}
	waitFor(t, "the node tidies up", func() bool { return slices.Equal(e.leftovers(t), []string{"inbox"}) }) // what has arrived stays
	e.mustBe(t, was)
}

// TestRealNodesGetAnotherWheel deploys two wheels, one after the other, to OpenSSH nodes.
func TestRealNodesGetAnotherWheel(t *testing.T) {
	t.Parallel()
	up := nodestest.Up(t, nodes.Options{Count: 2, Env: nodes.FakeTorch})
	var envs []environment
	for _, n := range up.Nodes {
		e := environment{filepath.Dir(filepath.Dir(n.Python)), n.Python, siteOf(t, n.Python)}
		e.dist(t, "einops", "0.8.0")
		envs = append(envs, e)
	}
	for _, version := range []string{"0.19.7", "0.19.8"} {
		wheels := withCode(t, fakeTorchWheel(), version)
		r := run(t, context.Background(), realOptions(t, up, wheels))
		if r.Err() != nil || !r.Consistent {
			t.Error(r.Err())
		}
		for i, n := range r.Nodes {
			if n.Status != report.OK || n.Sent < bytesWithCode(t, wheels[0]) {
				t.Errorf("%+v", n)
			}
			if got := envs[i].version(t); got != wheels[0].Version {
				t.Errorf("an import finds %q", got)
			}
			if left := envs[i].leftovers(t); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		}
	}
}

// lastConn remembers the connection it made.
type lastConn struct {
	remote.Dialer
	conn remote.Conn
}

func (d *lastConn) Dial(ctx context.Context, t remote.Target) (remote.Conn, error) {
	c, err := d.Dialer.Dial(ctx, t)
	d.conn = c
	return c, err
}

// deployWithNoRoute fills the first node, which lacks some of what DeepSpeed
// requires, from a wheelhouse of the index's own wheels, and rolls back. Everything the node runs
// is in a network namespace of its own, in which there is no way out. The node is as before then.
func deployWithNoRoute(t *testing.T, up *nodes.Fleet, opt deploy.Options) {
	python := up.Nodes[0].Python
	site := siteOf(t, python)
	version := strings.TrimPrefix(filepath.Base(filepath.Dir(site)), "python")
	house := t.TempDir()
	download := exec.CommandContext(t.Context(), "python3", "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:",
		"--python-version", version, "--dest", house, "hjson", "ninja", "pydantic", "annotated-types")
	if out, err := download.CombinedOutput(); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("%v\n%s", err, out)
		}
		t.Skipf("needs an index: %v\n%s", err, out)
	}
	bundle, err := wheel.WriteBundle(t.Context(), house, version, nil)
	if err != nil {
		t.Fatal(err)
	}
	aside := map[string]string{}
	for _, name := range []string{"hjson", "ninja"} {
		found, _ := filepath.Glob(filepath.Join(site, name+"*"))
		if len(found) < 2 {
			t.Fatalf("%s was not there: %v", name, found)
		}
		// A command that no package owns would be refused.
		for _, f := range append(found, filepath.Join(filepath.Dir(python), name)) {
			aside[f] = filepath.Join(up.Dir, "aside-"+strconv.Itoa(len(aside)))
			if err := os.Rename(f, aside[f]); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
		}
	}
	defer func() {
		for f, kept := range aside {
			if err := os.Rename(kept, f); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Error(err)
			}
		}
	}()

	opt.Hosts, opt.Verify = slices.Clone(opt.Hosts[:1]), verify.LevelFiles
	opt.Hosts[0].ExecPrefix = []string{"unshare", "--user", "--map-root-user", "--net"}
	reach := exec.CommandContext(t.Context(), "unshare", "--user", "--map-root-user", "--net", python, "-c", "import socket; socket.create_connection(('192.0.2.1', 443), 5)")
	if out, err := reach.CombinedOutput(); err == nil || !strings.Contains(string(out), "Network is unreachable") {
		t.Fatalf("the node has a way out, or no namespace: %v\n%s", err, out)
	}
	if n := run(t, context.Background(), opt).Nodes[0]; n.Status != report.Refused || !strings.Contains(n.Error, "missing requirements: hjson, ninja") {
		t.Errorf("without the bundle: %+v", n)
	}
	opt.Bundle = &bundle
	r := run(t, context.Background(), opt)
	if n := r.Nodes[0]; r.Err() != nil || !n.Changed || len(n.ExtraWheels) != 2 || !strings.HasPrefix(n.ExtraWheels[0], "hjson ") || !strings.HasPrefix(n.ExtraWheels[1], "ninja ") {
		t.Errorf("%v: %+v", r.Err(), n)
	}
	if r = back(t, opt); r.Err() != nil {
		t.Errorf("rollback: %v", r.Err())
	}
	if left, _ := filepath.Glob(filepath.Join(site, "hjson*")); len(left) > 0 {
		t.Errorf("after the rollback there is %v", left)
	}
}

func siteOf(t *testing.T, python string) string {
	t.Helper()
	sites, _ := filepath.Glob(filepath.Join(filepath.Dir(filepath.Dir(python)), "lib", "python3*", "site-packages"))
	if len(sites) != 1 {
		t.Fatalf("site-packages: %q", sites)
	}
	return sites[0]
}

// xy is X.Y of X.Y.Z.
func xy(version string) string { return version[:strings.LastIndex(version, ".")] }
