//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/ci/crowd"
	"github.com/dsbuild/dsbuild/deploy"
	"github.com/dsbuild/dsbuild/wheel/wheeltest"
)

// TestThousandNodes deploys to a thousand nodes, and verifies them: the program
// stays small.
func TestThousandNodes(t *testing.T) {
	t.Parallel()
	const nodes, most = 1000, 150e6
	home := t.TempDir()
	w := wheeltest.Packed(t, home, wheeltest.Options{})
	c, err := crowd.Up(crowd.Options{Dir: t.TempDir(), Count: nodes, Wheel: w})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	for _, command := range []string{"deploy", "verify"} {
		begin := time.Now()
		report, memory := resident(t, home, command, c.Inventory, "--wheel", w, "--verify", "files", "--json")
		t.Logf("%s: %d MB resident at most, %.1f s", command, memory/1e6, time.Since(begin).Seconds())
		if !report.Consistent || report.Summary.OK != nodes || len(report.Nodes) != nodes {
			t.Errorf("%s: %+v", command, report.Summary)
		}
		if memory == 0 || memory > most {
			t.Errorf("%s: %d bytes were resident, %.0f at most are owed", command, memory, most)
		}
	}
	if n := c.Deployed(); n != nodes {
		t.Errorf("%d of %d nodes have recorded the wheel", n, nodes)
	}
}

// resident runs dsbuild as a process of its own; memory is what it had resident
// at most. (What wait tells of that begins with what this process has.)
func resident(t *testing.T, home string, args ...string) (report deploy.Report, memory int64) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Args, cmd.Dir = append([]string{"dsbuild"}, args...), home
	cmd.Env = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH"), "LC_ALL=C.UTF-8"}
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case err := <-ended:
			if err != nil {
				t.Fatalf("%v: %v\n%s\n%.2000s", args, err, &errs, out.String())
			}
			if err := json.Unmarshal(out.Bytes(), &report); err != nil {
				t.Fatal(err)
			}
			return report, memory
		case <-time.After(5 * time.Millisecond):
			memory = max(memory, highWater(cmd.Process.Pid))
		}
	}
}

var vmHWM = regexp.MustCompile(`(?m)^VmHWM:\s+(\d+) kB$`)

// highWater is what a process has had resident at most; 0 where it has ended.
func highWater(pid int) int64 {
	status, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "status"))
	found := vmHWM.FindSubmatch(status)
	if err != nil || found == nil {
		return 0
	}
	kB, err := strconv.ParseInt(string(found[1]), 10, 64)
	if err != nil {
		return 0
	}
	return kB << 10
}
