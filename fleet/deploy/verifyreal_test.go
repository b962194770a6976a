//go:build linux

package deploy_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/fleet/verify"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
)

// placesOf are the folders of real nodes in which a verification must leave no
// trace: environment, home and temporary folder.
func placesOf(fleet *nodes.Fleet) []string {
	var places []string
	for _, n := range fleet.Nodes {
		places = append(places, filepath.Dir(filepath.Dir(n.Python)), n.Home, filepath.Join(n.Dir, "tmp"))
	}
	return places
}

// TestRealVerify edits one file of the package by hand on one of four OpenSSH
// nodes, and takes DeepSpeed from another.
func TestRealVerify(t *testing.T) {
	t.Parallel()
	fleet := nodestest.Up(t, nodes.Options{Count: 4, Env: nodes.FakeTorch})
	for _, n := range fleet.Nodes {
		environment{site: siteOf(t, n.Python)}.dist(t, "einops", "0.8.0")
	}
	opt := realOptions(t, fleet, load(t, makeWheel(t, t.TempDir(), fakeTorchWheel())))
	all := opt.Hosts
	opt.Hosts = all[:3]
	if r := run(t, context.Background(), opt); r.Err() != nil {
		t.Fatal(r.Err())
	}
	opt.Wheels = nil
	verifyEdited(t, fleet, opt, "ops/cpu_adam_loaded.py")

	opt.Hosts = all
	r := look(t, opt, placesOf(fleet)...)
	if n := r.Nodes[3]; n.Status != report.Differs || !strings.HasPrefix(n.Error, "no DeepSpeed in the environment of ") || r.Summary.OK != 2 {
		t.Errorf("%+v", r.Summary)
	}
	out := printed(t, r)
	if !strings.Contains(out, "\nDeepSpeed: ") || !strings.Contains(out, " on node[1-3]; none on node4\n") || !strings.HasPrefix(strings.SplitN(out, "\n", 3)[1], "node[1,3]  ok ") {
		t.Error(out)
	}
}

// verifyEdited expects nodes to be equal, edits a file of the second one's
// DeepSpeed, and expects node and file to be named.
func verifyEdited(t *testing.T, fleet *nodes.Fleet, opt deploy.Options, file string) {
	t.Helper()
	r := look(t, opt, placesOf(fleet)...)
	if r.Err() != nil || !r.Consistent || len(r.Differences) > 0 {
		t.Errorf("%v %+v", r.Err(), r.Differences)
	}
	e := environment{site: siteOf(t, fleet.Nodes[1].Python)}
	e.write(t, filepath.Join("deepspeed", file), "# edited by hand\n")
	opt.Verify = verify.LevelFiles
	differs(t, look(t, opt, placesOf(fleet)...), 1, "deepspeed/"+file+" does not match RECORD")
}

// verifyReal loads the real ops on a node with the real torch, which leaves no trace, and compares what they compute: only
// one whose learning rate is changed is further from torch than its tolerance. Then it is verifyEdited for all nodes.
func verifyReal(t *testing.T, fleet *nodes.Fleet, opt deploy.Options) {
	t.Helper()
	opt = realOptionsOf(t, opt, fleet)
	opt.Wheels = nil
	one := opt
	one.Hosts, one.Verify = opt.Hosts[:1], verify.LevelCompute
	const file = "deepspeed/ops/adagrad/cpu_adagrad.py"
	e := environment{site: siteOf(t, fleet.Nodes[0].Python)}
	was, err := os.ReadFile(filepath.Join(e.site, file))
	if err != nil || !strings.Contains(string(was), "group['lr']") {
		t.Fatalf("%s has no learning rate: %v", file, err)
	}
	e.write(t, file, strings.ReplaceAll(string(was), "group['lr']", "1.01 * group['lr']"))
	n := look(t, one, placesOf(fleet)[:3]...).Nodes[0]
	e.write(t, file, string(was))

	_, broken, _ := strings.Cut(n.Error, "node reported: ")
	if !strings.HasPrefix(broken, "op cpu_adagrad: Adagrad, 5 steps: off by ") || strings.Contains(broken, "node reported: ") {
		t.Errorf("%s: %s; want that cpu_adagrad is off, and nothing else", n.Status, n.Error)
	}
	compared := map[string]bool{}
	for _, c := range n.Compared {
		compared[c.Op] = c.Worst <= c.Most && c.Count > 0 && c.Device != "" && c.Why != ""
	}
	for _, op := range []string{"async_io", "cpu_adam", "cpu_lion", "pin_memory", "utils"} {
		if !compared[op] {
			t.Errorf("%s is not compared: %+v", op, n.Compared)
		}
	}
	if want := "node reported: op fused_adam: not compared: torch finds no GPU"; len(n.Facts.GPUs) == 0 && !slices.Contains(n.Notes, want) {
		t.Errorf("notes %q, want %q", n.Notes, want)
	}
	verifyEdited(t, fleet, opt, "ops/lamb/__init__.py")
}
