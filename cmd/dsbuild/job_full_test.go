//go:build full && linux

package main

import (
	"bytes"
	"context"
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

	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
	"github.com/dsbuild/dsbuild/internal/testkit/slurm"
	"github.com/dsbuild/dsbuild/internal/testkit/slurm/slurmtest"
	"github.com/dsbuild/dsbuild/launch/jobrunner"
)

// jobGrace is the grace that these tests give; what they start takes no notice of
// being asked to end.
const jobGrace = 2 * time.Second

// TestFullJobs is a job of four real nodes with two ranks on each, started by one
// command, with real torch: it passes, and however it ends nothing is left on any
// node.
func TestFullJobs(t *testing.T) {
	f := jobFleet{nodestest.Up(t, nodes.Options{Count: 4, Env: nodes.WithTorch})}
	f.put(t, "steps.py")
	t.Run("passes", func(t *testing.T) { f.passes(t) })
	t.Run("c10d", func(t *testing.T) { f.passes(t, "--rendezvous", "c10d") })
	t.Run("rank killed", func(t *testing.T) { f.rankKilled(t) })
	t.Run("rank raises", func(t *testing.T) { f.rankRaises(t) })
	t.Run("Ctrl-C", func(t *testing.T) { f.interrupted(t) })
	t.Run("dsbuild killed", func(t *testing.T) { f.driverKilled(t) })
	t.Run("supervisor killed", func(t *testing.T) { f.supervisorKilled(t) })
	t.Run("node lost", func(t *testing.T) { f.nodeLost(t) })
	t.Run("script missing", func(t *testing.T) { f.scriptMissing(t) })
}

// TestFullJobJAX is the same with JAX.
func TestFullJobJAX(t *testing.T) {
	f := jobFleet{nodestest.Up(t, nodes.Options{Count: 2, Env: nodes.WithTorch, Packages: []string{"jax"}})}
	f.put(t, "psum.py")
	j := f.start(t, "jax", "--gpus", "0", "--procs", "2", "--", "psum.py", "--text", "a b")
	r := j.ends(t, exitOK)
	for rank := range 4 {
		if text := j.log(t, r, rank); !strings.Contains(text, fmt.Sprintf("rank %d of 4", rank)) || !strings.Contains(text, `sum 10, given ["--text", "a b"]`) {
			t.Errorf("rank %d says\n%s", rank, text)
		}
	}
	f.empty(t)
}

// TestFullJobElastic is a job of one node or two that loses one, and comes to its
// end with the one that is left.
func TestFullJobElastic(t *testing.T) {
	f := jobFleet{nodestest.Up(t, nodes.Options{Count: 2, Env: nodes.WithTorch})}
	f.put(t, "elastic.py")
	shared := t.TempDir()
	j := f.start(t, "torchrun", "--nodes", "1:2", "--gpus", "0", "--workdir", shared, "--", filepath.Join(f.Nodes[0].Home, "elastic.py"))
	checkpoint := filepath.Join(shared, "checkpoint.json")
	for end := time.Now().Add(longest); ; time.Sleep(100 * time.Millisecond) {
		text, err := os.ReadFile(checkpoint)
		if err == nil && bytes.Contains(text, []byte(`"present": 2`)) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the two do not begin: %s\n%s", text, &j.stderr)
		}
	}
	stays, goes := 0, 1
	if f.keepsStore(t, 1) {
		stays, goes = 1, 0 // on one machine torchrun cannot tell whose address the master's is
	}
	for pid, words := range f.atNodes(t) {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && slices.Contains(words, "HOME="+f.Nodes[goes].Home) && bytes.Contains(line, []byte("elastic.py")) {
			syscall.Kill(pid, syscall.SIGKILL) //nolint:errcheck // it ends with the one before it
		}
	}
	r := j.ends(t, exitOK)
	if r.State != jobrunner.Passed || r.Nodes[stays].State != "passed" || r.Nodes[goes].State == "passed" || !strings.Contains(j.log(t, r, 0), "of 1 on ") || !strings.Contains(j.log(t, r, 0), "done at step 60") {
		t.Errorf("%+v\n%s", r, j.log(t, r, 0))
	}
	f.empty(t)
}

// keepsStore reports whether node n has the store at which torchrun's agents meet.
func (f jobFleet) keepsStore(t *testing.T, n int) bool {
	t.Helper()
	sockets := map[string]bool{}
	for pid, words := range f.atNodes(t) {
		if !slices.Contains(words, "HOME="+f.Nodes[n].Home) {
			continue
		}
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) //nolint:errcheck // it may have ended
		_, rest, ok := strings.Cut(string(line), "--rdzv-endpoint=")
		if !ok {
			continue
		}
		endpoint, _, _ := strings.Cut(rest, "\x00")
		port := fmt.Sprintf("%04X", mustNumber(t, endpoint[strings.LastIndexByte(endpoint, ':')+1:]))
		for _, table := range []string{"tcp", "tcp6"} {
			text, _ := os.ReadFile("/proc/net/" + table) //nolint:errcheck // no IPv6 here
			for line := range strings.Lines(string(text)) {
				if w := strings.Fields(line); len(w) > 9 && w[3] == "0A" && strings.HasSuffix(w[1], ":"+port) {
					sockets["socket:["+w[9]+"]"] = true
				}
			}
		}
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid)) //nolint:errcheck // it may have ended
		for _, file := range files {
			if to, err := os.Readlink(file); err == nil && sockets[to] {
				return true
			}
		}
	}
	return false
}

// TestFullJobMenu is the menu's way to a job on several machines, typed at a
// terminal, to its end. A check would find that these nodes are one machine.
func TestFullJobMenu(t *testing.T) {
	f := jobFleet{nodestest.Up(t, nodes.Options{Count: 2, Env: nodes.WithTorch})}
	f.put(t, "steps.py")
	m := startMenu(t)
	m.answers(t, "Number: ", "2\n", "[inventory.yaml]: ", f.Inventory+"\n", "arguments: ", "steps.py 'a b'\n", "(0 to use the CPU)", "0\n", "first? (y, n) [y]: ", "n\n", "Run it now? (y, n) [y]: ", "\n")
	said := m.ends(t, exitOK)
	if !strings.Contains(said, "job train passed after ") || !strings.Contains(said, "2 of 2 nodes running") || !strings.Contains(said, "rank 0: rank 0 of 2: step ") {
		t.Errorf("on the screen:\n%s", said)
	}
	logs, err := filepath.Glob(filepath.Join(m.dir, ".local/state/dsbuild/jobs/*-train/worker-1.log"))
	if err != nil || len(logs) != 1 {
		t.Fatalf("%v: %q", err, logs)
	}
	if text, err := os.ReadFile(logs[0]); err != nil || !strings.Contains(string(text), "rank 1: done, given ['a b']") {
		t.Errorf("%v: %q", err, text)
	}
	f.empty(t)
}

// jobFleet are nodes that run jobs.
type jobFleet struct{ *nodes.Fleet }

// put copies a program of testdata/launch to the homes of all nodes.
func (f jobFleet) put(t *testing.T, name string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "launch", name))
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range f.Nodes {
		if err := os.WriteFile(filepath.Join(n.Home, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// jobRunning is dsbuild as a process of its own that runs a job.
type jobRunning struct {
	cmd    *exec.Cmd
	stdout bytes.Buffer
	stderr bytes.Buffer
	ended  chan struct{}
	struck time.Time // when something was done to it
}

func (f jobFleet) start(t *testing.T, kind string, args ...string) *jobRunning {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	j := &jobRunning{cmd: exec.Command(self), ended: make(chan struct{})}
	home := t.TempDir()
	words := []string{"dsbuild", "launch", kind, "-i", f.Inventory, "--submit", "--json", "--logs", filepath.Join(home, "logs"), "--grace", jobGrace.String()}
	j.cmd.Args, j.cmd.Dir = append(words, args...), home
	j.cmd.Env = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH"), "LC_ALL=C.UTF-8"}
	j.cmd.Stdout, j.cmd.Stderr = &j.stdout, &j.stderr
	if err := j.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		j.cmd.Wait() //nolint:errcheck // the exit code is asked for
		close(j.ended)
	}()
	t.Cleanup(func() {
		j.cmd.Process.Kill() //nolint:errcheck // it may have ended
		<-j.ended
	})
	return j
}

// torchrun starts steps.py with two ranks on each node.
func (f jobFleet) torchrun(t *testing.T, more ...string) *jobRunning {
	t.Helper()
	return f.start(t, "torchrun", append([]string{"--gpus", "0", "--procs", "2"}, more...)...)
}

// ends waits for the end with this code, and returns the report.
func (j *jobRunning) ends(t *testing.T, code int) *jobrunner.Report {
	t.Helper()
	select {
	case <-j.ended:
	case <-time.After(longest):
		t.Fatalf("it does not end\n%s", &j.stderr)
	}
	if !j.struck.IsZero() {
		took := time.Since(j.struck)
		t.Logf("result: %s: ended after %.1f s, of which %s are the grace", t.Name(), took.Seconds(), jobGrace)
		if took > jobGrace+time.Minute {
			t.Errorf("it took %s", took)
		}
	}
	if got := j.cmd.ProcessState.ExitCode(); got != code {
		t.Fatalf("exit %d, want %d\n%s\n%s", got, code, &j.stdout, &j.stderr)
	}
	var said struct{ Jobs []jobrunner.Report }
	if err := json.Unmarshal(j.stdout.Bytes(), &said); err != nil || len(said.Jobs) != 1 {
		t.Fatalf("%v: %s", err, &j.stdout)
	}
	for _, n := range said.Jobs[0].Nodes {
		if len(n.Left) > 0 {
			t.Errorf("it says that processes %v are left on %s", n.Left, n.Name)
		}
	}
	return &said.Jobs[0]
}

// log is what a rank has said.
func (j *jobRunning) log(t *testing.T, r *jobrunner.Report, rank int) string {
	t.Helper()
	text, err := os.ReadFile(r.Ranks[rank].Log)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func (j *jobRunning) kill(t *testing.T, pid int, signal syscall.Signal) {
	t.Helper()
	j.struck = time.Now()
	if err := syscall.Kill(pid, signal); err != nil {
		t.Fatal(err)
	}
}

// atNodes are the processes that live on the nodes, apart from their servers: by
// the home that they were given.
func (f jobFleet) atNodes(t *testing.T) map[int][]string {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	found := map[int][]string{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		raw, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if err != nil {
			continue // it has ended
		}
		words := strings.Split(string(raw), "\x00")
		if slices.ContainsFunc(f.Nodes, func(n *nodes.Node) bool { return slices.Contains(words, "HOME="+n.Home) }) {
			found[pid] = words
		}
	}
	return found
}

// empty waits until nothing runs on any node: sessions of a server need a moment.
func (f jobFleet) empty(t *testing.T) {
	t.Helper()
	var left map[int][]string
	for end := time.Now().Add(jobGrace + time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if left = f.atNodes(t); len(left) == 0 {
			break
		}
	}
	for pid := range left {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) //nolint:errcheck // it may have ended
		t.Errorf("left over: %d: %q", pid, line)
		syscall.Kill(pid, syscall.SIGKILL) //nolint:errcheck // likewise
	}
	t.Logf("result: %s: processes left on the nodes: %d", t.Name(), len(left))
	if dirs, err := filepath.Glob(filepath.Join(f.Dir, "*", "tmp", ".dsbuild-job-*")); err != nil || len(dirs) > 0 {
		t.Errorf("%v: left over: %q", err, dirs)
	}
}

// rank waits until a rank has come to its third step, and returns its process.
func (f jobFleet) rank(t *testing.T, j *jobRunning, number int) int {
	t.Helper()
	for end := time.Now().Add(longest); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		select {
		case <-j.ended:
			t.Fatalf("it has ended\n%s", &j.stderr)
		default:
		}
		for pid, words := range f.atNodes(t) {
			line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) //nolint:errcheck // it may have ended
			if slices.Contains(words, "RANK="+strconv.Itoa(number)) && bytes.Contains(line, []byte("steps.py")) && f.atStep(t, number) {
				return pid
			}
		}
	}
	t.Fatalf("there is no rank %d\n%s", number, &j.stderr)
	return 0
}

// atStep reports whether a rank's log on its node has come to the third step.
func (f jobFleet) atStep(t *testing.T, number int) bool {
	t.Helper()
	var all []string
	for _, pattern := range []string{"*/tmp/.dsbuild-job-*/ranks/*/*/*/stdout.log", "*/tmp/.dsbuild-job-*/ranks/*.log"} {
		files, err := filepath.Glob(filepath.Join(f.Dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, files...)
	}
	return slices.ContainsFunc(all, func(name string) bool {
		text, err := os.ReadFile(name)
		return err == nil && bytes.Contains(text, fmt.Appendf(nil, "rank %d of", number)) && bytes.Contains(text, []byte("step 3,"))
	})
}

func (f jobFleet) passes(t *testing.T, more ...string) {
	j := f.torchrun(t, append(more, "--", "steps.py", "--text", "it's $HOME")...)
	r := j.ends(t, exitOK)
	if r.State != jobrunner.Passed || len(r.Ranks) != 8 || len(r.Nodes) != 4 {
		t.Errorf("%+v", r)
	}
	for rank := range 8 {
		text := j.log(t, r, rank)
		for step := range 3 {
			if !strings.Contains(text, fmt.Sprintf("rank %d of 8: step %d, sum 8\n", rank, step)) {
				t.Errorf("rank %d says\n%s", rank, text)
			}
		}
		if !strings.Contains(text, fmt.Sprintf(`rank %d: done, given ['--text', "it's $HOME"]`, rank)) {
			t.Errorf("rank %d was given something else\n%s", rank, text)
		}
	}
	if base := filepath.Base(r.Ranks[0].Log); base != "main.log" {
		t.Errorf("the log of rank 0 is %s", base)
	}
	t.Logf("result: %s: %.1f s", t.Name(), r.Seconds)
	f.empty(t)
}

// forever are a job's arguments that would run on for an hour, and start what does
// not want to end.
func forever() []string {
	return []string{"--env", "STEPS=18000", "--env", "ESCAPE=1", "--", "steps.py"}
}

func (f jobFleet) rankKilled(t *testing.T) {
	j := f.torchrun(t, forever()...)
	j.kill(t, f.rank(t, j, 5), syscall.SIGKILL)
	r := j.ends(t, exitFailed)
	if r.State != jobrunner.Failed || r.Code != 137 || r.First == nil || r.First.Rank == nil || *r.First.Rank != 5 || r.First.Node != "node3" || len(r.First.Last) == 0 {
		t.Errorf("%+v", r.First)
	}
	said := j.stderr.String()
	first, then := strings.Index(said, "rank 5 on node3 failed first: killed by signal 9 (KILL)\n  last lines of "), strings.Index(said, "\nthen: ")
	if first < 0 || then < first || !strings.Contains(said[first:], "rank 5 of 8: step 3") {
		t.Errorf("it says\n%s", said)
	}
	if !strings.Contains(said, "dsbuild: job train failed after ") || !strings.Contains(said, " on node3 (rank 5, killed by signal 9 (KILL)); exit code 137; logs: ") {
		t.Errorf("it says last\n%s", said)
	}
	f.empty(t)
}

func (f jobFleet) rankRaises(t *testing.T) {
	j := f.torchrun(t, "--env", "STEPS=18000", "--env", "FAIL_6=raise", "--", "steps.py")
	r := j.ends(t, exitFailed)
	if r.First == nil || r.First.Rank == nil || *r.First.Rank != 6 || r.First.Hint == "" || !strings.Contains(strings.Join(r.First.Last, "\n"), "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (a test)") {
		t.Errorf("%+v", r.First)
	}
	t.Logf("it says\n%s", &j.stderr)
	f.empty(t)
}

func (f jobFleet) interrupted(t *testing.T) {
	j := f.torchrun(t, forever()...)
	f.rank(t, j, 7)
	j.kill(t, j.cmd.Process.Pid, syscall.SIGINT)
	if r := j.ends(t, exitInterrupted); r.State != jobrunner.Interrupted {
		t.Errorf("%+v", r)
	}
	f.empty(t)
}

func (f jobFleet) driverKilled(t *testing.T) {
	j := f.torchrun(t, forever()...)
	f.rank(t, j, 0)
	j.kill(t, j.cmd.Process.Pid, syscall.SIGKILL)
	f.empty(t)
}

// supervisorKilled kills the processes of dsbuild's program on a node, one or the
// other: what it started is ended all the same.
func (f jobFleet) supervisorKilled(t *testing.T) {
	for _, inner := range []bool{true, false} {
		j := f.torchrun(t, forever()...)
		f.rank(t, j, 2)
		var struck int
		for pid, words := range f.atNodes(t) {
			line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) //nolint:errcheck // it may have ended
			if !slices.Contains(words, "HOME="+f.Nodes[1].Home) || !bytes.Contains(line, []byte("#dsbuild")) || !bytes.Contains(line, []byte("\x00-I\x00")) {
				continue
			}
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			if err != nil {
				t.Fatal(err)
			}
			leads := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))[3] == strconv.Itoa(pid) // its session
			parent := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))[1]
			_, hasParent := f.atNodes(t)[mustNumber(t, parent)]
			if isInner := leads && hasParent && parentIs(t, parent, "#dsbuild"); isInner == inner {
				struck = pid
			}
		}
		if struck == 0 {
			t.Fatal("no supervisor was found")
		}
		j.kill(t, struck, syscall.SIGKILL)
		if r := j.ends(t, exitFailed); r.First == nil || r.First.Node != "node2" {
			t.Errorf("inner %v: %+v", inner, r.First)
		}
		f.empty(t)
	}
}

func mustNumber(t *testing.T, word string) int {
	t.Helper()
	n, err := strconv.Atoi(word)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func parentIs(t *testing.T, pid, word string) bool {
	t.Helper()
	line, err := os.ReadFile("/proc/" + pid + "/cmdline")
	return err == nil && bytes.Contains(line, []byte(word)) && bytes.Contains(line, []byte("\x00-I\x00"))
}

// nodeLost ends a node's server with all its sessions, as a crash would.
func (f jobFleet) nodeLost(t *testing.T) {
	j := f.torchrun(t, forever()...)
	f.rank(t, j, 6)
	j.struck = time.Now()
	if err := f.Stop(3); err != nil {
		t.Fatal(err)
	}
	if r := j.ends(t, exitFailed); r.First == nil || r.First.Node != "node4" {
		t.Errorf("%+v", r.First)
	}
	f.empty(t)
	if err := f.Start(3); err != nil {
		t.Fatal(err)
	}
}

// scriptMissing is found before anything is started.
func (f jobFleet) scriptMissing(t *testing.T) {
	j := f.torchrun(t, "--", "other.py")
	r := j.ends(t, exitFailed)
	if r.State != jobrunner.NotStarted || r.First == nil || !strings.Contains(r.First.Why, "file not found: "+filepath.Join(f.Nodes[0].Home, "other.py")) || r.First.Hint == "" || strings.Count(j.stderr.String(), ": node reported: file not found: ") != len(f.Nodes)+1 { // each home has a path of its own; the error names the first
		t.Errorf("%+v\n%s", r.First, &j.stderr)
	}
	f.empty(t)
}

// TestFullJobChecked is the menu's whole way, on nodes with networks of their own:
// the nodes are checked, found to be ready, and run the job; where one is not, the
// job does not begin.
func TestFullJobChecked(t *testing.T) {
	c := slurmtest.Up(t, slurm.Options{Nodes: 2, DiskMB: 4096, Packages: []string{"torch==" + nodes.DefaultTorch, "numpy"}})
	program := copyProgram(t, c)
	g := checkGround{ground: newGround(t, c, "sum.py")}.bySSH(t)
	own := t.TempDir() // root runs it, and the home is another account's
	menu := func(code int) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), longest)
		defer cancel()
		cmd := g.Command(ctx, program, "start")
		cmd.Env = append(cmd.Env, "XDG_CACHE_HOME="+own, "XDG_STATE_HOME="+own)
		cmd.Stdin = strings.NewReader("2\n" + g.list(t, nil) + "\n" + filepath.Join(g.dir, "sum.py") + "\n0\ny\ny\n")
		out, err := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != code {
			t.Fatalf("exit %d (%v), want %d\n%s", got, err, code, out)
		}
		return string(out)
	}
	if said := menu(exitOK); !strings.Contains(said, "2 nodes ready for a job") || !strings.Contains(said, "job train passed after ") {
		t.Errorf("it says\n%s", said)
	}
	console(t, g.Nodes[1], wrongHosts)
	if said := menu(exitNodes); strings.Contains(said, "job train") {
		t.Errorf("it began\n%s", said)
	}
}
