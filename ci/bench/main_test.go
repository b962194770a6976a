//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
)

// TestMain makes this test program behave as the program does when it starts itself.
func TestMain(m *testing.M) {
	if inner := innerProgram(os.Args[1:]); inner != nil {
		if err := inner(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if err := adoptOrphans(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// spinner is a program that uses as much CPU time as its argument says, in seconds.
func spinner(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "spin.py")
	if err := os.WriteFile(file, []byte("import sys, time\nwhile time.process_time() < float(sys.argv[1]): pass\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return "python3 " + file
}

func TestMeteredCountsWhatIsLeftBehind(t *testing.T) {
	var out bytes.Buffer
	line := "echo said; setsid sh -c '" + spinner(t) + " 0.3; touch spun; sleep 300' >/dev/null 2>&1 & until [ -e spun ]; do sleep 0.05; done; exit 7"
	c, err := measureCommand(t.Context(), t.TempDir(), os.Environ(), &out, line)
	if err != nil {
		t.Fatal(err)
	}
	if c.Status != 7 || c.CPU < 0.3 || c.Wall < 0.3 || c.Memory < 1<<20 || out.String() != "said\n" {
		t.Errorf("%+v, %q", c, &out)
	}
	for _, p := range childrenOf(os.Getpid()) {
		if p.Name == "sleep" {
			t.Errorf("left behind: %v", p)
		}
	}
}

func TestGaugeCountsWhatNodesLeaveBehind(t *testing.T) {
	f := nodestest.Up(t, nodes.Options{Count: 2, Env: nodes.NoPython})
	g := &gauge{fleet: f}
	other := exec.Command("sleep", "300")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = other.Process.Kill(), other.Wait() })
	g.passOver() // else the gauge waits for it
	before, err := g.readCPU()
	if err != nil {
		t.Fatal(err)
	}
	// The connection waits for one of these processes, and not for the other.
	n := f.Nodes[1]
	spin := spinner(t)
	line := fmt.Sprintf(`ssh -n -F none -i %s -p %d -o UserKnownHostsFile=%s %s@%s "setsid %s 0.4 >/dev/null 2>&1 </dev/null & %s 0.2"`,
		f.IdentityFile, n.Port, f.KnownHosts, f.User, n.Address, spin, spin)
	if c, err := measureCommand(t.Context(), t.TempDir(), os.Environ(), os.Stderr, line); err != nil || c.Status != 0 {
		t.Fatal(c, err)
	}
	after, err := g.readCPU()
	if err != nil {
		t.Fatal(err)
	}
	if used := after - before; used < 580*time.Millisecond {
		t.Errorf("%s of CPU time on the nodes, at least 600 ms were used", used)
	}
}

func TestSpreadOf(t *testing.T) {
	for _, c := range []struct {
		of   []float64
		want spread
	}{
		{[]float64{3}, spread{3, 3, 3}},
		{[]float64{9, 1, 5}, spread{5, 1, 9}},
		{[]float64{4, 1, 2, 3}, spread{2.5, 1, 4}},
	} {
		if got := spreadOf(c.of); got != c.want {
			t.Errorf("%v: %v", c.of, got)
		}
	}
}

// races are two rounds of two tools.
func races() ranking {
	walls := func(w ...float64) (s []sample) {
		for _, v := range w {
			s = append(s, sample{cost{Wall: v, CPU: v / 10}, v * 2})
		}
		return s
	}
	return ranking{
		title: "a <wheel> to 2 nodes", contenders: []contender{{dsbuildName, "dsbuild deploy", nil}, {"a | b", "a | b", []string{"X=1 2"}}},
		samples: map[string][]sample{dsbuildName: walls(1, 2), "a | b": walls(2, 8)},
	}
}

func TestRanking(t *testing.T) {
	want := `| a &lt;wheel> to 2 nodes | wall, s | × dsbuild | controller's CPU, s | nodes' CPU, s |
|---|---|---|---|---|
| dsbuild | 1.5 (1.0–2.0) | 1 | 0.15 (0.10–0.20) | 3.0 (2.0–4.0) |
| a \| b | 5.0 (2.0–8.0) | 3.00 (2.00–4.00) | 0.50 (0.20–0.80) | 10.0 (4.0–16.0) |
`
	if got := races().String(); got != want {
		t.Errorf("got\n%s", got)
	}
}
