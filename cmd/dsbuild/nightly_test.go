package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
	"github.com/dsbuild/dsbuild/release/nightly"
)

// A night takes what the store has, publishes it, and brings it to real nodes: the
// canary first, then all. The next one has nothing to do; one whose canary does not answer
// leaves the others alone.
func TestNightlyDeploys(t *testing.T) {
	t.Parallel()
	fleet := nodestest.Up(t, nodes.Options{Count: 2, Env: nodes.FakeTorch, QuickPip: true})
	home := t.TempDir()
	g := plannedFor(t, home, fleet.Inventory)
	out, _ := program(t, home, 0, "wheel", "--ops", "cpu_adam", "--torch", g.Torch, "--python", g.Python, "--cpu", g.CPU, "--dry-run", "--json")
	var plan struct {
		Digest string `json:"plan_digest"`
	}
	if err := json.Unmarshal([]byte(out), &plan); err != nil || plan.Digest == "" {
		t.Fatalf("%v\n%s", err, out)
	}
	g.PlanDigest = plan.Digest
	store(t, home, g)
	write := func(canary, gate string) {
		text := "wheels: {wheels: [{name: cpu, ops: cpu_adam, torch: " + g.Torch + ", python: \"" + g.Python + "\", cpu: " + g.CPU + "}]}\nindex: public\ndeploy: {inventory: " + fleet.Inventory + ", canary: " + canary + ", gate: '" + gate + "', verify: load}\n"
		if err := os.WriteFile(filepath.Join(home, "nightly.yaml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	night := func(code int) nightly.Report {
		out, _ := program(t, home, code, "nightly", "--json")
		var r nightly.Report
		if err := json.Unmarshal([]byte(out), &r); err != nil || len(r.Entries) != 1 || len(r.Deploys) != 2 {
			t.Fatalf("%v\n%s", err, out)
		}
		return r
	}

	write("node1", `test "$DSBUILD_GATE_NODES" = node1 && grep -q node1 "$DSBUILD_GATE_REPORT"`)
	r := night(0)
	if r.Entries[0].Status != nightly.Stored || r.Deploys[0].Nodes != (nightly.Nodes{OK: 1, Changed: 1, All: 1, Verdict: r.Deploys[0].Nodes.Verdict}) || r.Deploys[1].Nodes.Changed != 1 || r.Deploys[1].Nodes.OK != 2 {
		t.Errorf("%+v, %+v", r.Entries[0], r.Deploys)
	}
	for _, d := range r.Deploys {
		for _, ending := range []string{".json", ".html"} {
			if _, err := os.Stat(filepath.Join(home, d.Report+ending)); err != nil {
				t.Error(err)
			}
		}
	}
	r = night(0)
	if r.Entries[0].Status != nightly.Unchanged || r.Publish.Status != nightly.Unchanged || r.Deploys[1].Nodes.Changed != 0 {
		t.Errorf("%+v, %+v", r.Entries[0], r.Deploys)
	}

	// A gate that stopped the last night stops this one, too, although the canary has nothing to change.
	write("node1", "exit 5")
	r = night(3)
	if r.Good || r.Deploys[0].Status != nightly.Failed || !strings.Contains(r.Deploys[0].Error, "the gate failed after the first batch: exit status 5") || r.Deploys[1].Status != nightly.Skipped {
		t.Errorf("%+v", r.Deploys)
	}

	text, err := os.ReadFile(fleet.Inventory)
	if err == nil {
		text = append(text, "  - {hosts: gone, address: 127.0.0.1, port: 1}\n"...)
		err = os.WriteFile(fleet.Inventory, text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	write("gone", "true")
	r = night(3)
	if r.Good || r.Deploys[0].Status != nightly.Failed || r.Deploys[1].Status != nightly.Skipped || !strings.Contains(r.Deploys[0].Error, "1 of 1 nodes not ok") {
		t.Errorf("%+v", r.Deploys)
	}
}

// A night that fails is told to the command of notify; the exit code is that of the night.
func TestNightlyNotifies(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	night := func(notify string) string {
		text := "wheels: {wheels: [{name: cpu, ops: cpu_adam, cpu: x86-64-v3}]}\nsources: [{name: gone, deepspeed: ./gone}]\nnotify: " + notify + "\n"
		if err := os.WriteFile(filepath.Join(home, "nightly.yaml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		_, messages := program(t, home, 1, "nightly", "--builder", "host")
		return messages
	}
	messages := night("[sh, -c, 'cat > told.txt']")
	text, err := os.ReadFile(filepath.Join(home, "told.txt"))
	if err != nil || !strings.Contains(string(text), "cpu@gone") || !strings.Contains(string(text), "report.json") || !strings.Contains(messages, "notify: sent the failure notification") {
		t.Errorf("%s %v\n%s", text, err, messages)
	}
	if messages = night("[sh, -c, 'exit 3']"); !strings.Contains(messages, "notify: cannot send the failure notification: command sh: exit status 3") {
		t.Error(messages)
	}
}
