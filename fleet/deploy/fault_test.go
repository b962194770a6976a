package deploy_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/inventory"
)

func TestOneChangedHostKeyAndOneDeadNodeDoNotStopTheOthers(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	wheels := load(t, makeWheel(t, t.TempDir(), wheelOptions{}))
	var hosts []inventory.Host
	var servers []*sshtest.Server
	for _, opt := range []sshtest.Options{{}, {WrongKey: true}, {}, {StallOnAccept: true}} {
		h, s := host(t, "gpu"+string(rune('1'+len(hosts))), newEnvironment(t, "2.15.0"), opt)
		hosts, servers = append(hosts, h), append(servers, s)
	}
	opt := options(t, wheels, servers, hosts...)
	opt.Dialer = impatient()
	r := run(t, context.Background(), opt)
	for i, want := range []report.Status{report.OK, report.Unreachable, report.OK, report.Unreachable} {
		if n := r.Nodes[i]; n.Status != want {
			t.Errorf("%s: %s, want %s (%s)", n.Name, n.Status, want, n.Error)
		}
	}
	if n := r.Nodes[1]; n.Step != "connect" || !strings.Contains(n.Error, "host key") {
		t.Errorf("a changed host key is told as %q at %s", n.Error, n.Step)
	}
	if r.Consistent || code(r.Err()) != 3 || r.Summary.OK != 2 || r.Summary.Unreachable != 2 {
		t.Errorf("consistent %v, err %v, summary %+v", r.Consistent, r.Err(), r.Summary)
	}
	var out strings.Builder
	if err := r.Print(&out); err != nil || !strings.Contains(out.String(), "gpu[1,3]") || !strings.HasSuffix(out.String(), "2 of 4 nodes ok, 2 unreachable\n") {
		t.Errorf("%v\n%s", err, out.String())
	}
}

func code(err error) int {
	var c interface{ ExitCode() int }
	if errors.As(err, &c) {
		return c.ExitCode()
	}
	return 0
}

func TestRefusedNodesAreSentNothing(t *testing.T) {
	t.Parallel()
	ready := newEnvironment(t, "2.15.0")
	old := newEnvironment(t, "2.14.0")
	bare := newEnvironment(t, "")
	poor := newEnvironment(t, "2.15.0")
	if err := os.RemoveAll(filepath.Join(poor.site, "einops-0.8.0.dist-info")); err != nil {
		t.Fatal(err)
	}
	managed := newManaged(t)
	nothing, silent := environment{python: "/nowhere/bin/python"}, environment{python: "/bin/false"}
	unkept := newEnvironment(t, "2.15.0")
	unkept.dist(t, "deepspeed", "0.10.0")
	var hosts []inventory.Host
	var servers []*sshtest.Server
	for i, c := range []environment{ready, old, bare, poor, nothing, unkept, managed, silent} {
		h, s := host(t, "n"+string(rune('1'+i)), c, sshtest.Options{})
		if c == managed {
			h.Env = map[string]string{"PYTHONHOME": managed.dir}
		}
		hosts, servers = append(hosts, h), append(servers, s)
	}
	opt := options(t, load(t, makeWheel(t, t.TempDir(), wheelOptions{})), servers, hosts...)
	var sentTo []string
	count := &sshtest.CountingDialer{Dialer: opt.Dialer, Before: func(up remote.Upload) error {
		sentTo = append(sentTo, up.Path)
		if !strings.HasPrefix(up.Path, ready.dir) {
			t.Errorf("%s was sent", up.Path)
		}
		return nil
	}}
	opt.Dialer, opt.Forks = count, 1
	r := run(t, context.Background(), opt)
	for i, want := range []string{"", "built against torch 2.15, but this node has 2.14", "no torch in the environment", "missing requirements: einops", "no usable Python", "has no RECORD", "PEP 668", "no usable Python"} {
		n := r.Nodes[i]
		switch {
		case n.StateUnknown != (hosts[i].Python == silent.python):
			t.Errorf("%s: state unknown %v, want it only of a Python that exists and does not answer", n.Name, n.StateUnknown)
		case want == "" && n.Status != report.OK:
			t.Errorf("%s: %+v", n.Name, n)
		case want != "" && (n.Status != report.Refused || n.Step != "fit" || !strings.Contains(n.Error, want) || n.Hint == ""):
			t.Errorf("%s: %s at %s, %q (hint %q), want %q", n.Name, n.Status, n.Step, n.Error, n.Hint, want)
		}
	}
	for _, e := range []environment{old, bare, poor, unkept, managed} {
		if _, err := os.Stat(e.own()); err == nil {
			t.Errorf("%s was written to", e.dir)
		}
	}
	if code(r.Err()) != 3 || len(sentTo) != 1 {
		t.Errorf("error %v, sent %q", r.Err(), sentTo)
	}
	opt.Hosts = hosts[1:2]
	if r = run(t, context.Background(), opt); code(r.Err()) != 4 {
		t.Errorf("the wheel is incompatible with every node, error %v", r.Err())
	}
	opt.Hosts = hosts[1:3] // one of them lacks a torch, which no wheel can help
	if r = run(t, context.Background(), opt); code(r.Err()) != 3 {
		t.Errorf("every node refused, one for reasons of its own, error %v", r.Err())
	}
}

// Installations that list no files are refused before a byte is sent, with their paths: pip would remove
// them for good. What a pip that was cut off left is none.
func TestInstallationsWithoutRecordAreRefusedAtFit(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t, "2.15.0")
	h, s := host(t, "gpu1", e, sshtest.Options{})
	opt := options(t, load(t, makeWheel(t, t.TempDir(), wheelOptions{})), []*sshtest.Server{s}, h)
	opt.DryRun = true
	refused := func(when string, names ...string) {
		t.Helper()
		was := e.snapshot(t)
		n := run(t, context.Background(), opt).Nodes[0]
		for _, name := range names {
			if n.Status != report.Refused || n.Step != "fit" || !strings.Contains(n.Error, "has no RECORD") || !strings.Contains(n.Error, filepath.Join(e.site, name)) {
				t.Errorf("%s: %s at %s: %q, want a refusal that names %s", when, n.Status, n.Step, n.Error, name)
			}
		}
		if want := e.python + " -m pip uninstall deepspeed"; !strings.Contains(n.Hint, want) {
			t.Errorf("%s: the hint %q does not name %q", when, n.Hint, want)
		}
		e.mustBe(t, was)
	}
	e.write(t, "deepspeed.egg-link", "/home/train/DeepSpeed\n.")
	e.write(t, "deepspeed-0.18.3-py3.11.egg/EGG-INFO/PKG-INFO", "Name: deepspeed\nVersion: 0.18.3\n")
	refused("egg and develop", "deepspeed.egg-link", "deepspeed-0.18.3-py3.11.egg")
	for _, name := range []string{"deepspeed.egg-link", "deepspeed-0.18.3-py3.11.egg"} {
		if err := os.RemoveAll(filepath.Join(e.site, name)); err != nil {
			t.Fatal(err)
		}
	}
	e.write(t, "~eepspeed-0.17.0.dist-info/RECORD", "deepspeed/__init__.py,,\n../../../bin/ds_report,,\n")
	opt.DryRun = false
	if r := run(t, context.Background(), opt); r.Err() != nil {
		t.Fatalf("with the rest of a pip that was cut off: %v", r.Err())
	}
	if err := os.Mkdir(filepath.Join(e.site, "deepspeed-0.14.0.dist-info"), 0o755); err != nil {
		t.Fatal(err)
	}
	opt.DryRun, opt.Wheels = true, load(t, makeWheel(t, t.TempDir(), wheelOptions{version: "0.19.7"}))
	refused("a stray dist-info beside a good one", "deepspeed-0.14.0.dist-info")
}

// newManaged is a Python that belongs to the system: its library, as
// PYTHONHOME names it, holds the mark of PEP 668.
func newManaged(t *testing.T) environment {
	t.Helper()
	out, err := exec.Command("python3", "-c", "import os, sys, sysconfig; print(os.path.realpath(sys.executable)); print(sysconfig.get_path('stdlib'))").Output()
	if err != nil {
		t.Fatal(err)
	}
	python, stdlib, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	e := environment{dir: t.TempDir(), python: python}
	e.site = filepath.Join(e.dir, "lib", filepath.Base(stdlib))
	if err := os.MkdirAll(e.site, 0o755); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(stdlib)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range entries {
		if f.Name() == "EXTERNALLY-MANAGED" || strings.HasSuffix(f.Name(), "-packages") {
			continue
		}
		if err := os.Symlink(filepath.Join(stdlib, f.Name()), filepath.Join(e.site, f.Name())); err != nil {
			t.Fatal(err)
		}
	}
	e.write(t, "EXTERNALLY-MANAGED", "[externally-managed]\nError=the system's\n")
	return e
}

func TestFullDiskFailsAtPut(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t, "2.15.0")
	was := e.snapshot(t)
	h, s := host(t, "gpu1", e, sshtest.Options{NoSpaceAfter: 100, HideFree: true})
	r := run(t, context.Background(), options(t, load(t, makeWheel(t, t.TempDir(), wheelOptions{})), []*sshtest.Server{s}, h))
	n := r.Nodes[0]
	if n.Status != report.Failed || n.Step != "put" {
		t.Errorf("%+v", n)
	}
	e.mustBe(t, was)
	if left := e.leftovers(t); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestDiskThatFillsUpOnTheWay(t *testing.T) {
	t.Parallel()
	small := t.TempDir()
	if err := syscall.Mount("tmpfs", small, "tmpfs", 0, "size=64m"); err != nil {
		t.Skipf("mounting a small file system: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(small, syscall.MNT_DETACH) }) //nolint:errcheck // a test's scratch
	e := newEnvironmentIn(t, small, "2.15.0")
	was := e.snapshot(t)
	h, s := host(t, "gpu1", e, sshtest.Options{})
	opt := options(t, load(t, makeWheel(t, t.TempDir(), wheelOptions{})), []*sshtest.Server{s}, h)
	ballast := filepath.Join(small, "ballast")
	opt.Dialer = &sshtest.CountingDialer{Dialer: opt.Dialer, Before: func(remote.Upload) error {
		err := os.WriteFile(ballast, make([]byte, 64<<20), 0o600)
		if !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("filling the disk: %v", err)
		}
		return nil
	}}
	r := run(t, context.Background(), opt)
	n := r.Nodes[0]
	if n.Status != report.Failed || n.Step != "put" || !strings.Contains(n.Error, remote.ErrNoSpace.Error()) || n.Hint == "" {
		t.Errorf("%+v", n)
	}
	e.mustBe(t, was)
	// A disk that is too small from the start refuses.
	r = run(t, context.Background(), opt)
	if n := r.Nodes[0]; n.Status != report.Refused || !strings.Contains(n.Error, "not enough space in ") {
		t.Errorf("%+v", n)
	}
}

// hook is code that runs when pip starts in an environment.
func (e environment) hook(t *testing.T, code string) (started string, remove func()) {
	t.Helper()
	started = filepath.Join(t.TempDir(), "started")
	source := filepath.Join(t.TempDir(), "hook.py")
	text := "import os, signal, sys, time\nif '--no-index' in getattr(sys, 'orig_argv', []):\n    open('" + started + "', 'w').close()\n    " + code + "\n"
	if err := os.WriteFile(source, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	e.write(t, hookName, "import sys; exec(open('"+source+"').read())\n")
	return started, func() {
		if err := os.Remove(filepath.Join(e.site, hookName)); err != nil {
			t.Fatal(err)
		}
	}
}

func waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Errorf("%s: not within a minute", what)
			return
		}
	}
}

func exists(path string) func() bool {
	return func() bool { _, err := os.Stat(path); return err == nil }
}

// withOld is an environment in which dsbuild has installed DeepSpeed 0.19.7.
func withOld(t *testing.T) (environment, deploy.Options, *sshtest.Server) {
	t.Helper()
	e, _ := withInstalled(t, "0.19.7")
	h, s := host(t, "gpu1", e, sshtest.Options{})
	return e, options(t, load(t, makeWheel(t, t.TempDir(), wheelOptions{})), []*sshtest.Server{s}, h), s
}

func TestInterruptDuringInstallPutsTheOldVersionBack(t *testing.T) {
	t.Parallel()
	e, opt, _ := withOld(t)
	started, _ := e.hook(t, "time.sleep(60)")
	was := e.snapshot(t)
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() {
		waitFor(t, "pip starts", exists(started))
		cancel(errors.New("interrupted by the test"))
	}()
	r := run(t, ctx, opt)
	n := r.Nodes[0]
	if n.Status != report.Failed || n.Step != "install" || n.Changed || !strings.Contains(n.Error, "interrupted by the test; rolled back to DeepSpeed 0.19.7") {
		t.Errorf("%+v", n)
	}
	e.mustBe(t, was)
	if left := e.leftovers(t); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestNodePutsItselfBackWhenTheControllerIsGone(t *testing.T) {
	t.Parallel()
	e, opt, s := withOld(t)
	// OpenSSH leaves programs running when a connection breaks; the test's
	// server kills their process group, which this leaves.
	opt.Hosts[0].ExecPrefix = []string{"setsid", "--wait"}
	started, _ := e.hook(t, "time.sleep(60)")
	was := e.snapshot(t)
	go func() {
		waitFor(t, "pip starts", exists(started))
		s.Cut()
	}()
	r := run(t, context.Background(), opt)
	// It is asked over another connection what came of it.
	if n := r.Nodes[0]; n.Status != report.Failed || n.Step != "install" || n.StateUnknown || !strings.Contains(n.Error, remote.ErrLost.Error()) || !strings.Contains(n.Error, "; rolled back to DeepSpeed 0.19.7") {
		t.Errorf("%+v", n)
	}
	e.mustBe(t, was)
	if left := e.leftovers(t); !slices.Equal(left, []string{"inbox"}) {
		t.Errorf("left behind: %q", left)
	}
}

func TestNextRunRepairsWhatAPowerCutLeft(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	e, opt, _ := withOld(t)
	was := e.snapshot(t)
	// No other agent can look after it: as if the node had gone down.
	_, remove := e.hook(t, "open(os.path.join(sys.prefix, 'down'), 'w').close()\n    os.kill(os.getppid(), signal.SIGKILL)\n    raise SystemExit(1)\nif os.path.exists(os.path.join(sys.prefix, 'down')):\n    os._exit(1)")
	r := run(t, context.Background(), opt)
	if n := r.Nodes[0]; n.Status != report.Failed || n.After != nil || !n.StateUnknown || strings.Contains(n.Error, "rollback failed") || !strings.Contains(n.Error, "is unknown") || !strings.Contains(n.Error, "the next deploy repairs it") {
		t.Errorf("%+v", n)
	}
	if e.version(t) != "" || len(e.leftovers(t)) == 0 {
		t.Fatal("the test did not cut the change off")
	}
	remove()
	if err := os.Remove(filepath.Join(e.dir, "down")); err != nil {
		t.Fatal(err)
	}
	// The next run fails too, so what it finds after its repair is what comes back.
	bad := opt
	bad.Wheels = load(t, makeWheel(t, t.TempDir(), wheelOptions{files: map[string]string{"deepspeed/__init__.py": "import no_such_module\n"}}))
	r = run(t, context.Background(), bad)
	if n := r.Nodes[0]; n.Before == nil || !strings.HasPrefix(n.Before.Version, "0.19.7") || !strings.Contains(n.Error, "rolled back to DeepSpeed 0.19.7") {
		t.Errorf("%+v", n)
	}
	e.mustBe(t, was)
	if r = run(t, context.Background(), opt); r.Err() != nil {
		t.Error(r.Err())
	}
	if left := e.leftovers(t); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestNodesThatShareAnEnvironmentAreServedOnce(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t, "2.15.0")
	var hosts []inventory.Host
	var servers []*sshtest.Server
	for _, name := range []string{"gpu1", "gpu2", "gpu3"} {
		h, s := host(t, name, e, sshtest.Options{})
		hosts, servers = append(hosts, h), append(servers, s)
	}
	opt := options(t, load(t, makeWheel(t, t.TempDir(), wheelOptions{})), servers, hosts...)
	count := &sshtest.CountingDialer{Dialer: opt.Dialer}
	opt.Dialer = count
	r := run(t, context.Background(), opt)
	if r.Err() != nil || count.Puts.Load() != 1 {
		t.Errorf("%v; %d files sent", r.Err(), count.Puts.Load())
	}
	for _, n := range r.Nodes {
		if n.Seconds["verify"] == 0 || !n.Changed {
			t.Errorf("%s: %+v", n.Name, n)
		}
	}
	if r = run(t, context.Background(), opt); r.Err() != nil || count.Puts.Load() != 1 {
		t.Errorf("second run: %v; %d files sent", r.Err(), count.Puts.Load())
	}
}

func TestMaxFailStartsNoMore(t *testing.T) {
	t.Parallel()
	bad := load(t, makeWheel(t, t.TempDir(), wheelOptions{files: map[string]string{"deepspeed/__init__.py": "import no_such_module\n"}}))
	var hosts []inventory.Host
	var servers []*sshtest.Server
	for _, name := range []string{"gpu1", "gpu2", "gpu3"} {
		h, s := host(t, name, newEnvironment(t, "2.15.0"), sshtest.Options{})
		hosts, servers = append(hosts, h), append(servers, s)
	}
	opt := options(t, bad, servers, hosts...)
	opt.Forks, opt.MaxFailures = 1, func(n, _ int) bool { return n > 0 }
	r := run(t, context.Background(), opt)
	if r.Summary.Failed != 1 || r.Summary.Skipped != 2 || code(r.Err()) != 3 {
		t.Errorf("%+v, %v", r.Summary, r.Err())
	}
	for _, n := range r.Nodes[1:] {
		if !strings.Contains(n.Error, "too many failed nodes") {
			t.Errorf("%s: skipped without a reason: %+v", n.Name, n)
		}
	}
	// The same in the survey, whose failures keep Apply from beginning.
	opt.Hosts[0].Port = 1
	r = run(t, context.Background(), opt)
	for _, n := range r.Nodes[1:] {
		if n.Status != report.Skipped || !strings.Contains(n.Error, "too many failed nodes") {
			t.Errorf("%+v", n)
		}
	}
}

func TestInterruptedSurveyIsReported(t *testing.T) {
	t.Parallel()
	h1, s1 := host(t, "gpu1", newEnvironment(t, "2.15.0"), sshtest.Options{})
	h2, s2 := host(t, "gpu2", environment{}, sshtest.Options{StallOnAccept: true})
	opt := options(t, load(t, makeWheel(t, t.TempDir(), wheelOptions{})), []*sshtest.Server{s1, s2}, h1, h2, h1)
	opt.Forks = 2
	opt.Hosts[2].Name, opt.Hosts[1].Port = "gpu3", s2.Port
	ctx, cancel := context.WithCancelCause(context.Background())
	time.AfterFunc(2*time.Second, func() { cancel(errors.New("interrupted by the test")) })
	d := deploy.New(opt)
	defer d.Close()
	if _, err := d.Survey(ctx); err == nil || err.Error() != "interrupted by the test" {
		t.Errorf("survey: %v", err)
	}
	r := d.Report()
	for _, n := range r.Nodes {
		if n.Status != report.Skipped || n.Error != "interrupted by the test" || n.Changed {
			t.Errorf("%+v", n)
		}
	}
	if r.Summary.Skipped != 3 || r.Consistent {
		t.Errorf("%+v", r.Summary)
	}
}
