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

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/testkit/manynodes"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
)

// The program stays small, however many nodes there are: TestFullFleetTwoThousandNodes has more.
func TestManyNodes(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	staySmall(t, 12, 80e6)
}

// staySmall deploys to nodes and verifies them; dsbuild must have at most so many bytes resident.
func staySmall(t *testing.T, nodes int, most int64) {
	t.Helper()
	home := t.TempDir()
	w := wheeltest.Packed(t, home, wheeltest.Options{})
	fleet, err := manynodes.Up(t.Context(), t.TempDir(), nodes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fleet.Down)
	for _, command := range []string{"deploy", "verify"} {
		begin := time.Now()
		report, memory, cpu := resident(t, home, command, fleet.Inventory, "--wheel", w, "--verify", "files", "--json")
		t.Logf("result: %s of %d nodes: %d MB resident at most, %.1f ms of CPU for each node, %.0f s", command, nodes, memory/1e6,
			cpu.Seconds()*1e3/float64(nodes), time.Since(begin).Seconds())
		if !report.Consistent || report.Summary.OK != nodes || len(report.Nodes) != nodes {
			t.Errorf("%s: %+v", command, report.Summary)
		}
		if memory == 0 || memory > most {
			t.Errorf("%s: %d bytes were resident, %d at most are owed", command, memory, most)
		}
	}
}

// resident runs dsbuild as a process of its own; memory is what it had resident
// at most, and cpu the time that it took. (What wait tells of memory begins with what this process has.)
func resident(t *testing.T, home string, args ...string) (report report.Report, memory int64, cpu time.Duration) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Args, cmd.Dir = append([]string{"dsbuild"}, args...), home
	cmd.Env = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH"), "LC_ALL=C.UTF-8", "GOGC=100"}
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
			checkDocument(t, args, out.String())
			return report, memory, cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
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
