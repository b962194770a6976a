//go:build full && linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/slurm"
	"github.com/dsbuild/dsbuild/internal/testkit/slurm/slurmtest"
	"github.com/dsbuild/dsbuild/launch/check"
)

// checkGround is a cluster of four nodes with torch and a way to them.
type checkGround struct {
	ground
	way []string // to the nodes
}

// newCheckGround runs a cluster; its nodes have an OpenSSH, too, by which root comes from each
// to each, and from the login node.
func newCheckGround(t *testing.T, count int) checkGround {
	t.Helper()
	c := slurmtest.Up(t, slurm.Options{Nodes: count, DiskMB: 2048, Packages: []string{"torch==" + nodes.DefaultTorch, "numpy"}})
	copyProgram(t, c)
	return checkGround{ground: newGround(t, c, "sum.py")}
}

// bySSH has the nodes reached by OpenSSH, as root.
func (g checkGround) bySSH(t *testing.T) checkGround {
	t.Helper()
	g.reachable(t, len(g.Nodes))
	scan := "for n in"
	for _, n := range g.Nodes {
		scan += " " + n.Name
	}
	if out, err := g.Command(t.Context(), "sh", "-c", scan+`; do ssh-keyscan -t ed25519 $n 2>/dev/null; done >"$1/known"`, "sh", g.dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return g
}

// list writes an inventory, with a line more for some node.
func (g checkGround) list(t *testing.T, more map[string]string) string {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "known_hosts: known\ndefaults: {user: root, identity_file: key, python: %s}\nnodes:\n", g.Python)
	for _, n := range g.Nodes {
		fmt.Fprintf(&b, "  - {hosts: %s%s}\n", n.Name, more[n.Name])
	}
	g.write(t, "check.yaml", b.String())
	return filepath.Join(g.dir, "check.yaml")
}

// start makes a dsbuild check on the login node: as root by SSH, whose key is root's, as
// the user by Slurm.
func (g checkGround) start(ctx context.Context, list string, args ...string) *exec.Cmd {
	words := append(append([]string{"check", list, "--min-free", "100MB"}, g.way...), args...)
	if len(g.way) > 0 {
		return g.UserCommand(ctx, filepath.Join(g.Home, "dsbuild"), words...)
	}
	const line = `echo $$ >"$0"; exec "$@"` // so that it can be ended by its number
	return g.Command(ctx, "sh", append([]string{"-c", line, filepath.Join(g.dir, "pid"), filepath.Join(g.Home, "dsbuild")}, words...)...)
}

// check runs one to its end.
func (g checkGround) check(t *testing.T, list string, args ...string) (code int, report check.Report, out string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), longest)
	defer cancel()
	file := filepath.Join(g.dir, "report.json")
	os.Remove(file)
	cmd := g.start(ctx, list, append(args, "--report", file)...)
	said, err := cmd.CombinedOutput()
	if err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &report)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	return cmd.ProcessState.ExitCode(), report, string(said)
}

// green expects a check that finds nothing.
func (g checkGround) green(t *testing.T, list string, args ...string) check.Report {
	t.Helper()
	code, report, out := g.check(t, list, args...)
	n := len(g.Nodes)
	if code != 0 || !report.Ready || len(report.Causes) > 0 || report.Pairs != (check.Pairs{Tried: n * (n - 1)}) ||
		len(report.Collectives) != 1 || !report.Collectives[0].OK || report.Collectives[0].Processes != n || len(report.NotChecked) > 0 {
		t.Fatalf("exit %d\n%s", code, out)
	}
	return report
}

// names expects that a check finds just these errors, as NODE: CHECK: TEXT, the text as
// far as given, and nothing wrong with other nodes.
func (g checkGround) names(t *testing.T, list string, wants []string, args ...string) check.Report {
	t.Helper()
	code, report, out := g.check(t, list, args...)
	found := map[string]bool{}
	for _, n := range report.Nodes {
		for _, f := range n.Findings {
			if f.Level != check.Error {
				continue
			}
			line, known := fmt.Sprintf("%s: %s: %s", n.Name, f.Check, f.Text), false
			for _, want := range wants {
				if strings.HasPrefix(line, want) {
					found[want], known = true, true
				}
			}
			if !known {
				t.Errorf("found besides: %s", line)
			}
			if f.Hint == "" {
				t.Errorf("without a hint: %s", line)
			}
		}
	}
	for _, want := range wants {
		if !found[want] {
			t.Errorf("not found: %s", want)
		}
	}
	if code != 3 || t.Failed() {
		t.Fatalf("exit %d\n%s", code, out)
	}
	return report
}

// clean expects that nothing of a check is left on the nodes.
func (g checkGround) clean(t *testing.T) {
	t.Helper()
	for _, n := range g.Nodes {
		slurmtest.Eventually(t, time.Minute, "nothing is left on "+n.Name, func() bool {
			out, err := n.Command(t.Context(), "sh", "-c", `pgrep -fa '[#]dsbuild|[d]ist.TCPStore'; find /tmp /dev/shm "$1" -name '.dsbuild-check-*' 2>/dev/null; true`, "sh", g.dir).Output()
			return err == nil && len(bytes.TrimSpace(out)) == 0
		})
	}
}

// faults are what a check is to find, each put right again.
func (g checkGround) faults(t *testing.T) {
	list := g.list(t, nil)
	master, second, third, last := g.Nodes[0], g.Nodes[1], g.Nodes[2], g.Nodes[3]
	t.Run("hosts", func(t *testing.T) {
		console(t, third, wrongHosts)
		defer console(t, third, rightHosts)
		r := g.names(t, list, []string{third.Name + ": names: the master's address node01 resolves to 127.0.1.1, which is the node itself"})
		if s := r.Collectives[0]; !s.OK || s.Processes != 3 || len(s.Without) != 1 || s.Without[0] != third.Name {
			t.Errorf("%+v", s)
		}
	})
	t.Run("own name", func(t *testing.T) {
		console(t, second, `cp /etc/hosts /run/hosts && sed 's/^10\.77\.1\.2 /127.0.1.1 /' /run/hosts >/etc/hosts`)
		defer console(t, second, rightHosts)
		g.names(t, list, []string{second.Name + ": names: own name node02 resolves to 127.0.1.1, the address that Gloo would announce to the other nodes"})
	})
	t.Run("port", func(t *testing.T) {
		hold(t, master, takenPort)
		slurmtest.Eventually(t, time.Minute, "the port is taken", func() bool { return master.Command(t.Context(), "test", "-e", "/run/taken").Run() == nil })
		defer console(t, master, "rm /run/taken")
		r := g.names(t, list, []string{master.Name + ": port: master port 29500 in use: Address already in use"})
		if !r.Collectives[0].OK || r.Collectives[0].Processes != 4 {
			t.Errorf("%+v", r.Collectives)
		}
	})
	t.Run("pair", func(t *testing.T) {
		console(t, second, "ip route add blackhole "+last.Address+"/32")
		defer console(t, second, "ip route del blackhole "+last.Address+"/32")
		r := g.names(t, list, []string{
			second.Name + ": network: cannot reach " + last.Name + " at " + last.Address + ": node reported: invalid route",
			last.Name + ": network: cannot reach " + second.Name + " at " + second.Address + ": node reported: no answer",
		})
		if r.Pairs != (check.Pairs{Tried: 12, Failed: 2}) || !r.Collectives[0].OK || r.Collectives[0].Processes != 2 {
			t.Errorf("%+v %+v", r.Pairs, r.Collectives)
		}
	})
	t.Run("torch", func(t *testing.T) {
		version := "f=$(echo " + filepath.Dir(filepath.Dir(g.Python)) + "/lib/python3*/site-packages/torch/version.py) && "
		console(t, last, version+`cp "$f" /run/version.py && sed "s/2[.]15[.]0/2.14.0/" /run/version.py >"$f"`)
		defer console(t, last, version+`cp /run/version.py "$f"`)
		g.names(t, list, []string{last.Name + ": versions: torch 2.14.0, but 3 of 4 nodes have 2.15.0"})
	})
	t.Run("disk", func(t *testing.T) {
		console(t, second, "dd if=/dev/zero of=/dev/shm/fill bs=1M count=4096 2>/dev/null || true")
		defer console(t, second, "rm /dev/shm/fill")
		g.names(t, list, []string{second.Name + ": disk: /dev/shm: not writable: No space left on device"})
	})
	t.Run("paths", func(t *testing.T) {
		console(t, master, "mkdir -p /opt/data && echo text >/opt/data/part-0")
		console(t, second, "mkdir -p /opt/data && echo text >/opt/data/part-0")
		console(t, third, "mkdir -p /opt/data && echo longer text >/opt/data/part-0")
		defer console(t, third, "rm -r /opt/data")
		g.names(t, list, []string{
			third.Name + ": paths: --data /opt/data: 1 item, 12 B, but 2 of 4 nodes have 1 item, 5 B with different names or sizes",
			last.Name + ": paths: --data /opt/data: node reported: No such file or directory",
		}, "--data", "/opt/data", "--skip", "collective")
	})
	t.Run("hangs", func(t *testing.T) {
		g.write(t, "sitecustomize.py", hanging)
		stopped := g.list(t, map[string]string{third.Name: ", env: {PYTHONPATH: " + g.dir + "}"})
		g.names(t, stopped, []string{
			third.Name + ": collective: process is hanging: no heartbeat for ",
			third.Name + ": variables: PYTHONPATH=" + g.dir,
		}, "--timeout", "40s")
		os.Remove(filepath.Join(g.dir, "sitecustomize.py"))
		g.list(t, nil)
	})
	g.clean(t)
}

// hanging stops a process of a collective, as a fault of a disk or a GPU does, once it is
// connected with the others.
const hanging = `import os, signal, sys, threading, time
def stop():
    while True:
        time.sleep(0.05)
        dist = sys.modules.get("torch.distributed")
        if dist and getattr(dist, "is_initialized", bool)():
            os.kill(os.getpid(), signal.SIGSTOP)
threading.Thread(target=stop, daemon=True).start()
`

// On a real Slurm of four nodes: green, then a job runs; each fault is named.
func TestFullCheckSlurm(t *testing.T) {
	g := newCheckGround(t, 4)
	g.way = []string{"--via", "slurm"}
	t.Run("green", func(t *testing.T) {
		begin := time.Now()
		r := g.green(t, g.list(t, nil), "--data", g.Python, "--output", filepath.Join(g.dir, "out"))
		t.Logf("result: a check of 4 nodes by Slurm, all green: %.0f s; gloo: %.0f MiB/s, one number in %.1f ms", time.Since(begin).Seconds(), r.Collectives[0].Bandwidth/(1<<20), r.Collectives[0].Latency*1e3)
		g.render(t, append([]string{"slurm", "--nodes", "4", "--gpus", "0", "--procs", "2"}, training("sum.py")...)...)
		together(t, g.sbatch(t, "train.sbatch").passes(t), 4, 2, arguments()...)
	})
	g.faults(t)
}

// The same by OpenSSH, whose nodes have networks of their own.
func TestFullCheckSSH(t *testing.T) {
	g := newCheckGround(t, 4).bySSH(t)
	list := g.list(t, nil)
	t.Run("green", func(t *testing.T) {
		begin := time.Now()
		g.green(t, list, "--data", g.Python, "--output", filepath.Join(g.dir, "out"))
		t.Logf("result: a check of 4 nodes by SSH, all green: %.0f s", time.Since(begin).Seconds())
		g.render(t, append([]string{"torchrun", "-i", g.inventory(t, 4, 2)}, training("sum.py")...)...)
		together(t, g.byHand(t, 4, block), 4, 2, arguments()...)
	})
	g.faults(t)
	t.Run("interrupted", func(t *testing.T) {
		for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
			cmd := g.start(t.Context(), list)
			var said bytes.Buffer
			cmd.Stdout, cmd.Stderr = &said, &said
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			slurmtest.Eventually(t, time.Minute, "processes of a collective run", func() bool {
				return g.Nodes[3].Command(t.Context(), "pgrep", "-f", "[d]ist.TCPStore").Run() == nil
			})
			if out, err := g.Command(t.Context(), "sh", "-c", fmt.Sprintf(`kill -%d "$(cat "$0")"`, signal), filepath.Join(g.dir, "pid")).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			cmd.Wait() //nolint:errcheck // its code is looked at
			if signal == syscall.SIGINT && cmd.ProcessState.ExitCode() != 130 {
				t.Errorf("exit %d\n%s", cmd.ProcessState.ExitCode(), &said)
			}
			g.clean(t)
		}
	})
	t.Run("node dies", func(t *testing.T) {
		cmd := g.start(t.Context(), list, "--report", filepath.Join(g.dir, "dead.json"))
		var said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &said, &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		slurmtest.Eventually(t, time.Minute, "processes of a collective run", func() bool {
			return g.Nodes[3].Command(t.Context(), "pgrep", "-f", "[d]ist.TCPStore").Run() == nil
		})
		if err := g.Nodes[3].PowerOff(t.Context()); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		cmd.Wait() //nolint:errcheck // its code is looked at
		if out := said.String(); cmd.ProcessState.ExitCode() != 3 || !strings.Contains(out, "node04: collective: ") || !strings.Contains(out, "3 of 4 nodes ready, 1 failed") {
			t.Errorf("exit %d\n%s", cmd.ProcessState.ExitCode(), out)
		}
		t.Logf("result: a node that dies while all sum: named after %.0f s", time.Since(begin).Seconds())
	})
}
