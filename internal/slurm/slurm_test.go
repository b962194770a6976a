//go:build linux

package slurm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/fleet/verify"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/slurm"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/remotetest"
	ci "github.com/dsbuild/dsbuild/internal/testkit/slurm"
	"github.com/dsbuild/dsbuild/internal/testkit/slurm/slurmtest"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
	"github.com/dsbuild/dsbuild/wheel"
)

// inside makes this program run on the login node of a cluster: it is copied there to call Slurm
// as a user's dsbuild would.
const inside = "DSBUILD_TEST_INSIDE"

// A real Slurm of four nodes, the last of which is drained, and an ordinary user.
func TestSlurm(t *testing.T) {
	if os.Getenv(inside) != "" {
		onLoginNode(t)
		return
	}
	c := slurmtest.Up(t, ci.Options{GPUs: 2, Partitions: []string{"batch", "gpu"}, Leaf: 2})
	succeed(t, c.Command(t.Context(), "scontrol", "update", "NodeName=node04", "State=DRAIN", "Reason=bad | disk"))
	var all sync.WaitGroup
	for _, n := range c.Nodes[:3] {
		all.Go(func() {
			if err := n.FakeTorch(t.Context(), environmentDir); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	asUser(t, c)
}

// asUser runs the calling test on the login node of a cluster, as an ordinary user, and checks
// that it leaves nothing there.
func asUser(t *testing.T, c *ci.Cluster) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(c.Home, "slurm.test")
	succeed(t, exec.Command("cp", self, program))
	cmd := c.UserCommand(t.Context(), program, "-test.run=^"+t.Name()+"$", "-test.v")
	// The environment is that of another job and has a secret: none of it may reach a node.
	cmd.Env = append(cmd.Env, inside+"=1", "SLURM_JOB_ID=999", "SLURM_NTASKS=50", "SECRET=1", "TMPDIR="+c.Home)
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	if err := cmd.Run(); err != nil {
		t.Error(err)
	}
	if left := succeed(t, c.Command(t.Context(), "squeue", "--noheader", "--name=dsbuild")); left != "" {
		t.Errorf("jobs that are left: %s", left)
	}
	for _, n := range c.Nodes {
		look := n.Command(t.Context(), "sh", "-c", "ls -A /tmp; ps -e -o user:20,args | grep '^user ' || :")
		if out := succeed(t, look); strings.TrimSpace(out) != "" {
			t.Errorf("%s is left with\n%s", n.Name, out)
		}
	}
}

// succeed runs a command that must succeed, and returns its output.
func succeed(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v\n%s", cmd.Args, err, out)
	}
	return string(out)
}

func onLoginNode(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"conformance":      conformance,
		"environment":      environment,
		"time to tidy up":  tidyUp,
		"deploy":           deployed,
		"refusals":         refusals,
		"busy and drained": busyAndDrained,
		"cancelled":        cancelled,
		"topology":         topology,
	} {
		t.Run(name, test)
	}
}

func topology(t *testing.T) {
	got, err := slurm.Switches(t.Context())
	want := map[string]string{"node01": "leaf1", "node02": "leaf1", "node03": "leaf2", "node04": "leaf2"}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
}

// options are the options for some nodes.
func options(t *testing.T, nodes ...string) slurm.Options {
	return slurm.Options{Nodes: nodes, Wait: time.Minute, Report: ui.New(t.Output(), ui.Options{})}
}

// newDialer returns a dialer that is open until the test ends.
func newDialer(t *testing.T, opt slurm.Options) *slurm.Dialer {
	t.Helper()
	d, err := slurm.New(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func target(node string) remote.Target { return remote.Target{Name: node + "/env", Node: node} }

func conformance(t *testing.T) {
	d := newDialer(t, options(t, "node01"))
	remotetest.Conformance(t, d, func(t *testing.T) (remote.Target, string) {
		dir, err := os.MkdirTemp("", "dir-")
		if err != nil {
			t.Fatal(err)
		}
		return target("node01"), dir
	})
}

// A program on a node gets the environment that sshd would give it.
func environment(t *testing.T) {
	c := remotetest.Dial(t, newDialer(t, options(t, "node01")), target("node01"))
	out, errs, err := remotetest.Output(t, c, remote.Command{Argv: []string{"sh", "-c", "env; pwd; umask; ulimit -c; hostname"}})
	if err != nil || errs != "" {
		t.Fatalf("%v: %s", err, errs)
	}
	for _, want := range []string{"\nnode01\n", "\n0022\n", "HOME=" + os.Getenv("HOME") + "\n", "\n" + os.Getenv("HOME") + "\n", "USER=user\n", "LOGNAME=user\n", "PATH="} {
		if !strings.Contains("\n"+out, want) {
			t.Errorf("%q is missing:\n%s", want, out)
		}
	}
	for _, no := range []string{"SLURM", "SECRET", "DSBUILD"} {
		if strings.Contains(out, no) {
			t.Errorf("%s is there:\n%s", no, out)
		}
	}
	// Other users of this machine cannot read the variables for a program on a node.
	mine := remote.Command{Argv: []string{"sh", "-c", "echo on; sleep 1; echo $TOKEN"}, Env: map[string]string{"TOKEN": "a b\nc,d=e"}}
	var said bytes.Buffer
	mine.Stdout = remotetest.WriterFunc(func(b []byte) (int, error) {
		if string(b) == "on\n" {
			here := succeed(t, exec.Command("ps", "-C", "srun,salloc", "-o", "args"))
			if strings.Contains(here, "c,d=e") || !strings.Contains(here, "\nsrun ") {
				t.Errorf("here is seen\n%s", here)
			}
		}
		return said.Write(b)
	})
	if err := c.Run(t.Context(), mine); err != nil || said.String() != "on\na b c,d=e\n" {
		t.Errorf("%v: %q", err, &said)
	}
}

// An abandoned program gets SIGTERM and the end of its input, and time to clean up.
func tidyUp(t *testing.T) {
	d := newDialer(t, options(t, "node01"))
	c := remotetest.Dial(t, d, target("node01"))
	done, let := filepath.Join(t.TempDir(), "done"), filepath.Join(t.TempDir(), "let")
	program := `trap 'while [ ! -e "$2" ]; do sleep 0.1; done; echo tidy >"$1"; exit' TERM; echo on; while :; do sleep 0.1; done`
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe() // an input that does not end
	defer w.Close()
	err := c.Run(ctx, remote.Command{
		Argv: []string{"sh", "-c", program, "sh", done, let}, Stdin: r,
		Stdout: remotetest.WriterFunc(func(b []byte) (int, error) { cancel(); return len(b), nil }),
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := os.WriteFile(let, nil, 0o600); err != nil { // if Run had waited for the program, it would have been killed
		t.Fatal(err)
	}
	d.Close() // it waits for the program, and keeps the node until then
	if text, err := os.ReadFile(done); string(text) != "tidy\n" {
		t.Errorf("%q, %v", text, err)
	}
}

// environmentDir is the environment that the deploy changes.
const environmentDir = "/opt/train"

// A wheel goes to three nodes with disks of their own; a second run has nothing to do.
func deployed(t *testing.T) {
	file := wheeltest.Packed(t, t.TempDir(), wheeltest.Options{
		Torch: nodes.FakeTorchVersion, CUDA: nodes.FakeTorchCUDA, CPU: wheel.CPUv2, Files: wheeltest.LoadedByPython(),
		Ops: []wheeltest.Op{{Name: "cpu_adam", Dir: "adam", SASS: []string{"8.0"}}}, Requires: []string{"einops"},
	})
	wheels, err := wheel.LoadAll(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	for _, changed := range []bool{true, false} {
		opt := deploy.Options{
			Options: fleet.Options{
				By:          "tester",
				Reporter:    ui.New(t.Output(), ui.Options{}),
				Dialer:      newDialer(t, options(t, "node01", "node02", "node03")),
				ConnectWait: time.Minute,
			},
			Verify: verify.LevelLoad,
			Wheels: wheels,
		}
		for _, n := range []string{"node01", "node02", "node03"} {
			opt.Hosts = append(opt.Hosts, inventory.Host{Name: n, Node: n, Address: n, Python: environmentDir + "/bin/python"})
		}
		d := deploy.New(opt)
		if _, err := d.Survey(t.Context()); err != nil {
			t.Fatal(err)
		}
		r := d.Apply(t.Context())
		d.Close()
		for _, n := range r.Nodes {
			if n.Status != report.OK || n.Changed != changed || n.After == nil || n.After.SHA256 != wheels[0].Manifest.SHA256 {
				t.Errorf("%s: %s at %s, changed %v: %s", n.Name, n.Status, n.Step, n.Changed, n.Error)
			}
		}
	}
}

// dsbuild reports impossible requests before it asks for nodes.
func refusals(t *testing.T) {
	for _, c := range []struct {
		spoil func(*slurm.Options)
		want  string
	}{
		{func(o *slurm.Options) { o.Nodes = append(o.Nodes, "gpu7", "gpu8") }, "gpu[7-8]: unknown to Slurm"},
		{func(o *slurm.Options) { o.Partition = "nope" }, "no nodes in Slurm partition nope"},
		{func(o *slurm.Options) { o.Time = "soon" }, "job rejected by Slurm: "},
		{func(o *slurm.Options) { o.More = []string{"--gres=gpu:9"} }, "job rejected by Slurm: "},
	} {
		opt := options(t, "node01")
		c.spoil(&opt)
		_, err := slurm.New(t.Context(), opt)
		if fault.ExitCode(err) != 2 || !strings.Contains(err.Error(), c.want) || fault.Hint(err) == "" {
			t.Errorf("%q: %v, hint %q", c.want, err, fault.Hint(err))
		}
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := slurm.New(t.Context(), options(t, "node01")); err == nil || !strings.Contains(err.Error(), "sinfo not found on PATH") || !strings.Contains(fault.Hint(err), "login node") {
		t.Errorf("%v, hint %q", err, fault.Hint(err))
	}
}

// Free nodes are available while dsbuild waits for others. A node that becomes free joins them,
// and the error for one that does not names its job.
func busyAndDrained(t *testing.T) {
	batch(t, "node02")
	short := batch(t, "node03")
	opt := options(t, "node01", "node02", "node03", "node04")
	opt.Wait = 30 * time.Second
	d := newDialer(t, opt)
	answers := make(map[string]chan error)
	for _, node := range opt.Nodes {
		answer := make(chan error, 1)
		answers[node] = answer
		go func() { answer <- hostname(t, d, node) }()
	}
	if err := <-answers["node01"]; err != nil {
		t.Errorf("a node that is free: %v", err)
	}
	if err := <-answers["node04"]; err == nil || err.Error() != "drained: bad | disk" {
		t.Errorf("a node that is drained: %v", err)
	}
	if len(answers["node02"])+len(answers["node03"]) > 0 {
		t.Error("nodes that are free came after those that are busy")
	}
	succeed(t, exec.Command("scancel", short))
	if err := <-answers["node03"]; err != nil {
		t.Errorf("a node that becomes free: %v", err)
	}
	if len(answers["node02"]) > 0 {
		t.Error("a node that becomes free came after one that is busy")
	}
	err := <-answers["node02"]
	if want := "allocation timed out after 30.0s"; err == nil || err.Error() != want || !errors.Is(err, remote.ErrDial) || !strings.Contains(fault.Hint(err), "--slurm-wait") {
		t.Errorf("a node that is busy: %v, hint %q", err, fault.Hint(err))
	}
}

// hostname asks a node for its name.
func hostname(t *testing.T, d *slurm.Dialer, node string) error {
	c, err := d.Dial(t.Context(), target(node))
	if err != nil {
		return err
	}
	defer c.Close()
	var out bytes.Buffer
	if err := c.Run(t.Context(), remote.Command{Argv: []string{"hostname"}, Stdout: &out}); err != nil || out.String() != node+"\n" {
		return fmt.Errorf("%s says it is %q: %w", node, &out, err)
	}
	return nil
}

// dsbuild does not ask again for a job that somebody cancelled.
func cancelled(t *testing.T) {
	d := newDialer(t, options(t, "node01", "node02"))
	c := remotetest.Dial(t, d, target("node01"))
	err := c.Run(t.Context(), remote.Command{
		Argv: []string{"sh", "-c", "echo on; sleep 300"},
		Stdout: remotetest.WriterFunc(func(b []byte) (int, error) {
			go exec.Command("scancel", "--name=dsbuild").Run()
			return len(b), nil
		}),
	})
	if !errors.Is(err, remote.ErrLost) || !strings.Contains(err.Error(), "has ended: cancelled") {
		t.Error(err)
	}
	if _, err := d.Dial(t.Context(), target("node02")); err == nil || !strings.Contains(err.Error(), "has ended: cancelled") {
		t.Errorf("another one is asked for: %v", err)
	}
}

// batch starts a job that has a node for itself, until the test ends.
func batch(t *testing.T, node string) (id string) {
	t.Helper()
	id = strings.TrimSpace(succeed(t, exec.Command("sbatch", "--parsable", "--exclusive", "--output=/dev/null", "--nodelist="+node, "--wrap=sleep 300")))
	t.Cleanup(func() { exec.Command("scancel", id).Run() })
	slurmtest.Eventually(t, time.Minute, "the job runs", func() bool {
		out, _ := exec.Command("squeue", "--noheader", "--jobs="+id, "--format=%T").Output()
		return strings.TrimSpace(string(out)) == "RUNNING"
	})
	return id
}
