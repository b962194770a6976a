//go:build linux

package slurm_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/slurm"
	"github.com/dsbuild/dsbuild/internal/testkit/slurm/slurmtest"
)

// run runs a command that must succeed, and returns its output.
func run(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v\n%s", cmd.Args, err, out)
	}
	return string(out)
}

// write puts a file into the home that all nodes share.
func write(t *testing.T, c *slurm.Cluster, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(c.Home, name), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// An ordinary user submits one script for four nodes. It runs on each node as that user, has
// GPUs and the shared home there, and sbatch returns its exit code.
func TestJobOnFourNodes(t *testing.T) {
	c := slurmtest.Up(t, slurm.Options{GPUs: 2})
	write(t, c, "job.sh", `#!/bin/bash
#SBATCH --job-name=hello --nodes=4 --gres=gpu:2 --output=%x-%j.out
srun sh -c 'echo "$(hostname) $(id -un) $SLURM_GPUS_ON_NODE $CUDA_VISIBLE_DEVICES $(stat -c %F /dev/nvidia1) $PWD"'
exit 7
`)
	cmd := c.UserCommand(t.Context(), "sbatch", "--parsable", "--wait", "job.sh")
	said, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 7 {
		t.Fatalf("sbatch --wait: %v\n%s", err, said)
	}
	got, err := os.ReadFile(filepath.Join(c.Home, "hello-"+strings.TrimSpace(string(said))+".out"))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range c.Nodes {
		want := n.Name + " " + slurm.User + " 2 0,1 character special file " + c.Home + "\n"
		if strings.Count(string(got), want) != 1 {
			t.Errorf("%q is not once in the output:\n%s", want, got)
		}
	}
	if len(c.Nodes) != 4 || strings.Count(string(got), "\n") != 4 {
		t.Errorf("%d nodes; the output:\n%s", len(c.Nodes), got)
	}
}
