package main

import (
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
	"github.com/dsbuild/dsbuild/nightly"
)

// A night takes what the store has, publishes it, and brings it to real nodes: the
// canary first, then all. The next one has nothing to do; one whose canary does not answer
// leaves the others alone.
func TestNightlyDeploys(t *testing.T) {
	t.Parallel()
	fleet := nodestest.Up(t, nodes.Options{Count: 2, Env: nodes.FakeTorch})
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
	write := func(canary string) {
		text := "wheels: {wheels: [{name: cpu, ops: cpu_adam, torch: " + g.Torch + ", python: \"" + g.Python + "\", cpu: " + g.CPU + "}]}\nindex: public\ndeploy: {inventory: " + fleet.Inventory + ", canary: " + canary + ", verify: load}\n"
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

	write("node1")
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

	text, err := os.ReadFile(fleet.Inventory)
	if err == nil {
		text = append(text, "  - {hosts: gone, address: 127.0.0.1, port: 1}\n"...)
		err = os.WriteFile(fleet.Inventory, text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	write("gone")
	r = night(3)
	if r.Good || r.Deploys[0].Status != nightly.Failed || r.Deploys[1].Status != nightly.Skipped || !strings.Contains(r.Deploys[0].Error, "1 of 1 nodes are not ok") {
		t.Errorf("%+v", r.Deploys)
	}
}

// Somebody is told of a night that failed. Where that fails, dsbuild says so and
// the exit code is that of the night; the address is in no output.
func TestNightlyNotifies(t *testing.T) {
	t.Parallel()
	told := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		told <- string(body)
	}))
	defer server.Close()
	home := t.TempDir()
	night := func(notify string, flags ...string) string {
		text := "wheels: {wheels: [{name: cpu, ops: cpu_adam, cpu: v3}]}\nsources: [{name: gone, deepspeed: ./gone}]\nnotify: " + notify + "\n"
		if err := os.WriteFile(filepath.Join(home, "nightly.yaml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		_, messages := program(t, home, 1, append([]string{"nightly", "--builder", "host"}, flags...)...)
		if strings.Contains(messages, "s3cret") {
			t.Errorf("the address is told:\n%s", messages)
		}
		return messages
	}

	messages := night("{url: '" + server.URL + "/s3cret'}")
	if body := <-told; !strings.Contains(body, `"failed":["cpu@gone"]`) || !strings.Contains(messages, "notify: sent the notice of the failure") {
		t.Errorf("%s\n%s", body, messages)
	}
	messages = night("{command: [sh, -c, 'cat > told.txt']}")
	if text, err := os.ReadFile(filepath.Join(home, "told.txt")); err != nil || !strings.Contains(string(text), "report.json") {
		t.Errorf("%s %v\n%s", text, err, messages)
	}
	server.Close()
	if messages = night("{url: '" + server.URL + "/s3cret'}"); !strings.Contains(messages, "dsbuild could not send the notice of the failure: notify: 127.0.0.1: ") {
		t.Error(messages)
	}
	// The certificates of --ca count for it too.
	secure := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer secure.Close()
	ca := filepath.Join(home, "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	hook := "{url: '" + secure.URL + "'}"
	if messages = night(hook); !strings.Contains(messages, "certificate signed by unknown authority") {
		t.Errorf("%s", messages)
	}
	if messages = night(hook, "--ca", ca); !strings.Contains(messages, "notify: sent the notice of the failure") {
		t.Errorf("%s", messages)
	}
	if messages = night("{command: [sh, -c, 'exit 3']}"); !strings.Contains(messages, "notify: command sh: exit status 3") {
		t.Error(messages)
	}
}
