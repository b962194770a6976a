//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
	"github.com/dsbuild/dsbuild/internal/testkit/schema"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// A gate runs once the first batch is verified, with its nodes and its report. If it fails, or the run is interrupted
// meanwhile, no node of a further batch is touched.
func TestGate(t *testing.T) {
	t.Parallel()
	fleet := nodestest.Up(t, nodes.Options{Count: 3, Env: nodes.FakeTorch, QuickPip: true})
	home, inv := t.TempDir(), fleet.Inventory
	store(t, home, plannedFor(t, home, inv))
	ship := func(gate string, more ...string) []string {
		return append([]string{"ship", inv, "--ops", "cpu_adam", "--serial", "1,100%", "--gate", gate}, more...)
	}
	if out, _ := program(t, home, 0, ship("./soak.sh", "--dry-run")...); !strings.Contains(out, "\ngate after the first batch: ./soak.sh\n") {
		t.Errorf("a dry run does not say that the gate would run:\n%s", out)
	}
	was := [][]byte{envListing(t, fleet.Nodes[1]), envListing(t, fleet.Nodes[2])}
	untouched := func(after string) {
		t.Helper()
		for i, before := range was {
			if !bytes.Equal(envListing(t, fleet.Nodes[i+1]), before) {
				t.Errorf("after %s, node%d is changed", after, i+2)
			}
		}
	}

	const fails = `echo "on $DSBUILD_GATE_NODES in $DSBUILD_GATE_RUN"; cp "$DSBUILD_GATE_REPORT" seen.json; exit 7`
	out, said := program(t, home, 3, ship(fails, "--report", "r.json")...)
	for _, want := range []string{
		"node[2-3] (2 nodes): skipped: gate failed after the first batch (node1): exit status 7\n",
		"\ngate failed after the first batch (node1): exit status 7\n  hint: fix the cause and rerun, or roll the first batch back: dsbuild rollback " + inv + " --run 20",
		"\n1 of 3 nodes ok, 2 skipped\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the report lacks %q:\n%s", want, out)
		}
	}
	if !strings.Contains(said, "gate: on node1 in 20") || !strings.Contains(said, "dsbuild: the gate failed after the first batch: exit status 7") {
		t.Errorf("said\n%s", said)
	}
	seen, whole := reportIn(t, home, "seen.json"), reportIn(t, home, "r.json")
	if len(seen.Nodes) != 1 || seen.Nodes[0].Status != report.OK || !seen.Nodes[0].Changed || seen.Gate != nil {
		t.Errorf("the gate saw %+v", seen)
	}
	if g := whole.Gate; g == nil || g.Command != fails || g.Error != "exit status 7" || !slices.Equal(g.Nodes, []string{"node1"}) {
		t.Errorf("the report has the gate %+v", whole.Gate)
	}
	untouched("a gate that failed")
	_, hint, _ := strings.Cut(whole.Gate.Hint, "roll the first batch back: dsbuild ")
	if out, _ := program(t, home, 0, strings.Fields(hint)...); !strings.Contains(out, "node1") {
		t.Errorf("the hint %q does\n%s", hint, out)
	}
	untouched("the rollback of the first batch")

	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Args = append([]string{"dsbuild"}, ship(`trap "echo asked to end; exit 1" TERM; echo $$ waits; while :; do sleep 0.1; done`, "--force")...)
	cmd.Dir, cmd.Env = home, []string{"HOME=" + home, "PATH=" + os.Getenv("PATH"), "LC_ALL=C.UTF-8", "DSBUILD_ENGINE=unix://nowhere.sock"}
	errs, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var text []byte
	for buf := make([]byte, 4096); !bytes.Contains(text, []byte(" waits")); {
		n, err := errs.Read(buf)
		if text = append(text, buf[:n]...); err != nil {
			t.Fatalf("it ended: %s", text)
		}
	}
	cmd.Process.Signal(syscall.SIGINT) //nolint:errcheck // Wait tells
	rest, _ := io.ReadAll(errs)
	if code := exitStatus(cmd.Wait()); code != exitInterrupted || !bytes.Contains(rest, []byte("gate: asked to end")) {
		t.Errorf("interrupted: exit %d\n%s%s", code, text, rest)
	}
	untouched("an interrupt")

	if _, said := program(t, home, 3, ship("check", "--force")...); !strings.Contains(said, "node1: collective: ") {
		t.Errorf("--gate check does not check the collective:\n%s", said)
	}
	untouched("a check that failed")

	program(t, home, 0, ship(`test "$DSBUILD_GATE_NODES" = node1`, "--force", "--report", "r.json")...)
	if r := reportIn(t, home, "r.json"); r.Summary.OK != 3 || !r.Nodes[2].Changed || r.Gate == nil || r.Gate.Error != "" {
		t.Errorf("after a gate that passed: %+v, gate %+v", r.Summary, r.Gate)
	}
}

// envListing lists the files of a node's environment with their times.
func envListing(t *testing.T, n *nodes.Node) []byte {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "find", filepath.Dir(filepath.Dir(n.Python)), "-printf", "%P %s %T@\n").Output()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func reportIn(t *testing.T, dir, name string) (r report.Report) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err == nil {
		schema.Check(t, "report", text)
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A gate has the time limit of a long step, and leaves no program behind.
func TestGateEnds(t *testing.T) {
	t.Parallel()
	var said bytes.Buffer
	a := &app{reporter: ui.New(&said, ui.Options{})}
	begin := time.Now()
	child := filepath.Join(t.TempDir(), "pid")
	for command, want := range map[string]string{
		"sleep 60": "timed out after 1.0s (--timeout raises the limit)",
		"sleep 60 >/dev/null 2>&1 & echo $! >" + child: "",
		"no-such-program-here":                         "exit status 127",
	} {
		g := gate{a, command, fleet.Options{Timeout: time.Second}}
		if got := g.outcome(t.Context(), "run", []string{"gpu1"}, report.Empty("deploy")); got.Error != want {
			t.Errorf("%s: %q, want %q", command, got.Error, want)
		}
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
	pid, err := os.ReadFile(child)
	if err != nil {
		t.Fatal(err)
	}
	for { // it was told to end, which takes a moment
		state, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/stat")
		if err != nil || bytes.Contains(state, []byte(") Z ")) {
			return
		}
		if time.Since(begin) > 30*time.Second {
			t.Fatalf("a program of the gate still runs: %s", state)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
