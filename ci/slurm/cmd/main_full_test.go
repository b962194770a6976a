//go:build linux && full

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/ci/slurm"
	"github.com/dsbuild/dsbuild/ci/slurm/slurmtest"
)

// The cluster of "up" outlives it, and any other process may use it.
func TestFullLaunchSlurmByHand(t *testing.T) {
	slurmtest.Up(t, slurm.Options{Nodes: 1}) // skips where none can run
	program := filepath.Join(t.TempDir(), "slurm")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const name = "test-by-hand"
	call := func(command string, args ...string) (string, int) {
		t.Helper()
		cmd := exec.Command(program, append([]string{command, "--name", name}, args...)...)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return out.String(), cmd.ProcessState.ExitCode()
	}
	t.Cleanup(func() { call("down") })
	if out, code := call("up", "--nodes", "2"); code != 0 || !strings.Contains(out, "2 nodes up") {
		t.Fatalf("up: %d\n%s", code, out)
	}
	if out, code := call("up"); code != 1 || !strings.Contains(out, "is up already") {
		t.Errorf("up again: %d\n%s", code, out)
	}
	if out, code := call("exec", "--user", "srun", "-N2", "sh", "-c", "id -un; exit 3"); code != 3 || strings.Count(out, slurm.User+"\n") != 2 {
		t.Errorf("exec: %d\n%s", code, out)
	}
	functions, code := call("env")
	if code != 0 {
		t.Fatal(functions)
	}
	shell := exec.Command("sh", "-c", functions+`on_head srun -N2 printf '%s|' "two  words" "it's"`)
	if out, err := shell.CombinedOutput(); err != nil || strings.Count(string(out), "two  words|it's|") != 2 {
		t.Errorf("env: %v\n%s", err, out)
	}
	c, err := slurm.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	if out, code := call("down"); code != 0 {
		t.Errorf("down: %d\n%s", code, out)
	}
	if _, err := os.Stat(c.Dir); !os.IsNotExist(err) {
		t.Errorf("its folder: %v", err)
	}
	if _, code := call("exec", "true"); code != 1 {
		t.Errorf("exec after down: %d", code)
	}
}
