//go:build linux && full

package slurm_test

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/testkit/slurm"
	"github.com/dsbuild/dsbuild/internal/testkit/slurm/slurmtest"
)

func TestFullLaunchSlurmUp(t *testing.T) {
	begin := time.Now()
	c := slurmtest.Up(t, slurm.Options{Nodes: 4, CPUs: 80, Partitions: []string{"gpu1", "debug"}})
	t.Logf("result: four nodes of Slurm take jobs after: %.1f s", time.Since(begin).Seconds())
	names := strings.Fields(run(t, c.Command(t.Context(), "srun", "-N4", "--cpus-per-task=80", "hostname")))
	slices.Sort(names)
	if got := strings.Join(names, " "); got != "node01 node02 node03 node04" {
		t.Errorf("srun ran on %s", got)
	}
	if got := run(t, c.Command(t.Context(), "sinfo", "--noheader", "--format=%P %D")); !strings.Contains(got, "gpu1* 4\n") || !strings.Contains(got, "debug 4\n") {
		t.Errorf("partitions:\n%s", got)
	}
}

// A file that Slurm copies to a node is on the node's own disk, and nowhere else.
func TestFullLaunchSlurmBroadcast(t *testing.T) {
	c := slurmtest.Up(t, slurm.Options{})
	wheel := bytes.Repeat([]byte("not quite a wheel\n"), 1<<20)
	write(t, c, "some.whl", string(wheel))
	write(t, c, "copy.sh", `#!/bin/bash
#SBATCH --nodes=3 --nodelist=node[01-03] --output=copy.out
sbcast some.whl /tmp/some.whl && srun sha256sum /tmp/some.whl
`)
	run(t, c.Command(t.Context(), "sbatch", "--wait", "copy.sh"))
	got, _ := os.ReadFile(filepath.Join(c.Home, "copy.out"))
	if want := fmt.Sprintf("%x  /tmp/some.whl\n", sha256.Sum256(wheel)); string(got) != strings.Repeat(want, 3) {
		t.Errorf("the nodes have\n%s", got)
	}
	for i, n := range c.Nodes {
		if err := n.Command(t.Context(), "test", "-e", "/tmp/some.whl").Run(); (err == nil) != (i < 3) {
			t.Errorf("%s: %v", n.Name, err)
		}
	}
	if _, err := os.Stat("/tmp/some.whl"); err == nil {
		t.Error("it is on this machine, too")
	}
}

// A node has the system and the shared home. It has neither the files nor the network of this
// machine, nor the disk of another node.
func TestFullLaunchSlurmApart(t *testing.T) {
	c := slurmtest.Up(t, slurm.Options{Nodes: 2})
	here := t.TempDir()
	look := `test -d "$1" || echo no folder; touch /usr/bin/mine /tmp/mine; ls -d /usr/bin/mine; ls /sys/class/net | tr "\n" " "; getent hosts head; getent hosts nowhere.invalid || echo unknown`
	first := run(t, c.Nodes[0].Command(t.Context(), "sh", "-c", look, "sh", here))
	if want := "no folder\n/usr/bin/mine\neth0 lo 10.77.0.1       head\nunknown\n"; first != want {
		t.Errorf("the first node: %q", first)
	}
	second := run(t, c.Nodes[1].Command(t.Context(), "sh", "-c", "ls /usr/bin/mine /tmp/mine 2>/dev/null; hostname"))
	if second != "node02\n" {
		t.Errorf("the second node: %q", second)
	}
	if _, err := os.Stat("/usr/bin/mine"); err == nil {
		t.Error("a node wrote to this machine")
	}
	if out := run(t, c.Command(t.Context(), "ls", "-d", here)); out != here+"\n" {
		t.Errorf("the login node: %q", out)
	}
}

// running reports whether the only job of a cluster runs.
func running(t *testing.T, c *slurm.Cluster) func() bool {
	return func() bool {
		return run(t, c.Command(t.Context(), "squeue", "--noheader", "--format=%T")) == "RUNNING\n"
	}
}

// A node whose slurmd is killed, and a node that loses its power, are down within a time for
// which a test can wait. A job ends with its node.
func TestFullLaunchSlurmNodeDown(t *testing.T) {
	c := slurmtest.Up(t, slurm.Options{Nodes: 3, DownAfter: 5})
	down := func(n *slurm.Node) func() bool {
		return func() bool {
			states, err := c.States(t.Context())
			return err == nil && states[n.Name] == "down*"
		}
	}
	begin := time.Now()
	if err := c.Nodes[0].KillSlurmd(t.Context()); err != nil {
		t.Fatal(err)
	}
	slurmtest.Eventually(t, time.Minute, "a node without slurmd is down", down(c.Nodes[0]))
	t.Logf("result: a node without slurmd is down after (SlurmdTimeout 5): %.0f s", time.Since(begin).Seconds())

	run(t, c.Command(t.Context(), "sbatch", "--no-requeue", "-w", "node02", "--wrap", "sleep 600"))
	slurmtest.Eventually(t, time.Minute, "the job runs", running(t, c))
	begin = time.Now()
	if err := c.Nodes[1].PowerOff(t.Context()); err != nil {
		t.Fatal(err)
	}
	slurmtest.Eventually(t, time.Minute, "a node without power is down", down(c.Nodes[1]))
	t.Logf("result: a node without power is down after (SlurmdTimeout 5): %.0f s", time.Since(begin).Seconds())
	// The exit code alone looks like a success, also for sbatch --wait.
	if got := run(t, c.Command(t.Context(), "scontrol", "show", "job", "1")); !strings.Contains(got, "JobState=NODE_FAIL") || !strings.Contains(got, "ExitCode=0:0") {
		t.Errorf("the job of a node that is down:\n%s", got)
	}

	if err := c.Nodes[0].PowerOff(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, n := range c.Nodes[:2] {
		if err := n.PowerOn(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := run(t, c.Command(t.Context(), "srun", "-N3", "hostname")); strings.Count(got, "node0") != 3 {
		t.Errorf("after the nodes are on again:\n%s", got)
	}
}

func TestFullLaunchSlurmTwoClusters(t *testing.T) {
	a := slurmtest.Up(t, slurm.Options{Nodes: 2, Partitions: []string{"a"}})
	b := slurmtest.Up(t, slurm.Options{Nodes: 3, Partitions: []string{"b"}})
	for _, c := range []*slurm.Cluster{a, b} {
		// The second command fails if the node does not belong to the same cluster.
		got := run(t, c.Command(t.Context(), "srun", "-p", c.Partitions[0], "-N"+strconv.Itoa(len(c.Nodes)), "sh", "-c", `touch "$HOME/$(hostname)" && hostname`))
		if strings.Count(got, "node0") != len(c.Nodes) {
			t.Errorf("%s:\n%s", c.Dir, got)
		}
		if files, _ := filepath.Glob(filepath.Join(c.Home, "node*")); len(files) != len(c.Nodes) {
			t.Errorf("%s: %q", c.Dir, files)
		}
	}
	if err := a.Down(); err != nil {
		t.Fatal(err)
	}
	if got := run(t, b.Command(t.Context(), "srun", "-N3", "hostname")); strings.Count(got, "node0") != 3 {
		t.Errorf("when the other is down:\n%s", got)
	}
}

// remains returns what this machine has of a cluster: processes, mounts, networks, control
// groups, its folder.
func remains(t *testing.T, dir string) (processes, others []string) {
	t.Helper()
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range procs {
		env, _ := os.ReadFile(p + "/environ")
		args, _ := os.ReadFile(p + "/cmdline")
		if bytes.Contains(append(env, args...), []byte(dir)) {
			processes = append(processes, p+" "+strings.ReplaceAll(string(args), "\x00", " "))
		}
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, "dsbuild-slurm") {
			others = append(others, line)
		}
	}
	for _, pattern := range []string{"/run/netns/*", "/sys/class/net/node0*", "/sys/fs/cgroup/*slurm*", "/sys/fs/cgroup/*/*slurm*", "/etc/slurm/slurm.conf", "/run/munge/*", dir} {
		found, _ := filepath.Glob(pattern)
		others = append(others, found...)
	}
	return processes, others
}

func TestFullLaunchSlurmNothingLeft(t *testing.T) {
	_, before := remains(t, filepath.Join(t.TempDir(), "none"))
	c := slurmtest.Up(t, slurm.Options{})
	sleeper := c.Command(t.Context(), "srun", "-N4", "sleep", "600")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	slurmtest.Eventually(t, time.Minute, "the job runs", running(t, c))
	processes, during := remains(t, c.Dir)
	if len(processes) < 10 {
		t.Errorf("only %d processes of a running cluster were found", len(processes))
	}
	if want := append(slices.Clone(before), c.Dir); !slices.Equal(during, want) {
		t.Errorf("a running cluster shows on this machine as %q, before it %q", during, before)
	}
	if err := c.Down(); err != nil {
		t.Fatal(err)
	}
	sleeper.Wait()
	if left, others := remains(t, c.Dir); len(left) > 0 || !slices.Equal(others, before) {
		t.Errorf("left: %q %q", left, others)
	}
}

// The cluster ends with the program, and the cluster's guard removes all that is left.
func TestFullLaunchSlurmKilled(t *testing.T) {
	const marker = "DSBUILD_TEST_CLUSTER_HOLDER"
	if os.Getenv(marker) != "" {
		c := slurmtest.Up(t, slurm.Options{Nodes: 2})
		fmt.Printf("dir=%s\n", c.Dir)
		os.Stdin.Read(make([]byte, 1))
		return
	}
	slurmtest.Up(t, slurm.Options{Nodes: 1}) // skips, or installs
	dir, kill := hold(t, marker)
	kill()
	slurmtest.Eventually(t, time.Minute, "its processes end and its folder goes", func() bool {
		left, others := remains(t, dir)
		return len(left) == 0 && !slices.Contains(others, dir)
	})
}

// hold starts another program that has a cluster, and returns a function that kills it.
func hold(t *testing.T, marker string) (dir string, kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), marker+"=1")
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = func() { cmd.Process.Kill(); cmd.Wait() }
	t.Cleanup(kill)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if _, dir, ok := strings.Cut(lines.Text(), "dir="); ok {
			return dir, kill
		}
	}
	t.Fatal("it has no cluster")
	return "", nil
}

// torch and JAX connect nodes with each other, and each node may change its own environment
// without changing another's.
func TestFullLaunchSlurmPython(t *testing.T) {
	c := slurmtest.Up(t, slurm.Options{Nodes: 2, Packages: slurm.TorchAndJAX()})
	write(t, c, "torch_sum.py", `
import torch, torch.distributed as dist
dist.init_process_group("gloo")
t = torch.tensor([dist.get_rank() + 1])
dist.all_reduce(t)
print("torch %d %d %d\n" % (dist.get_rank(), dist.get_world_size(), t.item()), end="", flush=True)  # in one write
dist.destroy_process_group()
`)
	write(t, c, "jax_count.py", `
import jax
jax.distributed.initialize()
print("jax", jax.process_index(), jax.process_count(), flush=True)
`)
	torchrun := filepath.Join(filepath.Dir(c.Python), "torchrun")
	got := run(t, c.UserCommand(t.Context(), "srun", "-N2", "sh", "-c",
		torchrun+" --nnodes=2 --nproc-per-node=2 --node-rank=$SLURM_PROCID --master-addr=node01 --master-port=29400 torch_sum.py"))
	for rank := range 4 {
		if want := fmt.Sprintf("torch %d 4 10\n", rank); !strings.Contains(got, want) {
			t.Errorf("%q is missing:\n%s", want, got)
		}
	}
	got = run(t, c.UserCommand(t.Context(), "srun", "-N2", "env", "JAX_PLATFORMS=cpu", c.Python, "jax_count.py"))
	if !strings.Contains(got, "jax 0 2\n") || !strings.Contains(got, "jax 1 2\n") {
		t.Errorf("JAX:\n%s", got)
	}
	run(t, c.Nodes[0].Command(t.Context(), c.Python, "-m", "pip", "uninstall", "--yes", "jax"))
	version := []string{"-c", `import importlib.metadata as m; print(m.version("jax"))`}
	if err := c.Nodes[0].Command(t.Context(), c.Python, version...).Run(); err == nil {
		t.Error("the package that was removed is there")
	}
	run(t, c.Nodes[1].Command(t.Context(), c.Python, version...))
	run(t, c.Command(t.Context(), c.Python, version...))
}
