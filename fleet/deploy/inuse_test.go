package deploy_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// train runs a job from the environment, and returns its pid and how to end it.
func (e environment) train(t *testing.T) (pid int, end func()) {
	t.Helper()
	script := filepath.Join(t.TempDir(), "train.py")
	if err := os.WriteFile(script, []byte("import time\nprint('runs', flush=True)\ntime.sleep(300)\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(e.python, "train.py", "--token=s3cret")
	c.Dir, c.Env = filepath.Dir(script), append(os.Environ(), "SLURM_JOB_ID=4711")
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	end = func() {
		c.Process.Kill() //nolint:errcheck // it may be gone
		c.Wait()         //nolint:errcheck // killed
	}
	t.Cleanup(end)
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return c.Process.Pid, end
}

// listProcesses is how an error names a job of train.
func listProcesses(pid int) string {
	return fmt.Sprintf("in use by pid %d (%s, Slurm job 4711): python train.py", pid, userName())
}

func userName() string {
	out, err := exec.Command("id", "-un").Output()
	if err != nil {
		return "?"
	}
	return strings.TrimSpace(string(out))
}

// warnings is a Reporter that keeps what asks for attention.
type warnings struct {
	ui.Reporter
	said []string
}

func (w *warnings) Warn(format string, args ...any) {
	w.said = append(w.said, fmt.Sprintf(format, args...))
}

func TestEnvironmentInUseIsLeftAsItIs(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	busy, idle := newEnvironment(t, "2.15.0"), newEnvironment(t, "2.15.0")
	a, sa := host(t, "gpu1", busy, sshtest.Options{})
	b, sb := host(t, "gpu2", idle, sshtest.Options{})
	opt := options(t, load(t, makeWheel(t, t.TempDir(), wheelOptions{})), []*sshtest.Server{sa, sb}, a, b)
	opt.MaxFailures = func(n, _ int) bool { return n > 0 } // a refusal is no failure
	count := &sshtest.CountingDialer{Dialer: opt.Dialer}
	opt.Dialer = count
	was := busy.snapshot(t)
	pid, end := busy.train(t)
	r := run(t, context.Background(), opt)
	n := r.Nodes[0]
	if n.Status != report.Refused || n.Step != "fit" || n.Changed || n.Error != "environment "+listProcesses(pid) || !strings.Contains(n.Hint, "--in-use wait=30m") {
		t.Errorf("%+v", n)
	}
	if r.Nodes[1].Status != report.OK || count.Puts.Load() != 1 || code(r.Err()) != 3 {
		t.Errorf("the other node: %+v, files sent %d, exit code %d", r.Nodes[1], count.Puts.Load(), code(r.Err()))
	}
	busy.mustBe(t, was)

	opt.InUse = change.InUse{Ignore: true}
	heard := &warnings{Reporter: opt.Reporter}
	opt.Reporter = heard
	if n := run(t, context.Background(), opt).Nodes[0]; n.Status != report.OK || !n.Changed {
		t.Errorf("ignored: %+v", n)
	}
	if len(heard.said) != 1 || !strings.Contains(heard.said[0], "gpu1: environment "+listProcesses(pid)) {
		t.Errorf("warnings: %q", heard.said)
	}
	// Where nothing is changed nobody is in the way.
	opt.InUse = change.InUse{}
	if n := run(t, context.Background(), opt).Nodes[0]; n.Status != report.OK || n.Changed {
		t.Errorf("left alone: %+v", n)
	}
	// A rollback changes it.
	if n := back(t, opt).Nodes[0]; n.Status != report.Refused || !strings.Contains(n.Error, listProcesses(pid)) {
		t.Errorf("rollback: %+v", n)
	}
	end()
	if n := back(t, opt).Nodes[0]; n.Status != report.OK || !n.Changed {
		t.Errorf("rollback of an idle one: %+v", n)
	}
	busy.mustBe(t, was)
}

func TestWaitsUntilTheEnvironmentIsFree(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	e := newEnvironment(t, "2.15.0")
	h, s := host(t, "gpu1", e, sshtest.Options{})
	opt := options(t, load(t, makeWheel(t, t.TempDir(), wheelOptions{})), []*sshtest.Server{s}, h)
	count := &sshtest.CountingDialer{Dialer: opt.Dialer}
	opt.Dialer = count
	pid, end := e.train(t)

	opt.InUse = change.InUse{Wait: time.Second}
	n := run(t, context.Background(), opt).Nodes[0]
	if n.Status != report.Refused || n.Step != "fit" || !strings.Contains(n.Error, listProcesses(pid)) || count.Puts.Load() != 0 {
		t.Errorf("still in use: %+v, files sent %d", n, count.Puts.Load())
	}
	opt.InUse = change.InUse{Wait: time.Minute}
	ctx, cancel := context.WithCancel(context.Background())
	opt.Reporter = onWaiting{opt.Reporter, cancel}
	if n = run(t, ctx, opt).Nodes[0]; n.Status != report.Skipped || n.Changed {
		t.Errorf("interrupted: %+v", n)
	}
	opt.Reporter = onWaiting{opt.Reporter, end}
	d := deploy.New(opt)
	defer d.Close()
	plan, err := d.Survey(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if p := plan.Nodes[0]; p.Action != change.Install || plan.Err() != nil || len(p.Notes) == 0 || !strings.HasPrefix(p.Notes[len(p.Notes)-1], "waits up to 1m00s: environment in use by pid") {
		t.Errorf("plan: %+v", p)
	}
	if n = d.Apply(context.Background()).Nodes[0]; n.Status != report.OK || !n.Changed {
		t.Errorf("free at last: %+v", n)
	}
}

// onWaiting calls waits when a node tells that it waits for its environment.
type onWaiting struct {
	ui.Reporter
	waits func()
}

// Note implements ui.Reporter.
func (r onWaiting) Note(format string, args ...any) {
	r.Reporter.Note(format, args...)
	if strings.Contains(fmt.Sprintf(format, args...), "; waiting until ") {
		r.waits()
	}
}

func TestJobThatStartsMeanwhileIsRespected(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t, "2.15.0")
	h, s := host(t, "gpu1", e, sshtest.Options{})
	opt := options(t, load(t, makeWheel(t, t.TempDir(), wheelOptions{})), []*sshtest.Server{s}, h)
	was := e.snapshot(t)
	pid := 0
	opt.Dialer = &sshtest.CountingDialer{Dialer: opt.Dialer, Before: func(remote.Upload) error {
		pid, _ = e.train(t)
		return nil
	}}
	n := run(t, context.Background(), opt).Nodes[0]
	if n.Status != report.Refused || n.Step != "install" || n.Changed || !strings.Contains(n.Error, listProcesses(pid)) || !strings.Contains(n.Hint, "--in-use") {
		t.Errorf("%+v", n)
	}
	e.mustBe(t, was)
	if left := e.leftovers(t); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// A shared environment is used by what runs on any of the nodes that share it,
// also where the one that installs sees nothing of it.
func TestSharedEnvironmentIsInUseOnAnyNode(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	needsMounts(t)
	e := newEnvironment(t, "2.15.0")
	a, sa := host(t, "gpu1", e, sshtest.Options{})
	b, sb := host(t, "gpu2", e, sshtest.Options{})
	a.ExecPrefix = hidesJobs
	opt := options(t, load(t, makeWheel(t, t.TempDir(), wheelOptions{})), []*sshtest.Server{sa, sb}, a, b)
	was := e.snapshot(t)
	pid, end := e.train(t)
	r := run(t, context.Background(), opt)
	if n := r.Nodes[0]; n.Status != report.Refused || n.Error != "shares an environment with gpu2: environment "+listProcesses(pid) {
		t.Errorf("the one that would install: %+v", n)
	}
	if n := r.Nodes[1]; n.Status != report.Refused || n.Error != "environment "+listProcesses(pid) {
		t.Errorf("the one where it is used: %+v", n)
	}
	e.mustBe(t, was)
	opt.InUse = change.InUse{Wait: time.Second}
	r = run(t, context.Background(), opt)
	for _, n := range r.Nodes {
		if n.Status != report.Refused || !strings.Contains(n.Error, listProcesses(pid)) || !strings.Contains(n.Error, "gpu2") && n.Name == "gpu1" {
			t.Errorf("after waiting: %+v", n)
		}
	}
	opt.InUse, opt.Reporter = change.InUse{Wait: time.Minute}, onWaiting{opt.Reporter, end}
	if r = run(t, context.Background(), opt); r.Err() != nil {
		t.Errorf("free at last: %v", r.Err())
	}
}

func TestParseInUse(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]change.InUse{"refuse": {}, "ignore": {Ignore: true}, "wait=90s": {Wait: 90 * time.Second}, "wait=1h30m": {Wait: 90 * time.Minute}} {
		if got, err := change.ParseInUse(s); err != nil || got != want {
			t.Errorf("%s: %+v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "Refuse", "wait", "wait=", "wait=5", "wait=-1s", "wait=0s", "ignore=1s"} {
		if got, err := change.ParseInUse(s); err == nil {
			t.Errorf("%q: %+v", s, got)
		}
	}
}
