//go:build full && linux

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/testkit/slurm"
	"github.com/dsbuild/dsbuild/internal/testkit/slurm/slurmtest"
)

// Everything here goes by Slurm: the nodes have no sshd, and disks of their own. Who
// calls dsbuild is an ordinary user on the login node.

// slurmFleet is the nodes of a cluster with two environments each, in an inventory.
type slurmFleet struct {
	*slurm.Cluster
	inventory string
	program   string
	wheels    [2]faultWheel
	roots     []string // of the nodes' disks, as this machine sees them
	took      time.Duration
}

// slurmEnvs are the environments of each node.
var slurmEnvs = []string{"train", "dev"}

// newSlurmFleet has so many nodes without a DeepSpeed.
func newSlurmFleet(t *testing.T, count int) *slurmFleet {
	t.Helper()
	f := &slurmFleet{Cluster: slurmtest.Up(t, slurm.Options{Nodes: count, GPUs: 1, DownAfter: 5, Partitions: []string{"batch", "gpu"}})}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f.program = filepath.Join(f.Home, "dsbuild") // by this name it is the program
	command(t, ".", "cp", self, f.program)
	f.inventory = filepath.Join(f.Home, "inventory.yaml")
	text := fmt.Sprintf("nodes:\n  - {hosts: 'node[01-%02d]', envs: [{name: train, python: /opt/train/bin/python}, {name: dev, python: /opt/dev/bin/python}]}\n", count)
	if err := os.WriteFile(f.inventory, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for i, version := range []string{"0.19.7", "0.19.8"} {
		f.wheels[i] = newFaultWheel(t, version, ballast)
		dir := filepath.Join(f.Home, version)
		command(t, ".", "mkdir", dir)
		command(t, ".", "cp", f.wheels[i].path, dir)
		f.wheels[i].path = filepath.Join(dir, filepath.Base(f.wheels[i].path))
	}
	command(t, ".", "chown", "-R", strconv.Itoa(slurm.UserID), f.Home)
	for _, n := range f.Nodes {
		for _, env := range slurmEnvs {
			if err := n.FakeTorch(t.Context(), "/opt/"+env); err != nil {
				t.Fatal(err)
			}
		}
		f.roots = append(f.roots, f.root(t, n))
	}
	return f
}

// root is where this machine sees the disk of a node: at the root of a process there.
func (f *slurmFleet) root(t *testing.T, n *slurm.Node) string {
	t.Helper()
	cmd := n.Command(t.Context(), "sleep", "infinity")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Cancel() //nolint:errcheck // it ends with the cluster
		cmd.Wait()   //nolint:errcheck // likewise
	})
	var pid int
	slurmtest.Eventually(t, time.Minute, "a process on "+n.Name, func() bool {
		pid = last(cmd.Process.Pid)
		words, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		return string(words) == "sleep\x00infinity\x00"
	})
	return fmt.Sprintf("/proc/%d/root", pid)
}

// last is the last of the processes that each have started one other.
func last(pid int) int {
	for {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
		words := strings.Fields(string(text))
		if len(words) == 0 {
			return pid
		}
		child, err := strconv.Atoi(words[0])
		if err != nil {
			return pid
		}
		pid = child
	}
}

func (f *slurmFleet) venv(i int, env string) string { return f.roots[i] + "/opt/" + env }
func (f *slurmFleet) site(i int, env string) string {
	return f.venv(i, env) + "/lib/python3.11/site-packages"
}

// has is which wheel an environment has, complete, by its files; -1: no DeepSpeed.
func (f *slurmFleet) has(t *testing.T, i int, env string) int {
	t.Helper()
	infos, _ := filepath.Glob(f.site(i, env) + "/deepspeed*")
	if len(infos) == 0 {
		return -1
	}
	for w := range f.wheels {
		if slices.Contains(infos, f.site(i, env)+"/deepspeed-"+f.wheels[w].version+".dist-info") && len(infos) == 2 {
			if err := f.wheels[w].complete(f.venv(i, env), f.site(i, env)); err != nil {
				t.Errorf("%s/%s has %s, but %v", f.Nodes[i].Name, env, f.wheels[w].version, err)
			}
			return w
		}
	}
	t.Errorf("%s/%s has %q", f.Nodes[i].Name, env, infos)
	return -1
}

// all are the wheels that the environments have, node by node.
func (f *slurmFleet) all(t *testing.T) []int {
	t.Helper()
	var all []int
	for i := range f.Nodes {
		for _, env := range slurmEnvs {
			all = append(all, f.has(t, i, env))
		}
	}
	return all
}

// command prepares the program, as the user on the login node.
func (f *slurmFleet) command(t *testing.T, args ...string) (cmd *exec.Cmd, stdout, stderr *bytes.Buffer) {
	t.Helper()
	cmd = f.UserCommand(t.Context(), f.program, args...)
	stdout, stderr = new(bytes.Buffer), new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	return cmd, stdout, stderr
}

// report runs a fleet command and reads its report.
func (f *slurmFleet) report(t *testing.T, want int, args ...string) (report.Report, string) {
	t.Helper()
	cmd, stdout, stderr := f.command(t, append(args, "--via", "slurm", "--json")...)
	begin := time.Now()
	code := exitStatus(cmd.Run())
	f.took = time.Since(begin)
	t.Logf("dsbuild %s: exit %d after %.1f s\n%s", strings.Join(args, " "), code, f.took.Seconds(), stderr)
	var r report.Report
	if code != want {
		t.Fatalf("exit %d, want %d\n%s", code, want, stdout)
	}
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		t.Fatalf("%v: %s", err, stdout)
	}
	return r, stderr.String()
}

// settled waits until no job of dsbuild's is left, and checks that neither is
// anything that it has brought to the nodes.
func (f *slurmFleet) settled(t *testing.T) {
	t.Helper()
	slurmtest.Eventually(t, time.Minute, "no job of dsbuild's is left", func() bool {
		out, err := f.Command(t.Context(), "squeue", "--noheader", "--name=dsbuild").Output()
		return err == nil && len(bytes.TrimSpace(out)) == 0
	})
	for i, n := range f.Nodes {
		if _, err := os.Stat(f.roots[i]); err != nil {
			continue // it was switched off
		}
		litter, _ := filepath.Glob(f.roots[i] + "/tmp/.*")
		for _, env := range slurmEnvs {
			entries, _ := os.ReadDir(f.site(i, env) + "/.dsbuild")
			for _, e := range entries {
				if !slices.Contains([]string{"lock", "installed.json", "journal.jsonl", "previous", "wheel"}, e.Name()) {
					litter = append(litter, env+"/"+e.Name())
				}
			}
		}
		if len(litter) > 0 {
			t.Errorf("%s is left with %q", n.Name, litter)
		}
	}
}

// Four nodes of two environments go from nothing to a version, to the next one and
// back, without a connection but Slurm's.
func TestFullSlurm(t *testing.T) {
	f := newSlurmFleet(t, 4)
	r, _ := f.report(t, 0, "deploy", f.inventory, "--wheel", f.wheels[0].path)
	t.Logf("result: deploy of %d MB to 4 nodes of 2 environments by Slurm: %.1f s", ballast>>20, f.took.Seconds())
	if r.Summary.OK != 8 || !r.Consistent || len(changedNodes(r)) != 8 {
		t.Errorf("%+v, changed %q", r.Summary, changedNodes(r))
	}
	f.have(t, 0)

	if r, _ := f.report(t, 0, "deploy", f.inventory, "--wheel", f.wheels[0].path); len(changedNodes(r)) > 0 {
		t.Errorf("a second run changed %q", changedNodes(r))
	}
	t.Logf("result: a second run: nothing to do, %.1f s", f.took.Seconds())
	if r, _ := f.report(t, 0, "verify", f.inventory, "--wheel", f.wheels[0].path); r.Summary.OK != 8 {
		t.Errorf("verify: %+v", r.Summary)
	}
	t.Logf("result: verify: %.1f s", f.took.Seconds())

	f.report(t, 0, "deploy", f.inventory, "--wheel", f.wheels[1].path, "--serial", "1,100%")
	f.have(t, 1)
	if r, _ := f.report(t, 0, "rollback", f.inventory); len(changedNodes(r)) != 8 {
		t.Errorf("rollback changed %q", changedNodes(r))
	}
	t.Logf("result: rollback: %.1f s", f.took.Seconds())
	f.have(t, 0)

	// The commands that build ask the nodes in the same way.
	for _, args := range [][]string{{"ship", f.inventory, "--dry-run"}, {"wheel", "--for", f.inventory, "--dry-run"}} {
		cmd, stdout, stderr := f.command(t, append(args, "--via", "slurm")...)
		if code := exitStatus(cmd.Run()); code != 0 || !strings.Contains(stdout.String(), "for node[01-04]") {
			t.Errorf("dsbuild %q: exit %d\n%s\n%s", args, code, stdout, stderr)
		}
	}

	// The partition as an inventory: its Python is the system's, which has no DeepSpeed.
	r, _ = f.report(t, 3, "verify", "slurm:gpu", "--limit", "node[01-02]")
	if len(r.Nodes) != 2 || r.Nodes[1].Name != "node02" || r.Nodes[1].Status != report.Differs {
		t.Errorf("verify slurm:gpu: %+v", r.Nodes)
	}
	f.settled(t)
}

// have checks that every environment has a wheel, and that nothing else is left.
func (f *slurmFleet) have(t *testing.T, w int) {
	t.Helper()
	for i, got := range f.all(t) {
		if got != w {
			t.Errorf("%s/%s has %d", f.Nodes[i/2].Name, slurmEnvs[i%2], got)
		}
	}
	f.settled(t)
}

// A node that trains and one that is drained are named with the reason, and the
// others are served; the next run serves them too.
func TestFullSlurmBusyAndDrained(t *testing.T) {
	f := newSlurmFleet(t, 4)
	out, err := f.UserCommand(t.Context(), "sbatch", "--parsable", "--exclusive", "--nodelist=node02", "--job-name=train", "--wrap=sleep 600").Output()
	if err != nil {
		t.Fatal(err)
	}
	id := strings.TrimSpace(string(out))
	control := func(args ...string) {
		if out, err := f.Command(t.Context(), "scontrol", args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	control("update", "NodeName=node04", "State=DRAIN", "Reason=bad disk")
	r, _ := f.report(t, 3, "deploy", f.inventory, "--wheel", f.wheels[0].path, "--slurm-wait", "5s")
	for i, n := range r.Nodes {
		want := []string{"", "allocation timed out after 5.0s", "", "drained: bad disk"}[i/2]
		if status := map[bool]report.Status{true: report.OK, false: report.Unreachable}[want == ""]; n.Status != status || n.Error != want || want != "" && n.Step != "connect" {
			t.Errorf("%s is %s at %s: %s", n.Name, n.Status, n.Step, n.Error)
		}
		if want != "" {
			t.Logf("result: %s: %s (%s)", n.Name, n.Error, n.Hint)
		}
	}
	if out, err := f.Command(t.Context(), "scancel", id).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	control("update", "NodeName=node04", "State=RESUME")
	if r, _ := f.report(t, 0, "deploy", f.inventory, "--wheel", f.wheels[0].path); !slices.Equal(changedNodes(r), []string{"node02/train", "node02/dev", "node04/train", "node04/dev"}) {
		t.Errorf("the next run changed %q", changedNodes(r))
	}
	f.have(t, 0)
}

// The program is killed, interrupted, and its job cancelled, at moments of a deploy:
// the job is gone, every environment has one version, complete, and the next run
// succeeds.
func TestFullSlurmFaults(t *testing.T) {
	for _, c := range []struct {
		what     string
		from, to int // of moments and slurmMoments
		strike   func(t *testing.T, f *slurmFleet, pid int)
	}{
		{"kill -9 of dsbuild", 0, 10, func(_ *testing.T, _ *slurmFleet, pid int) { syscall.Kill(pid, syscall.SIGKILL) }},
		{"Ctrl-C", 0, 10, func(_ *testing.T, _ *slurmFleet, pid int) { syscall.Kill(pid, syscall.SIGINT) }},
		{"scancel", 0, 7, func(t *testing.T, f *slurmFleet, _ int) { f.Command(t.Context(), "scancel", "--name=dsbuild").Run() }},
		{"kill -9 of salloc", 3, 5, func(t *testing.T, f *slurmFleet, pid int) { f.killPrograms(t, pid, "salloc") }},
		// Then nobody tells the nodes, and the agents there wait for a word first.
		{"kill -9 of every srun", 0, 1, func(t *testing.T, f *slurmFleet, pid int) { f.killPrograms(t, pid, "srun") }},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			f := newSlurmFleet(t, 2)
			f.report(t, 0, "deploy", f.inventory, "--wheel", f.wheels[0].path)
			f.report(t, 0, "deploy", f.inventory, "--wheel", f.wheels[1].path, "--force")
			at := append(moments(ballast), slurmMoments(f.took)...)[c.from:c.to]
			came, missed := counts{}, []string{}
			for _, m := range at {
				f.struck(t, m, func(t *testing.T, pid int) { c.strike(t, f, pid) }, came, &missed)
			}
			t.Logf("result: %s at %d moments of a deploy by Slurm to 2 nodes of 2 environments, which then had: %s; the job was gone each time, and the next run succeeded and left nothing; missed: %s",
				c.what, len(at), came, list(missed))
		})
	}
}

// slurmMoments are some of which a whole run has more than the nodes show.
func slurmMoments(whole time.Duration) []moment {
	var all []moment
	for _, part := range []float64{0.02, 0.1, 0.3} {
		all = append(all, moment{name: fmt.Sprintf("%.0f%% of its time", 100*part), after: time.Duration(part * float64(whole))})
	}
	return all
}

// killPrograms ends the programs of a name that a process has started.
func (f *slurmFleet) killPrograms(t *testing.T, pid int, name string) {
	t.Helper()
	for _, p := range descendants(pid) {
		words, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p))
		if program, _, _ := strings.Cut(string(words), "\x00"); program == name {
			syscall.Kill(p, syscall.SIGKILL)
		}
	}
}

func descendants(pid int) []int {
	var all []int
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, file := range tasks {
		text, _ := os.ReadFile(file)
		for _, word := range strings.Fields(string(text)) {
			if child, err := strconv.Atoi(word); err == nil {
				all = append(append(all, child), descendants(child)...)
			}
		}
	}
	return all
}

// struck strikes a deploy at a moment.
func (f *slurmFleet) struck(t *testing.T, m moment, strike func(*testing.T, int), came counts, missed *[]string) {
	t.Helper()
	has := f.all(t)
	target := 1 - max(0, has[0])
	cmd, stdout, stderr := f.command(t, "deploy", f.inventory, "--via", "slurm", "--wheel", f.wheels[target].path, "--force", "--json")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	if f.reach(m, ended) {
		children := descendants(cmd.Process.Pid) // nsenter, which has started the program
		if len(children) > 0 {
			strike(t, children[0])
		}
		<-ended
	} else {
		*missed = append(*missed, m.name)
	}
	f.calm(t)
	var r report.Report
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil && stdout.Len() > 0 {
		t.Fatalf("%s: %v: %s", m.name, err, stdout)
	}
	for i, is := range f.all(t) {
		if len(r.Nodes) > 0 { // what the report says is so, or it says that nobody saw it
			if n := r.Nodes[i]; !n.StateUnknown && (n.After == nil || n.After.Version != f.wheels[max(is, 0)].version) {
				t.Errorf("%s: %s has %d, and the report says %+v", m.name, n.Name, is, n)
			}
		}
		switch is {
		case has[i]:
			came["old"]++
		case target:
			came["new"]++
		default:
			t.Errorf("%s: an environment had %d, was to have %d, and has %d", m.name, has[i], target, is)
		}
	}
	if t.Failed() {
		t.Fatalf("%s:\n%s\n%s", m.name, stdout, stderr)
	}
	begin := time.Now()
	f.report(t, 0, "deploy", f.inventory, "--wheel", f.wheels[target].path)
	t.Logf("%s: the next run took %.1f s", m.name, time.Since(begin).Seconds())
	f.have(t, target)
}

// reach waits until an environment of the first node is at a moment; false if the run
// ended before.
func (f *slurmFleet) reach(m moment, ended chan error) bool {
	for began := time.Now(); ; time.Sleep(200 * time.Microsecond) {
		if m.is == nil && time.Since(began) > m.after || m.is != nil && m.is(f.site(0, "train")+"/.dsbuild", f.site(0, "train")) {
			return true
		}
		select {
		case err := <-ended:
			ended <- err
			return false
		default:
		}
	}
}

// calm waits until nothing of the user's runs on the nodes, and no job is left.
func (f *slurmFleet) calm(t *testing.T) {
	t.Helper()
	slurmtest.Eventually(t, time.Minute, "the job and all that it ran are gone", func() bool {
		out, err := f.Command(t.Context(), "squeue", "--noheader", "--name=dsbuild").Output()
		if err != nil || len(bytes.TrimSpace(out)) > 0 {
			return false
		}
		for _, n := range f.Nodes {
			if n.Command(t.Context(), "pgrep", "-u", slurm.User).Run() == nil {
				return false
			}
		}
		return true
	})
}

// A node that dies in the middle takes nobody along.
func TestFullSlurmNodeDown(t *testing.T) {
	f := newSlurmFleet(t, 4)
	cmd, stdout, stderr := f.command(t, "deploy", f.inventory, "--via", "slurm", "--wheel", f.wheels[0].path, "--json")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	if !f.reach(moments(ballast)[3], ended) {
		t.Fatalf("it ended before\n%s\n%s", stdout, stderr)
	}
	begin := time.Now()
	if err := f.Nodes[0].PowerOff(t.Context()); err != nil {
		t.Fatal(err)
	}
	err := <-ended
	var r report.Report
	if code := exitStatus(err); code != 3 {
		t.Errorf("exit %d\n%s", code, stderr)
	}
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		t.Fatalf("%v: %s", err, stdout)
	}
	for i, n := range r.Nodes {
		if dead := i < 2; dead == (n.Status == report.OK) {
			t.Errorf("%s is %s at %s: %s", n.Name, n.Status, n.Step, n.Error)
		}
	}
	t.Logf("result: a node of 4 switched off in the middle (SlurmdTimeout 5): the others are ok, the run ends %.0f s later and says: %s", time.Since(begin).Seconds(), r.Nodes[0].Error)
}

// The commands of the pages about Slurm run on the login node of a cluster.
func TestFullSlurmPages(t *testing.T) {
	runPages(t, func(needs []string) bool { return slices.Contains(needs, "slurm") })
}
