//go:build linux

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/ci/crowd"
	"github.com/dsbuild/dsbuild/deploy"
	"github.com/dsbuild/dsbuild/wheel/wheeltest"
)

// TestThousandNodes deploys to a thousand nodes, and verifies them: the program
// stays small, however many there are.
func TestThousandNodes(t *testing.T) {
	t.Parallel()
	const nodes, most = 1000, 150e6
	dir := t.TempDir()
	w := wheeltest.Packed(t, dir, wheeltest.Options{})
	c, err := crowd.Up(crowd.Options{Dir: t.TempDir(), Count: nodes, Wheel: w})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Stop() })
	for _, args := range [][]string{
		{"deploy", c.Inventory, "--wheel", w, "--verify", "files", "--json"},
		{"verify", c.Inventory, "--wheel", w, "--verify", "files", "--json"},
	} {
		begin := time.Now()
		report, memory := resident(t, dir, args...)
		t.Logf("%s: %d MB resident at most, %.1f s", args[0], memory/1e6, time.Since(begin).Seconds())
		if !report.Consistent || report.Summary.OK != nodes || len(report.Nodes) != nodes {
			t.Errorf("%s: %+v", args[0], report.Summary)
		}
		if memory > most {
			t.Errorf("%s: %d bytes were resident, %.0f at most are owed", args[0], memory, most)
		}
	}
	if n := c.Deployed(); n != nodes {
		t.Errorf("%d of %d nodes have recorded the wheel", n, nodes)
	}
}

// resident runs the program as a process of its own; memory is what it had resident at most.
func resident(t *testing.T, home string, args ...string) (report deploy.Report, memory int64) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Args, cmd.Dir = append([]string{"dsbuild"}, args...), home
	cmd.Env = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH"), "LC_ALL=C.UTF-8"}
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%.4000s", args, err, out)
	}
	if err := json.Unmarshal(out, &report); err != nil {
		t.Fatal(err)
	}
	return report, cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss << 10
}
