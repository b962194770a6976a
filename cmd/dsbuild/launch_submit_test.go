//go:build linux

package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/schema"
	"github.com/dsbuild/dsbuild/internal/testkit/slurm"
	"github.com/dsbuild/dsbuild/internal/testkit/slurm/slurmtest"
)

// A real Slurm runs a job that passes and one that fails, and the document about each is what its schema says. In the place
// of a Python is a program that ends at once.
func TestSubmitDocument(t *testing.T) {
	t.Parallel()
	c := slurmtest.Up(t, slurm.Options{Nodes: 2})
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(c.Home, "dsbuild") // by this name the copy of the test is the program
	command(t, c.Home, "cp", self, program)
	for python, want := range map[string]struct {
		code   int
		fields []string
	}{
		"/bin/true":  {0, []string{`"state": "COMPLETED"`, `"exit_code": 0`, `"nodes": "node[01-02]"`}},
		"/bin/false": {1, []string{`"state": "FAILED"`, `"exit_code": 1`, `"failed_nodes": "node0`, `"why": "task `}},
	} {
		cmd := c.UserCommand(t.Context(), program, "launch", "slurm", "--nodes", "2", "--gpus", "0", "--procs", "1", "--time", "5",
			"--python", python, "--submit", "--json", "--", "train.py")
		cmd.Stderr = t.Output()
		out, err := cmd.Output()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) || cmd.ProcessState.ExitCode() != want.code {
			t.Errorf("%s: %v; want exit code %d", python, err, want.code)
		}
		schema.Check(t, "launch-slurm", out)
		for _, field := range want.fields {
			if !strings.Contains(string(out), field) {
				t.Errorf("%s: the document lacks %s:\n%s", python, field, out)
			}
		}
	}
}
