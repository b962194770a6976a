//go:build linux

package envdeploy_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/internal/testkit/wheelindex"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/inventory"
	"github.com/dsbuild/dsbuild/wheel"
)

// siteOfBothMachines is a site with wheels for both machines, and the text of an environment that has them.
func siteOfBothMachines(t *testing.T) (x *site, text string) {
	t.Helper()
	x = newSite(t)
	x.AddUV(t, "manylinux_2_17_aarch64")
	var wheels []string
	for machine, cpu := range map[string]wheel.CPULevel{wheel.X86: wheel.CPUv2, wheel.Arm: wheel.CPUArm} {
		x.Add(t, wheelindex.Wheel{Name: "native", Version: "1", Tag: "cp311-cp311-manylinux_2_17_" + machine, Files: map[string]string{"native/machine.py": "name = '" + machine + "'\n"}})
		wheels = append(wheels, filepath.Base(wheeltest.Packed(t, x.dir, wheeltest.Options{
			CPU: cpu, Ops: []wheeltest.Op{{Name: "cpu_adam", Dir: "adam"}}, Files: wheeltest.LoadedByPython(),
		})))
	}
	return x, "name: train\npython: 3.11\ntorch: 2.15.0\ndeepspeed: [" + strings.Join(wheels, ", ") + "]\nrequirements: [alpha, native]\n"
}

const bothMachines = "nodes: [{machine: x86_64, glibc: 2.28}, {machine: aarch64, glibc: 2.28}]\n"

// Each node gets the environment of its machine: uv's wheel, DeepSpeed's and those of the index. A node of a machine that
// the lock does not have is refused in one line, and nothing is sent to it.
func TestNodesOfBothMachines(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	x, text := siteOfBothMachines(t)
	l, files := x.lock(t, text+bothMachines)
	h1, s1 := host(t, "gpu1", sshtest.Options{})
	h2, s2 := host(t, "gh1", sshtest.Options{Env: []string{"LD_PRELOAD=" + nodestest.ClaimArm(t)}})
	servers := []*sshtest.Server{s1, s2}
	opt := options(t, l, files, servers, h1, h2)
	r := run(t, t.Context(), opt)
	if r.Err() != nil || !r.Consistent {
		t.Fatalf("%v, %+v", r.Err(), r.Differences)
	}
	for i, machine := range []string{wheel.X86, wheel.Arm} {
		n, set := r.Nodes[i], l.Sets[1-i]
		want := machine + " " + set.File("deepspeed").Version
		if got := python(t, servers[i], "import native.machine, deepspeed; print(native.machine.name, deepspeed.__version__)"); got != want {
			t.Errorf("%s has %s, want %s", n.Name, got, want)
		}
		if n.Environment.Digest != set.Digest || n.Sent != set.Size()+set.Installer.Size || !strings.HasSuffix(n.Wheel, "_"+machine+".whl") || !strings.HasSuffix(set.Installer.File, "_"+machine+".whl") {
			t.Errorf("%s: %+v, %d bytes; want the set of %s", n.Name, n.Environment, n.Sent, set.Platform)
		}
	}
	if r := run(t, t.Context(), opt); r.Err() != nil || r.Nodes[0].Changed || r.Nodes[1].Changed || r.Nodes[0].Sent+r.Nodes[1].Sent > 0 {
		t.Errorf("a second run: %v", r.Err())
	}
	if r := look(t, opt); r.Err() != nil {
		t.Errorf("verify: %v", r.Err())
	}

	opt.Lock, opt.Files = x.lock(t, text+"nodes: [{glibc: 2.28}]\n")
	opt.Force = true
	r = run(t, t.Context(), opt)
	n := r.Nodes[1]
	if r.Nodes[0].Status != report.OK || n.Status != report.Refused || n.Sent > 0 || n.Changed || n.Hint == "" || strings.Contains(n.Error, "\n") ||
		!strings.Contains(n.Error, "lockfile has no files for linux_aarch64") {
		t.Errorf("a lock for x86_64 alone: %+v, want that gh1 is refused", r.Nodes)
	}
}

// Nodes of two machines that share a home cannot have the same environment there: both are refused, or the one that does not have
// its own yet. Another home is no obstacle.
func TestNodesOfBothMachinesWithOneHome(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	x, text := siteOfBothMachines(t)
	l, files := x.lock(t, text+bothMachines)
	home, arm := t.TempDir(), []string{"LD_PRELOAD=" + nodestest.ClaimArm(t)}
	h1, s1 := host(t, "gpu1", sshtest.Options{Home: home})
	h2, s2 := host(t, "gh1", sshtest.Options{Home: home, Env: arm})
	h3, s3 := host(t, "gh2", sshtest.Options{Env: arm})
	opt := options(t, l, files, []*sshtest.Server{s1, s2, s3}, h1, h2, h3)
	const why = "shares the environments' directory with g"
	r := run(t, t.Context(), opt)
	for _, n := range r.Nodes[:2] {
		if n.Status != report.Refused || n.Sent > 0 || !strings.Contains(n.Error, why) || !strings.Contains(n.Hint, "folder:") {
			t.Errorf("neither has one: %+v, want that it is refused", n)
		}
	}
	if r.Nodes[2].Status != report.OK || current(t, s1) != "" {
		t.Errorf("gh2 is %s, current is %s", r.Nodes[2].Status, current(t, s1))
	}
	opt.Hosts = []inventory.Host{h1}
	if r := run(t, t.Context(), opt); r.Err() != nil {
		t.Fatal(r.Err())
	}
	first := current(t, s1)
	opt.Hosts = []inventory.Host{h1, h2, h3}
	r = run(t, t.Context(), opt)
	if r.Nodes[0].Status != report.OK || r.Nodes[1].Status != report.Refused || !strings.Contains(r.Nodes[1].Error, why) || r.Nodes[2].Status != report.OK || current(t, s1) != first {
		t.Errorf("gpu1 has one: %+v, want that gh1 is refused", r.Nodes)
	}
	// Where neither is there yet, both are refused.
	x.Add(t, wheelindex.Wheel{Name: "alpha", Version: "1.1"})
	opt.Lock, opt.Files = x.lock(t, text+bothMachines)
	r = run(t, t.Context(), opt)
	if r.Nodes[0].Status != report.Refused || r.Nodes[1].Status != report.Refused || r.Nodes[2].Status != report.OK || current(t, s1) != first {
		t.Errorf("%+v, want that gpu1 and gh1 are refused", r.Nodes)
	}
}
