package jobrunner

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
	"github.com/dsbuild/dsbuild/launch"
)

// atWorkOn is a run of a job with one rank on each of these nodes.
func atWorkOn(t *testing.T, nodes ...string) *jobRun {
	t.Helper()
	book, err := newRankLogs(filepath.Join(t.TempDir(), "logs"), len(nodes))
	if err != nil {
		t.Fatal(err)
	}
	job := &launch.Job{Name: "train"}
	job.Nodes.Min = len(nodes)
	c := &jobRun{opt: Options{Job: job, Logs: book.dir, Report: ui.New(io.Discard, ui.Options{})}, book: book, ranks: map[int]*rank{}, phase: running, begin: time.Now()}
	for i, name := range nodes {
		m := &member{Machine: &Machine{Part: launch.Part{Node: name, Host: &inventory.Host{Name: name}}}, state: atWork}
		c.members = append(c.members, m)
		c.ranks[i] = &rank{number: i, member: m}
	}
	return c
}

// fail notes that a rank has failed after some seconds, with these last words.
func (c *jobRun) fail(number int, after time.Duration, code, signal int, words ...string) {
	r := c.ranks[number]
	r.failed, r.code, r.signal = c.begin.Add(after), code, signal
	for _, w := range words {
		r.tail.addText("out", w+"\n")
	}
}

// The original failure is named first: not the rank that was told to end, nor the one that only
// noticed that a peer was gone, however early they ended.
func TestOriginalFailureIsFirst(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change     func(c *jobRun)
		first, why string
		code       int
		hint       string
		followed   int
	}{
		"an error of its own": {func(c *jobRun) {
			c.fail(0, 1*time.Second, 1, 0, "Connection closed by peer")
			c.fail(1, 2*time.Second, 3, 0, "ValueError: no such optimizer")
			c.fail(2, time.Second/2, 0, 15)
		}, "gpu2", "exit code 3", 3, "", 2},
		"killed": {func(c *jobRun) {
			c.fail(0, 1*time.Second, 1, 0, "NCCL WARN remote error")
			c.fail(2, 2*time.Second, 0, 9)
		}, "gpu3", "killed by signal 9 (KILL)", 137, "run 'sudo dmesg' on the node", 1},
		"out of memory": {func(c *jobRun) {
			c.fail(1, 1*time.Second, 1, 0, "torch.OutOfMemoryError: CUDA out of memory")
		}, "gpu2", "exit code 1", 1, "smaller micro batch", 0},
		"of two alike the earlier": {func(c *jobRun) {
			c.fail(2, 1*time.Second, 2, 0, "SyntaxError")
			c.fail(0, 2*time.Second, 2, 0, "SyntaxError")
		}, "gpu3", "exit code 2", 2, "", 1},
		"a lost node": {func(c *jobRun) {
			c.members[1].state, c.members[1].err, c.members[1].at = lost, fault.WithHint(errors.New("the connection was lost"), "is it on?"), c.begin.Add(time.Second)
			c.fail(0, 2*time.Second, 1, 0, "timed out")
		}, "gpu2", "the connection was lost", 1, "is it on?", 1},
		"a launcher": {func(c *jobRun) {
			m := c.members[2]
			m.state, m.end, m.at, m.ended = over, ending{Code: 127}, c.begin.Add(time.Second), true
			m.launcher.addText("err", "torchrun: command not found\n")
		}, "gpu3", "launcher exited: exit code 127", 127, "set the interpreter with --python", 0},
		"a node's reason": {func(c *jobRun) {
			m := c.members[0]
			m.state, m.end, m.at, m.ended = over, ending{Code: 1, Reason: "dsbuild is \x1b[31mgone"}, c.begin.Add(time.Second), true
		}, "gpu1", "node reported: dsbuild is gone", 1, "", 0},
		"an unknown signal": {func(c *jobRun) { c.fail(1, time.Second, 0, 64) }, "gpu2", "killed by signal 64 (?)", 192, "", 0},
		"an absurd signal":  {func(c *jobRun) { c.fail(1, time.Second, 0, -128) }, "gpu2", "killed by signal -128 (?)", 1, "", 0},
	} {
		run := atWorkOn(t, "gpu1", "gpu2", "gpu3")
		c.change(run)
		r := run.buildReport(t.Context())
		if r.State != Failed || r.First == nil || r.First.Node != c.first || r.First.Why != c.why || r.Code != c.code || len(r.Followed) != c.followed || !strings.Contains(r.First.Hint, c.hint) {
			t.Errorf("%s: %s, code %d, first %+v, %d followed", name, r.State, r.Code, r.First, len(r.Followed))
			continue
		}
		err := r.Err()
		if err == nil || !strings.Contains(err.Error(), "job train failed after ") || !strings.Contains(err.Error(), c.first+" (") || !strings.Contains(fault.Hint(err), c.hint) || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%s: %v, hint %q", name, err, fault.Hint(err))
		}
	}
}

// A job that could not begin names each node's reason, and one that passed none.
func TestJobThatDidNotBegin(t *testing.T) {
	t.Parallel()
	c := atWorkOn(t, "gpu1", "gpu2")
	c.ranks, c.phase = map[int]*rank{}, gathering
	for i, why := range []string{"Python not found", "directory not found: /data"} {
		c.members[i].state, c.members[i].err = refused, fault.WithHint(errors.New(why), "hint %d", i)
	}
	r := c.buildReport(t.Context())
	if err := r.Err(); r.State != NotStarted || err.Error() != "job train did not start: gpu1: Python not found" || fault.Hint(err) != "hint 0" || r.Code != 1 {
		t.Errorf("%s: %v, hint %q", r.State, err, fault.Hint(err))
	}
	var out strings.Builder
	r.Tell(ui.New(&out, ui.Options{}))
	if !strings.Contains(out.String(), "gpu1: Python not found") || !strings.Contains(out.String(), "gpu2: directory not found: /data") {
		t.Error(out.String())
	}
	if r.Nodes[0].State != "refused" || r.Nodes[0].Why != "Python not found" {
		t.Errorf("%+v", r.Nodes)
	}
	passed := atWorkOn(t, "gpu1", "gpu2")
	for _, m := range passed.members {
		m.state, m.ended = over, true
	}
	if r := passed.buildReport(t.Context()); r.Err() != nil || r.Code != 0 || *r.Ranks[1].Code != 0 || r.Nodes[0].State != "passed" {
		t.Errorf("%+v", r)
	}
}

// A launcher's words count for its own ranks only.
func TestLaunchersVerdict(t *testing.T) {
	t.Parallel()
	c := atWorkOn(t, "gpu1", "gpu2")
	e := event{at: c.begin.Add(time.Second)}
	c.verdictOf(c.members[1], "E1 failed (exitcode: -9) local_rank: 0 (pid: 7) of binary: python", e)
	c.verdictOf(c.members[0], "rank 1 ended with exit code 5", e) // of JAX, which this is not
	c.verdictOf(c.members[0], "failed (exitcode: 99999999999999999999) local_rank: 0 x", e)
	if c.ranks[0].failed != (time.Time{}) || c.ranks[1].signal != 9 || c.ranks[1].code != 0 {
		t.Errorf("%+v, %+v", c.ranks[0], c.ranks[1])
	}
	c = atWorkOn(t, "gpu1", "gpu2")
	c.opt.Job.Kind = launch.JAX
	c.verdictOf(c.members[0], "rank 1 ended with exit code 139", e) // another node's rank
	c.verdictOf(c.members[0], "rank 0 ended with exit code 139", e)
	if c.ranks[1].failed != (time.Time{}) || c.ranks[0].signal != 11 {
		t.Errorf("%+v, %+v", c.ranks[0], c.ranks[1])
	}
}

// Logs lie in the job's folder, whatever a node calls its processes; an old log or a link is replaced,
// never followed.
func TestRankLogsStayInTheirFolder(t *testing.T) {
	t.Parallel()
	c := atWorkOn(t, "gpu1", "gpu2/env")
	other := filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(other, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, filepath.Join(c.book.dir, mainFile)); err != nil {
		t.Fatal(err)
	}
	for _, out := range []struct {
		from      int
		key, text string
	}{
		{0, "0", "one\n"}, {0, "0", "NCCL INFO ring\n"}, {1, "0", "not mine\n"}, {1, "1", "two\n"}, {1, "local:../../x", "three\n"}, {0, "local:5", "four\n"}, {0, "local:99999", "five\n"}, {0, "launcher", "six\n"},
	} {
		c.logOutput(event{from: c.members[out.from], message: message{Out: &output{Key: out.key, Text: out.text, Kind: "out"}}})
	}
	want := map[string]string{
		mainFile: "one\nNCCL INFO ring\n", "worker-1.log": "two\n", communicationFile: "rank 0 on gpu1: NCCL INFO ring\n", "worker-gpu1.5.log": "four\n", "launcher-gpu1.log": "five\nsix\n", "worker-gpu2+env.0.log": "not mine\n", "launcher-gpu2+env.log": "three\n",
	}
	entries, err := os.ReadDir(c.book.dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
		text, err := os.ReadFile(filepath.Join(c.book.dir, e.Name()))
		if err != nil || string(text) != want[e.Name()] {
			t.Errorf("%s: %q, %v; want %q", e.Name(), text, err, want[e.Name()])
		}
	}
	if len(names) != len(want) || c.book.err != nil || !slices.Contains(names, mainFile) {
		t.Errorf("%q, %v", names, c.book.err)
	}
	if text, _ := os.ReadFile(other); string(text) != "mine" { //nolint:errcheck // compared
		t.Errorf("a link was followed: %q", text)
	}
}

// A full log ends with one word about it.
func TestFullLog(t *testing.T) {
	t.Parallel()
	c := atWorkOn(t, "gpu1")
	c.book.appendLine("x.log", "begin\n")
	c.book.sizes["x.log"] = maxLog - 10
	for range 3 {
		c.book.appendLine("x.log", "a longer line than ten bytes\n")
		c.book.appendLine("x.log", "short\n")
	}
	text, err := os.ReadFile(filepath.Join(c.book.dir, "x.log"))
	if err != nil || string(text) != "begin\n[dsbuild: log truncated]\n" {
		t.Errorf("%q, %v", text, err)
	}
}
