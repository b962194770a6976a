//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
	"github.com/dsbuild/dsbuild/internal/testkit/slurm"
	"github.com/dsbuild/dsbuild/internal/testkit/slurm/slurmtest"
)

// copyProgram makes this test binary dsbuild, by its name, at the home of a cluster.
func copyProgram(t *testing.T, c *slurm.Cluster) string {
	t.Helper()
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	from, err := os.Open(own)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	program := filepath.Join(c.Home, "dsbuild")
	to, err := os.OpenFile(program, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(to, from)
	if err := errors.Join(err, to.Close()); err != nil {
		t.Fatal(err)
	}
	return program
}

// checks runs dsbuild check on the login node of a cluster, and returns its exit code,
// what it printed and what it said beside.
func checks(t *testing.T, c *slurm.Cluster, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := c.UserCommand(ctx, filepath.Join(c.Home, "dsbuild"), append([]string{"check"}, args...)...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), said.String()
}

// console runs a shell line on a node, as root, past Slurm.
func console(t *testing.T, n *slurm.Node, line string) {
	t.Helper()
	if out, err := n.Command(t.Context(), "sh", "-c", line).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", n.Name, err, out)
	}
}

// hold has a program run on a node until the test ends.
func hold(t *testing.T, n *slurm.Node, line string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := n.Command(ctx, "sh", "-c", line)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		cmd.Wait() //nolint:errcheck // it was killed
	})
}

// wrongHosts has a node take the master for itself; rightHosts takes that back.
const (
	wrongHosts = `cp /etc/hosts /run/hosts && sed 's/^10\.77\.1\.1 /127.0.1.1 /' /run/hosts >/etc/hosts`
	rightHosts = `cp /run/hosts /etc/hosts`
	takenPort  = `exec python3 -c 'import socket, time; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(("0.0.0.0", 29500)); s.listen(); open("/run/taken", "w"); time.sleep(600)'`
)

// On a real Slurm a check is green, and names each node with which something is wrong.
func TestCheckSlurm(t *testing.T) {
	t.Parallel()
	c := slurmtest.Up(t, slurm.Options{Nodes: 3, DiskMB: 300})
	copyProgram(t, c)
	args := []string{"node[01-03]", "--via", "slurm", "--skip", "collective", "--min-free", "100MB"}
	code, out, said := checks(t, c, args...)
	if code != 0 || !strings.Contains(out, "connections between nodes: 6 of 6\n") || !strings.Contains(out, "3 nodes ready for a job\n") {
		t.Fatalf("exit %d\n%s\n%s", code, out, said)
	}
	console(t, c.Nodes[2], wrongHosts)
	console(t, c.Nodes[1], `ip route add blackhole 10.77.1.3/32`)
	console(t, c.Nodes[0], `dd if=/dev/zero of=/dev/shm/fill bs=1M count=280 2>/dev/null`)
	hold(t, c.Nodes[0], takenPort)
	slurmtest.Eventually(t, time.Minute, "the port is taken", func() bool {
		return c.Nodes[0].Command(t.Context(), "test", "-e", "/run/taken").Run() == nil
	})
	code, out, said = checks(t, c, args...)
	for _, part := range []string{
		"node03: names: the master's address node01 resolves to 127.0.1.1, which is the node itself\n  hint: run getent hosts node01 on the node",
		"node01: port: master port 29500 in use: Address already in use",
		"node02: network: cannot reach node03 at 10.77.1.3: node reported: invalid route\n  hint: open all ports between the nodes in firewalls, and check the routes",
		"node03: network: cannot reach node02 at 10.77.1.2: node reported: no answer\n",
		"node01: disk: /dev/shm has ",
		"connections between nodes: 4 of 6\n",
		"0 of 3 nodes ready, 3 failed\n",
	} {
		if !strings.Contains(out, part) {
			t.Errorf("it is not said: %q", part)
		}
	}
	if code != 3 || t.Failed() {
		t.Errorf("exit %d\n%s\n%s", code, out, said)
	}
	for _, n := range c.Nodes {
		if left, err := n.Command(t.Context(), "sh", "-c", `pgrep -u user; ls -A /tmp; ls -A /dev/shm | grep -v fill`).Output(); len(left) > 0 {
			t.Errorf("%s: %v: left: %s", n.Name, err, left)
		}
	}
}

// Over real SSH, to nodes whose literal loopback addresses say that all are this machine: nothing is wrong with
// them. Nothing stays on them.
func TestCheckSSH(t *testing.T) {
	f := nodestest.Up(t, nodes.Options{Count: 3, Env: nodes.FakeTorch})
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), []string{"check", f.Inventory, "--skip", "collective", "--skip", "disk", "--port", "29517", "--launcher", "torchrun", "--master", f.Nodes[0].Address, "--timeout", "2m"}, strings.NewReader(""), &stdout, &stderr)
	out := stdout.String()
	for _, part := range []string{
		"node[1-3]  ok      0     2.6.0 ",
		"3 nodes ready for a job\n",
		"connections between nodes: 6 of 6\n",
	} {
		if !strings.Contains(out, part) {
			t.Errorf("it is not said: %q", part)
		}
	}
	for _, kind := range []string{"versions:", "network:", "variables:"} {
		if strings.Contains(out, ": "+kind) {
			t.Errorf("%s is not green", kind)
		}
	}
	if code != 0 || t.Failed() {
		t.Errorf("exit %d\n%s\n%s", code, out, &stderr)
	}
	for i, n := range f.Nodes {
		slurmtest.Eventually(t, time.Minute, "nothing runs on "+n.Name, func() bool { return !f.Busy(i) })
		left, err := os.ReadDir(filepath.Join(n.Dir, "tmp"))
		if err != nil || len(left) > 0 {
			t.Errorf("%s: %v: left %v", n.Name, err, left)
		}
	}
}

// fakeNode gives a node two GPUs, RDMA devices, and a file system and a kernel as files say. Its Python reads them in place
// of this machine's, and its programs find nvidia-smi and libcuda in a directory of its own, which is returned.
func fakeNode(t *testing.T, n *nodes.Node, driver, total, migMode, rdma, home string) string {
	t.Helper()
	site, err := filepath.Glob(filepath.Join(n.Dir, "venv", "lib", "python*", "site-packages"))
	if err != nil || len(site) != 1 {
		t.Fatal(site, err)
	}
	root := t.TempDir()
	for path, text := range map[string]string{
		filepath.Join(root, "proc/meminfo"):        "MemTotal: 1 kB\nCmaTotal: 0 kB\n",
		filepath.Join(root, "proc/self/mountinfo"): "22 1 0:1 / / rw - ext4 /dev/sda rw\n23 22 0:2 / " + n.Home + " rw - " + home + " server:/ rw\n",
		filepath.Join(root, "bin/nvidia-smi"): "#!/bin/sh\ncase $* in\n*compute_cap*) echo 'NVIDIA A100, 8.0, " + driver + "'; echo 'NVIDIA A100, 8.0, " + driver + "' ;;\n" +
			"*index,uuid*) echo 0, GPU-a; echo 1, GPU-b ;;\n*mig.mode*) echo 0, " + migMode + " ;;\n*memory.total*) echo 0, '" + total + "' ;;\n*) exit 2 ;; esac\n",
		filepath.Join(root, "bin/dmesg"):    "#!/bin/sh\n",
		filepath.Join(site[0], "triton.py"): "",
		filepath.Join(site[0], "fake.pth"):  "import fake_node\n",
		filepath.Join(site[0], "fake_node.py"): fmt.Sprintf(`import os
fake, really_open, really_list = %q, os.open, os.listdir
def inside(path):
    there = fake + str(path)
    return there if os.path.exists(there) or str(path) == "/sys/class/infiniband" else path
os.open = lambda path, *more, **named: really_open(inside(path), *more, **named)
os.listdir = lambda path=".": really_list(inside(path))
`, root),
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, device := range strings.Fields(rdma) {
		if err := os.MkdirAll(filepath.Join(root, "sys/class/infiniband", device), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// Each rule about a node by itself, or beside others, finds the node that breaks it, over real SSH: its files and programs
// are those of such a node. libcuda of cuda-compat makes up for an old driver.
func TestCheckNodeRules(t *testing.T) {
	f := nodestest.Up(t, nodes.Options{Count: 3, Env: nodes.FakeTorch})
	roots := []string{
		fakeNode(t, f.Nodes[0], "550.54.15", "81559", "Disabled", "mlx5_0 mlx5_1", "ext4"),
		fakeNode(t, f.Nodes[1], "470.57.02", "[N/A]", "Enabled", "mlx5_0", "nfs4"),
		fakeNode(t, f.Nodes[2], "470.57.02", "81559", "Disabled", "mlx5_0 mlx5_1", "ext4"),
	}
	gcc := exec.CommandContext(t.Context(), "gcc", "-shared", "-xc", "-o", filepath.Join(roots[2], "bin/libcuda.so.1"), "-")
	gcc.Stdin = strings.NewReader("int cuDriverGetVersion(int *version) { *version = 12040; return 0; }")
	if out, err := gcc.CombinedOutput(); err != nil {
		needs.Missing(t, "%v: %s", err, out)
	}
	if err := os.WriteFile(filepath.Join(f.Nodes[1].Home, ".nccl.conf"), []byte("# old\nNCCL_IB_HCA=mlx5_9\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	inv, err := os.ReadFile(f.Inventory)
	if err != nil {
		t.Fatal(err)
	}
	text := string(inv)
	for i, n := range f.Nodes {
		python := strconv.Quote(n.Python)
		text = strings.Replace(text, python, python+", setup: "+strconv.Quote(fmt.Sprintf("export PATH=%s/bin:$PATH LD_LIBRARY_PATH=%[1]s/bin", roots[i])), 1)
	}
	if err := os.WriteFile(f.Inventory, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), []string{"check", f.Inventory, "--skip", "collective", "--port", "29518", "--min-free", "1B"}, strings.NewReader(""), &stdout, &stderr)
	for _, part := range []string{
		"node2: variables: " + f.Nodes[1].Home + "/.nccl.conf sets NCCL_IB_HCA=mlx5_9, but 2 of 3 nodes: none\n",
		"node2: devices: driver 470.57.02 is too old for CUDA 12.4 of torch 2.6.0\n",
		"node3: devices (warning): driver 470.57.02 is too old for CUDA 12.4 of torch 2.6.0; cuda-compat replaces it (libcuda of CUDA 12.4), but only on data center GPUs\n",
		"node2: devices (warning): MIG divides GPUs: ",
		"node2: devices (warning): the kernel reserves no contiguous memory (CmaTotal is 0), so RDMA cannot register buffers in unified memory\n",
		"node2: devices: RDMA devices: mlx5_0, but 2 of 3 nodes have mlx5_0, mlx5_1; NCCL may hang\n",
		"node2: disk (warning): Triton compiles kernels in " + f.Nodes[1].Home + "/.triton/cache, which is on nfs4, where ranks wait for each other's locks\n",
		"2 of 3 nodes ready, 1 failed\n",
	} {
		if !strings.Contains(stdout.String(), part) {
			t.Errorf("it is not said: %q", part)
		}
	}
	if code != 3 || strings.Contains(stdout.String(), "node1: devices") || t.Failed() {
		t.Errorf("exit %d\n%s\n%s", code, &stdout, &stderr)
	}
}
