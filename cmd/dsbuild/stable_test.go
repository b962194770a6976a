//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
	"github.com/dsbuild/dsbuild/release/nightly"
)

// claimTorch has the stub of a node claim to be another torch.
func claimTorch(t *testing.T, n *nodes.Node, version, cuda string) {
	t.Helper()
	site := filepath.Join(n.Dir, "venv", "lib", "python3.11", "site-packages")
	infos, _ := filepath.Glob(filepath.Join(site, "torch-*.dist-info"))
	for _, info := range infos {
		if err := os.RemoveAll(info); err != nil {
			t.Fatal(err)
		}
	}
	info := filepath.Join(site, "torch-"+version+".dist-info")
	if err := os.Mkdir(info, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		filepath.Join(site, "torch", "version.py"): fmt.Sprintf("__version__ = '%s+cu%s'\ncuda = '%s'\nhip = None\n", version, strings.ReplaceAll(cuda, ".", ""), cuda),
		filepath.Join(info, "METADATA"):            "Metadata-Version: 2.1\nName: torch\nVersion: " + version + "\n",
	} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// Two nodes with two torches take one wheel, and two with --abi torch: by wheel --for, by ship and by a
// night, which all find the same wheel in the store.
func TestOneWheelForTwoTorches(t *testing.T) {
	t.Parallel()
	fleet := nodestest.Up(t, nodes.Options{Count: 2, Env: nodes.FakeTorch, QuickPip: true})
	claimTorch(t, fleet.Nodes[0], "2.15.0", "13.2")
	claimTorch(t, fleet.Nodes[1], "2.10.0", "12.8")
	home := t.TempDir()
	inv := fleet.Inventory
	planned := func(flags ...string) []report.Group {
		out, _ := program(t, home, 0, append([]string{"wheel", "--for", inv, "--ops", "cpu_adam", "--dry-run", "--json"}, flags...)...)
		var plan struct{ Groups []report.Group }
		if err := json.Unmarshal([]byte(out), &plan); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return plan.Groups
	}
	if groups := planned("--abi", "torch"); len(groups) != 2 {
		t.Errorf("for each torch: %+v", groups)
	}
	groups := planned()
	if len(groups) != 1 || len(groups[0].Nodes) != 2 || groups[0].Torch != "2.10" || groups[0].Python != "3.10+" || groups[0].Name != "py3-torch2.10" {
		t.Fatalf("%+v", groups)
	}
	store(t, home, groups[0])

	out, _ := program(t, home, 0, "ship", inv, "--ops", "cpu_adam", "--json")
	var r report.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil || r.Summary.OK != 2 || !r.Consistent || len(r.Wheels) != 1 || len(r.Groups) != 1 || r.Groups[0].State != "store" {
		t.Errorf("%v\n%s", err, out)
	}
	if out, _ := program(t, home, 0, "ship", inv, "--ops", "cpu_adam"); !strings.HasSuffix(out, "\nnothing to do: 2 nodes already run their wheels\n") {
		t.Error(out)
	}
	if out, _ := program(t, home, 0, "verify", inv, "--wheel", "dist"); !strings.Contains(out, "\n2 nodes ok: deepspeed 0.19.8+ops851f1a71") {
		t.Error(out)
	}
	if out, _ := program(t, home, 0, "deploy", inv, "--wheel", "dist"); !strings.Contains(out, "2 nodes ok: deepspeed 0.19.8+ops851f1a71") {
		t.Error(out)
	}

	text := "wheels: {wheels: [{name: every, ops: cpu_adam, abi: stable}]}\nindex: public\ndeploy: {inventory: " + inv + "}\n"
	if err := os.WriteFile(filepath.Join(home, "nightly.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	out, _ = program(t, home, 0, "nightly", "--json")
	var night nightly.Report
	if err := json.Unmarshal([]byte(out), &night); err != nil || len(night.Entries) != 1 || night.Entries[0].Status != nightly.Stored || night.Publish.Wheels != 1 || len(night.Deploys) != 1 || night.Deploys[0].Nodes.OK != 2 || night.Deploys[0].Nodes.Changed != 0 {
		t.Errorf("%v\n%s", err, out)
	}
}
