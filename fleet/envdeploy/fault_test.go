package envdeploy_test

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
	"sync/atomic"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/dockerfiles"
	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/envdeploy"
	"github.com/dsbuild/dsbuild/fleet/environment"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/internal/testkit/wheelindex"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
	"github.com/dsbuild/dsbuild/wheel"
)

// lockDeepSpeed locks an environment with a release of DeepSpeed, some of whose files have other contents.
func (s *site) lockDeepSpeed(t *testing.T, version string, replaced map[string]string) (*environment.Lock, *envdeploy.Files) {
	t.Helper()
	return s.lock(t, "name: train\npython: 3.11\ntorch: 2.15.0\ndeepspeed: "+s.deepspeed(t, version, replaced)+"\n")
}

// deployed returns a node on which an environment with DeepSpeed 0.19.8 is current, and its lock.
func (s *site) deployed(t *testing.T) (*environment.Lock, inventory.Host, *sshtest.Server) {
	t.Helper()
	good, files := s.lockDeepSpeed(t, "0.19.8", nil)
	h, server := host(t, "gpu1", sshtest.Options{})
	if r := run(t, t.Context(), options(t, good, files, []*sshtest.Server{server}, h)); r.Err() != nil {
		t.Fatal(r.Err())
	}
	return good, h, server
}

// An op that does not load leaves the old environment current, and nothing of the new one.
func TestFailedVerifyKeepsTheOldEnvironment(t *testing.T) {
	t.Parallel()
	x := newSite(t)
	good, h, s := x.deployed(t)
	was, link := tree(t, current(t, s)), current(t, s)
	for name, c := range map[string][2]string{
		"op raises":           {"raise ImportError('no kernel image')\n", "cannot load op cpu_adam: ImportError: no kernel image"},
		"illegal instruction": {"import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n", "illegal instruction"},
	} {
		bad, files := x.lockDeepSpeed(t, "0.19.9", map[string]string{"deepspeed/ops/cpu_adam_loaded.py": c[0]})
		r := run(t, t.Context(), options(t, bad, files, []*sshtest.Server{s}, h))
		n := r.Nodes[0]
		if n.Status != report.Failed || n.Step != "verify" || n.Changed || !strings.Contains(n.Error, c[1]) || !strings.Contains(n.Error, "stays current") || n.Environment.Digest != good.Sets[0].Digest {
			t.Errorf("%s: %+v", name, n)
		}
		if current(t, s) != link || len(leftovers(t, s)) > 0 {
			t.Errorf("%s: current %s, left %q", name, current(t, s), leftovers(t, s))
		}
		mustBe(t, tree(t, link), was)
	}
}

// A node on which the transfer breaks goes on where it was; one that stays away is failed, has what
// it had, and the next run brings it to its end.
func TestBrokenConnections(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	x := newSite(t)
	x.Add(t, wheelindex.Wheel{Name: "large", Version: "1", Files: map[string]string{"large/data.bin": noise(4 << 20)}})
	l, files := x.lock(t, "name: train\npython: 3.11\nrequirements: [alpha, torch, large]\n")
	h1, s1 := host(t, "cut", sshtest.Options{CutAfter: 3 << 20, Cuts: 1})
	h2, s2 := host(t, "gone", sshtest.Options{CutAfter: 200 << 10})
	opt := options(t, l, files, []*sshtest.Server{s1, s2}, h1, h2)
	r := run(t, t.Context(), opt)
	if n := r.Nodes[0]; n.Status != report.OK {
		t.Errorf("%+v", n)
	}
	if n := r.Nodes[1]; n.Status != report.Failed || n.Step != "put" || current(t, s2) != "" {
		t.Errorf("%+v", n)
	}
}

// cutAtInstall is a dialer whose first connection is cut when dsbuild orders the installation. It
// makes no other connection.
type cutAtInstall struct {
	remote.Dialer
	server *sshtest.Server
	used   atomic.Bool
}

func (d *cutAtInstall) Dial(ctx context.Context, target remote.Target) (remote.Conn, error) {
	if d.used.Swap(true) {
		return nil, errors.New("the key is not accepted any more")
	}
	conn, err := d.Dialer.Dial(ctx, target)
	return cutConn{conn, d.server}, err
}

type cutConn struct {
	remote.Conn
	server *sshtest.Server
}

func (c cutConn) Run(ctx context.Context, command remote.Command) error {
	if command.Stdin != nil {
		command.Stdin = cutReader{command.Stdin, c.server}
	}
	return c.Conn.Run(ctx, command)
}

type cutReader struct {
	io.Reader
	server *sshtest.Server
}

func (r cutReader) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	if bytes.Contains(b[:n], []byte(`"do":"install"`)) {
		r.server.Cut()
	}
	return n, err
}

// The environment of a node is unknown if the node does not let dsbuild in again after a lost connection.
func TestNoLoginAfterALostConnection(t *testing.T) {
	t.Parallel()
	x := newSite(t)
	l, files := x.lock(t, small)
	h, s := host(t, "gpu1", sshtest.Options{})
	opt := options(t, l, files, []*sshtest.Server{s}, h)
	opt.Dialer = &cutAtInstall{Dialer: opt.Dialer, server: s}
	r := run(t, t.Context(), opt)
	if n := r.Nodes[0]; n.Status != report.Failed || n.Step != "install" || !n.StateUnknown || !strings.Contains(n.Error, "cannot determine which environment is current") || current(t, s) != "" {
		t.Errorf("%+v", n)
	}
}

// stubborn is a dialer whose agents fail to undo: they are told to roll back to nothing.
type stubborn struct{ remote.Dialer }

func (d stubborn) Dial(ctx context.Context, target remote.Target) (remote.Conn, error) {
	conn, err := d.Dialer.Dial(ctx, target)
	return stubbornConn{conn}, err
}

type stubbornConn struct{ remote.Conn }

func (c stubbornConn) Run(ctx context.Context, command remote.Command) error {
	if command.Stdin != nil {
		command.Stdin = stubbornReader{command.Stdin}
	}
	return c.Conn.Run(ctx, command)
}

type stubbornReader struct{ io.Reader }

func (r stubbornReader) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b[:len(b)/2])
	return copy(b, bytes.ReplaceAll(b[:n], []byte(`"do":"undo"`), []byte(`"do":"roll_back"`))), err
}

// dsbuild asks the node again if the agent cannot undo.
func TestFailedUndo(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	x := newSite(t)
	good, h, s := x.deployed(t)
	bad, files := x.lockDeepSpeed(t, "0.19.9", map[string]string{"deepspeed/ops/cpu_adam_loaded.py": "raise ImportError('no')\n"})
	opt := options(t, bad, files, []*sshtest.Server{s}, h)
	opt.Dialer = stubborn{opt.Dialer}
	n := run(t, t.Context(), opt).Nodes[0]
	if n.Status != report.Failed || n.Step != "verify" || n.StateUnknown || !strings.Contains(n.Error, "stays current") || n.Environment.Digest != good.Sets[0].Digest || len(leftovers(t, s)) > 0 {
		t.Errorf("%+v, left %q", n, leftovers(t, s))
	}
}

func noise(n int) string {
	b, seed := make([]byte, n), uint32(1)
	for i := range b {
		seed = seed*1664525 + 1013904223
		b[i] = byte(seed >> 24)
	}
	return string(b)
}

// kill -9 of the agent at some of the things that it does to the file system: TestFullEnvKilledAgent has all.
func TestKilledAgent(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	killAgent(t, []int{4, 18, 21, 24})
}

// killAgent has the agent killed before each of these things that it does to the file system: the old
// environment or the new one is current, whole; the next run brings the new one, and leaves nothing. It returns how many agents died.
func killAgent(t *testing.T, points []int) (died int) {
	t.Helper()
	x := newSite(t)
	first, files := x.lock(t, small)
	h, s := host(t, "gpu1", sshtest.Options{})
	if r := run(t, t.Context(), options(t, first, files, []*sshtest.Server{s}, h)); r.Err() != nil {
		t.Fatal(r.Err())
	}
	old := current(t, s)
	x.Add(t, wheelindex.Wheel{Name: "alpha", Version: "1.1"})
	second, files := x.lock(t, small)
	for _, at := range points {
		dying := h
		dying.Env = map[string]string{"DYING": strconv.Itoa(at), "PYTHONPATH": hook(t)}
		r := run(t, t.Context(), options(t, second, files, []*sshtest.Server{s}, dying))
		n := r.Nodes[0]
		now := current(t, s)
		want := first.Sets[0].Digest
		if now != old {
			want = second.Sets[0].Digest
		}
		if _, err := os.Stat(filepath.Join(dying.Env["PYTHONPATH"], "sitecustomize.py.died")); err == nil {
			died++
		}
		if n.Environment.Digest != want || n.StateUnknown {
			t.Errorf("at %d: the node has %s, the report says %+v, %s", at, want, n.Environment, n.Error)
		}
		opt := options(t, second, files, []*sshtest.Server{s}, h)
		if r := run(t, t.Context(), opt); r.Err() != nil || len(leftovers(t, s)) > 0 {
			t.Errorf("at %d: the next run: %v, left %q", at, r.Err(), leftovers(t, s))
		}
		if got := python(t, s, "import alpha, torch; print(alpha.__version__)"); got != "1.1" {
			t.Errorf("at %d: %s", at, got)
		}
		if r := back(t, opt); r.Err() != nil || current(t, s) != old {
			t.Errorf("at %d: rollback: %v", at, r.Err())
		}
		left, _ := filepath.Glob(filepath.Join(place(s), second.Sets[0].Digest[:16]+"*"))
		for _, folder := range left { // it is made anew each time
			if err := os.RemoveAll(folder); err != nil {
				t.Fatal(err)
			}
		}
	}
	return died
}

// hook is a folder whose sitecustomize.py kills an agent before the DYING-th time that it renames,
// links or removes something.
func hook(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	text := `import os, signal, sys
if sys.argv[:1] == ["-c"] and "DYING" in os.environ:
    left = [int(os.environ["DYING"])]
    def dying(do):
        def step(*a, **k):
            if "dsbuild_node.environments" in sys.modules:
                left[0] -= 1
                if left[0] < 0 and not os.path.exists(__file__ + ".died"):  # the agent that looks afterwards lives
                    open(__file__ + ".died", "w").close()
                    os.kill(os.getpid(), signal.SIGKILL)
            return do(*a, **k)
        return step
    for name in ("rename", "symlink", "unlink", "mkdir", "fsync", "rmdir"):
        setattr(os, name, dying(getattr(os, name)))
`
	if err := os.WriteFile(filepath.Join(dir, "sitecustomize.py"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A full disk fails the node alone, before or in the middle, and keeps its old environment.
func TestFullDisk(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	x := newSite(t)
	x.Add(t, wheelindex.Wheel{Name: "large", Version: "1", Files: map[string]string{"large/data.bin": noise(2 << 20)}})
	l, files := x.lock(t, "name: train\npython: 3.11\nrequirements: [alpha, large]\n")
	h1, s1 := host(t, "full", sshtest.Options{NoSpaceAfter: 1 << 20})
	h2, s2 := host(t, "good", sshtest.Options{})
	opt := options(t, l, files, []*sshtest.Server{s1, s2}, h1, h2)
	r := run(t, t.Context(), opt)
	if n := r.Nodes[0]; n.Status != report.Failed || n.Step != "put" || !strings.Contains(n.Error, "no space left") || !strings.Contains(n.Error, "rolled back to ") {
		t.Errorf("%+v", n)
	}
	if r.Nodes[1].Status != report.OK {
		t.Errorf("%+v", r.Nodes[1])
	}
	// uv finds the disk full: the node says so in its own words, with a hint.
	h3, s3 := host(t, "uv", sshtest.Options{})
	failing := x.uv(t, "echo 'error: failed to write: No space left on device (os error 28)' >&2; exit 2")
	l, files = x.lock(t, "name: train\npython: 3.11\nrequirements: [alpha]\n")
	failing()
	r = run(t, t.Context(), options(t, l, files, []*sshtest.Server{s3}, h3))
	if n := r.Nodes[0]; n.Status != report.Failed || n.Step != "install" || !strings.Contains(n.Error, "no space left on device") || !strings.Contains(n.Hint, "free disk space") || len(leftovers(t, s3)) > 0 {
		t.Errorf("%+v, left %q", n, leftovers(t, s3))
	}
}

// uv makes the wheel of uv on nodes do something else, until the returned function is called.
func (s *site) uv(t *testing.T, line string) (restore func()) {
	t.Helper()
	wheels, _ := filepath.Glob(filepath.Join(s.Dir, "uv-*.whl"))
	if len(wheels) != 1 {
		t.Fatalf("%q", wheels)
	}
	was, err := os.ReadFile(wheels[0])
	if err != nil {
		t.Fatal(err)
	}
	s.Add(t, wheelindex.Wheel{Name: "uv", Version: dockerfiles.UVVersion(), Tag: "py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64", Files: map[string]string{
		"uv-" + dockerfiles.UVVersion() + ".data/scripts/uv": "#!/bin/sh\n" + line + "\n",
	}})
	return func() {
		if err := os.WriteFile(wheels[0], was, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// lockOfOneFile is a lock for the plans of nodes such as factsForLock.
func lockOfOneFile() *environment.Lock {
	set := environment.Set{Platform: environment.Platform{Machine: "x86_64", Glibc: "2.28"}, Digest: strings.Repeat("ab", 32), Files: []environment.File{{Name: "alpha", SHA256: "1", Size: 10}}}
	return &environment.Lock{Python: "3.11", Sets: []environment.Set{set}}
}

// factsForLock are the facts of a node that lockOfOneFile serves.
func factsForLock() node.Facts {
	return node.Facts{Python: "3.11.2", Tag: "cp311", Platform: "linux_x86_64", Glibc: "2.31", CPU: "x86-64-v3"}
}

// Nodes that lockfile has no files for, or whose CPU the wheel does not suit, are refused before
// anything is sent.
func TestPlanRefuses(t *testing.T) {
	t.Parallel()
	l := lockOfOneFile()
	fine := factsForLock()
	room := envdeploy.EnvironmentState{Free: 1 << 40, Writable: true}
	for want, c := range map[string]struct {
		change func(*envdeploy.ProbeResult)
		policy change.InUse
	}{
		"": {func(*envdeploy.ProbeResult) {}, change.InUse{}},
		"requires Python 3.11, but the node's interpreter is 3.9.2": {func(k *envdeploy.ProbeResult) { k.Facts.Python = "3.9.2" }, change.InUse{}},
		"no files for linux_x86_64 with glibc 2.17":                 {func(k *envdeploy.ProbeResult) { k.Facts.Glibc = "2.17" }, change.InUse{}},
		"no usable Python":        {func(k *envdeploy.ProbeResult) { k.Facts.Missing = []string{"python"} }, change.InUse{}},
		"no write permission for": {func(k *envdeploy.ProbeResult) { k.State.Writable = false }, change.InUse{}},
		"free, 64.0 MiB needed":   {func(k *envdeploy.ProbeResult) { k.State.Free = 1 << 20 }, change.InUse{}},
		"environment in use by pid 7 (me): python train.py": {func(k *envdeploy.ProbeResult) {
			k.Processes = node.Processes{InUse: []node.Process{{PID: 7, User: "me", Command: "python train.py"}}}
		}, change.InUse{}},
		"no connection": {func(k *envdeploy.ProbeResult) { k.Err = errors.New("no connection") }, change.InUse{}},
	} {
		f, look := fine, room
		k := envdeploy.ProbeResult{Name: "n", Facts: &f, State: &look}
		c.change(&k)
		plan, err := envdeploy.NewPlan([]envdeploy.ProbeResult{k}, envdeploy.PlanOptions{Lock: l, InUse: c.policy})
		if err != nil {
			t.Fatal(err)
		}
		p := plan.Nodes[0]
		switch {
		case want == "" && (p.Action != change.Install || len(p.Send) != 2):
			t.Errorf("%+v", p)
		case want != "" && (p.Action == change.Install || len(p.Send) != 0 || !strings.Contains(strings.Join(p.Reasons, "; "), want) || plan.Err() == nil):
			t.Errorf("%q: %+v", want, p)
		}
	}
}

// Nodes without room are one row of the plan, however much each has.
func TestPlanFoldsFullDisks(t *testing.T) {
	t.Parallel()
	var nodes []envdeploy.ProbeResult
	for free := range int64(5) {
		nodes = append(nodes, envdeploy.ProbeResult{
			Name:  fmt.Sprintf("gpu%d", free+1),
			Facts: new(factsForLock()),
			State: &envdeploy.EnvironmentState{Place: "/opt/envs", Free: free << 20, Writable: true},
		})
	}
	plan, err := envdeploy.NewPlan(nodes, envdeploy.PlanOptions{Lock: lockOfOneFile()})
	var out strings.Builder
	if err := joined(err, plan.Print(&out)); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, "gpu[1-5]") || !strings.Contains(got, "not enough space in /opt/envs: 0 B free, 64.0 MiB needed (e.g. gpu1)") {
		t.Error(got)
	}
}

// The largest wheels are sent first, behind the installer: the node installs them while the others
// arrive. The lock keeps its order.
func TestLargeWheelsAreSentFirst(t *testing.T) {
	t.Parallel()
	set := environment.Set{
		Platform: environment.Platform{Machine: "x86_64", Glibc: "2.28"}, Digest: strings.Repeat("ab", 32), Installer: environment.File{Name: "uv", SHA256: "uv", Size: 1},
		Files: []environment.File{{Name: "alpha", SHA256: "a", Size: 10}, {Name: "beta", SHA256: "b", Size: 10}, {Name: "gone", SHA256: "g", Size: 5000}, {Name: "torch", SHA256: "t", Size: 900}},
	}
	f := node.Facts{Python: "3.11.2", Tag: "cp311", Platform: "linux_x86_64", Glibc: "2.31", CPU: "x86-64-v3"}
	look := envdeploy.EnvironmentState{Free: 1 << 40, Writable: true, Have: []string{"g"}}
	plan, err := envdeploy.NewPlan([]envdeploy.ProbeResult{{Name: "n", Facts: &f, State: &look}}, envdeploy.PlanOptions{Lock: &environment.Lock{Python: "3.11", Sets: []environment.Set{set}}})
	if err != nil {
		t.Fatal(err)
	}
	var sent []string
	for _, f := range plan.Nodes[0].Send {
		sent = append(sent, f.SHA256)
	}
	if got := strings.Join(sent, " "); got != "uv t a b" {
		t.Errorf("sent in the order %s", got)
	}
	if set.Files[0].Name != "alpha" || set.Files[3].Name != "torch" {
		t.Errorf("the lock's order is %+v", set.Files)
	}
}

// A wheel of DeepSpeed that does not run on a node is refused there, with the torch that the
// environment brings.
func TestPlanAsksWhetherDeepSpeedFits(t *testing.T) {
	t.Parallel()
	set := environment.Set{Platform: environment.Platform{Machine: "x86_64", Glibc: "2.28"}, Digest: strings.Repeat("ab", 32), Files: []environment.File{
		{Name: "deepspeed", Version: "0.19.8", SHA256: "ds", Size: 10}, {Name: "torch", Version: "2.15.0+cu132", SHA256: "torch", Size: 10},
	}}
	m := wheel.Manifest{Name: "deepspeed-0.19.8-cp311-cp311-linux_x86_64.whl", Version: "0.19.8", Python: "3.11", Torch: "2.15.0", CUDA: "13.2", CPU: "x86-64-v4"}
	for cpu, want := range map[string]change.Action{"x86-64-v4": change.Install, "x86-64-v3": change.Refuse} {
		f := node.Facts{Python: "3.11.2", Tag: "cp311", Platform: "linux_x86_64", Glibc: "2.31", CPU: cpu}
		plan, err := envdeploy.NewPlan([]envdeploy.ProbeResult{{Name: "n", Facts: &f, State: &envdeploy.EnvironmentState{Free: 1 << 40, Writable: true}}}, envdeploy.PlanOptions{
			Lock: &environment.Lock{Python: "3.11", Sets: []environment.Set{set}}, Wheels: map[string]*wheel.Loaded{"ds": {Manifest: m}},
		})
		if err != nil || plan.Nodes[0].Action != want || plan.Nodes[0].Unfit != (want == change.Refuse) {
			t.Errorf("%s: %v, %+v", cpu, err, plan)
		}
		if code := exitCode(plan.Err()); want == change.Refuse && code != 4 {
			t.Errorf("exit code %d", code)
		}
	}
}

func exitCode(err error) int {
	var c interface{ ExitCode() int }
	if errors.As(err, &c) {
		return c.ExitCode()
	}
	return 0
}

// A job that runs from the current environment is respected: its node is refused and named; the
// others go on. --in-use wait waits for its end, ignore does not.
func TestRunningJob(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	x := newSite(t)
	first, files := x.lock(t, small)
	h, s := host(t, "gpu1", sshtest.Options{})
	opt := options(t, first, files, []*sshtest.Server{s}, h)
	if r := run(t, t.Context(), opt); r.Err() != nil {
		t.Fatal(r.Err())
	}
	old := current(t, s)
	job := exec.Command(filepath.Join(place(s), "current/bin/python"), "-c", "import time; time.sleep(600)", "train.py")
	if err := job.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	end := func() {
		if !ended {
			ended = true
			job.Process.Kill() //nolint:errcheck // it sleeps
			job.Wait()         //nolint:errcheck // it was killed
		}
	}
	defer end()
	if r := run(t, t.Context(), opt); r.Err() != nil {
		t.Errorf("a node that has the environment already: %v", r.Err())
	}
	x.Add(t, wheelindex.Wheel{Name: "alpha", Version: "1.1"})
	second, files := x.lock(t, small)
	opt = options(t, second, files, []*sshtest.Server{s}, h)
	r := run(t, t.Context(), opt)
	if n := r.Nodes[0]; n.Status != report.Refused || n.Sent != 0 || !strings.Contains(n.Error, "in use by pid") || !strings.Contains(n.Hint, "--in-use") || current(t, s) != old {
		t.Errorf("%+v", n)
	}
	time.AfterFunc(3*time.Second, end)
	opt.InUse = change.InUse{Wait: time.Minute}
	if r := run(t, t.Context(), opt); r.Err() != nil || current(t, s) == old {
		t.Errorf("%v", r.Err())
	}
}

// A node that claims the folder of another one, and says that processes use it, gets only itself refused.
func TestNodeThatClaimsTheFolderOfAnother(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	x := newSite(t)
	first, files := x.lock(t, small)
	h1, s1 := host(t, "honest", sshtest.Options{})
	h2, s2 := host(t, "liar", sshtest.Options{})
	opt := options(t, first, files, []*sshtest.Server{s1, s2}, h1, h2)
	if r := run(t, t.Context(), opt); r.Err() != nil {
		t.Fatal(r.Err())
	}
	// It shows words that it made up, and its own.
	lie := filepath.Join(t.TempDir(), "lie")
	write(t, lie, "#!/bin/sh\ncase $3 in *'head -n'*) printf '%s\\n' 22222222222222222222222222 \"$7\" ZZZZZZZZZZZZZZZZZZZZZZZZZZ; exit;; esac\nexec \"$@\"\n")
	must(t, os.Chmod(lie, 0o755))
	opt.Hosts[1].ExecPrefix = []string{lie}
	job := exec.CommandContext(t.Context(), filepath.Join(place(s2), "current/bin/python"), "-c", "import time; time.sleep(600)", "train.py")
	must(t, job.Start())
	defer job.Wait()         //nolint:errcheck // the test's end kills it
	defer job.Process.Kill() //nolint:errcheck // it sleeps
	x.Add(t, wheelindex.Wheel{Name: "alpha", Version: "1.1"})
	opt.Lock, opt.Files = x.lock(t, small)
	r := run(t, t.Context(), opt)
	if r.Nodes[0].Status != report.OK || !r.Nodes[0].Changed || r.Nodes[1].Status != report.Refused {
		t.Errorf("%+v, want that only the liar is refused", r.Nodes)
	}
}

// An environment that nobody goes back to stays as long as a process runs from it.
func TestOldEnvironmentInUseStays(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	x := newSite(t)
	h, s := host(t, "gpu1", sshtest.Options{})
	var first string
	var job *exec.Cmd
	for _, version := range []string{"1.0", "1.1", "1.2", "1.3"} {
		x.Add(t, wheelindex.Wheel{Name: "alpha", Version: version})
		l, files := x.lock(t, small)
		opt := options(t, l, files, []*sshtest.Server{s}, h)
		opt.InUse = change.InUse{Ignore: true}
		if version == "1.3" {
			job.Process.Kill() //nolint:errcheck // it sleeps
			job.Wait()         //nolint:errcheck // it was killed
		}
		if r := run(t, t.Context(), opt); r.Err() != nil {
			t.Fatal(r.Err())
		}
		if job == nil {
			first = current(t, s)
			job = exec.Command(filepath.Join(place(s), "current/bin/python"), "-c", "import time; time.sleep(600)")
			if err := job.Start(); err != nil {
				t.Fatal(err)
			}
			defer job.Process.Kill() //nolint:errcheck // where the test has failed
		}
		if _, err := os.Stat(first); (err == nil) != (version != "1.3") {
			t.Errorf("after %s: %v", version, err)
		}
	}
}

// An old environment stays as long as a job runs from it on any node that shares the folder, and if one cannot be asked.
func TestOldEnvironmentInUseElsewhereStays(t *testing.T) {
	needs.Time(t)
	if exec.CommandContext(t.Context(), "unshare", "-m", "true").Run() != nil {
		t.Skip("hiding processes from a node needs root and the right to mount")
	}
	t.Parallel()
	x := newSite(t)
	home := t.TempDir()
	h1, s1 := host(t, "gpu1", sshtest.Options{Home: home})
	h2, s2 := host(t, "gpu2", sshtest.Options{Home: home})
	h1.ExecPrefix = []string{"unshare", "--pid", "--fork", "--mount-proc", "--kill-child"}
	// gpu1 believes that its home is on a network file system.
	mounts := filepath.Join(t.TempDir(), "mountinfo")
	write(t, mounts, "22 1 0:1 / / rw - nfs4 server:/ rw\n")
	lies := t.TempDir()
	write(t, filepath.Join(lies, "sitecustomize.py"), fmt.Sprintf(`import os
real = os.open
os.open = lambda path, *args, **named: real(%q if path == "/proc/self/mountinfo" else path, *args, **named)
`, mounts))
	var first string
	var job *exec.Cmd
	for _, version := range []string{"1.0", "1.1", "1.2", "1.3", "1.4"} {
		x.Add(t, wheelindex.Wheel{Name: "alpha", Version: version})
		l, files := x.lock(t, small)
		opt := options(t, l, files, []*sshtest.Server{s1, s2}, h1, h2)
		opt.InUse, opt.Forks = change.InUse{Ignore: true}, 1 // gpu1 makes it
		var said strings.Builder
		opt.Reporter = ui.New(&said, ui.Options{})
		switch version {
		case "1.0", "1.1":
			opt.Hosts = opt.Hosts[:1]
		case "1.3": // the job has ended, but gpu2 is silent
			job.Process.Kill() //nolint:errcheck // it sleeps
			job.Wait()         //nolint:errcheck // it was killed
			silent := h2
			silent.Port = 1
			opt.Hosts, opt.Outside = []inventory.Host{h1}, []inventory.Host{silent}
			opt.Hosts[0].Setup = "export PYTHONPATH=" + lies
		}
		if r := run(t, t.Context(), opt); r.Err() != nil {
			t.Fatal(r.Err())
		}
		if job == nil {
			first = current(t, s1)
			job = exec.Command(filepath.Join(first, "bin/python"), "-c", "import time; time.sleep(600)")
			must(t, job.Start())
			defer job.Process.Kill() //nolint:errcheck // where the test has failed
		}
		_, err := os.Stat(first)
		if stays := version != "1.4"; (err == nil) != stays {
			t.Errorf("after %s: %v, want that it stays: %v", version, err, stays)
		}
		warns := map[string]string{
			"1.2": fmt.Sprintf("keeps old environment %s: on gpu2, environment in use by pid %d", filepath.Base(first), job.Process.Pid),
			"1.3": "keeps old environments: cannot ask gpu2, which may use them",
		}[version]
		if !strings.Contains(said.String(), warns) || strings.Contains(said.String(), "keeps old") != (warns != "") {
			t.Errorf("after %s: %s\nwant %q", version, said.String(), warns)
		}
	}
}

// A node that changes a file on its way in, or says that it has what it has not, is found out.
func TestLyingNodes(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	x := newSite(t)
	l, files := x.lock(t, small)
	h1, s1 := host(t, "corrupt", sshtest.Options{Corrupt: true})
	h2, s2 := host(t, "have", sshtest.Options{})
	sums := filepath.Join(s2.Home, ".local/share/dsbuild/env/.dsbuild/files")
	for _, f := range append([]environment.File{l.Sets[0].Installer}, l.Sets[0].Files...) {
		if f.Name != "alpha" {
			continue
		}
		if err := errors.Join(os.MkdirAll(filepath.Join(sums, f.SHA256), 0o755), os.WriteFile(filepath.Join(sums, f.SHA256, f.File), []byte("not this wheel"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	opt := options(t, l, files, []*sshtest.Server{s1, s2}, h1, h2)
	r := run(t, t.Context(), opt)
	if n := r.Nodes[0]; n.Status != report.Failed || n.Step != "put" || current(t, s1) != "" {
		t.Errorf("%+v", n)
	}
	if n := r.Nodes[1]; n.Status != report.Failed || n.Step != "install" || current(t, s2) != "" {
		t.Errorf("%+v", n)
	}
	opt.Hosts = opt.Hosts[1:]
	if r := run(t, t.Context(), opt); r.Err() != nil { // the wrong file is gone, and sent again
		t.Errorf("%v", r.Err())
	}
	// One that answers with another message than asked, or none.
	x.uv(t, "mkdir -p \"$6/bin\"; ln -s /usr/bin/python3 \"$6/bin/python\"; exit 0")
	odd, files := x.lock(t, small)
	h3, s3 := host(t, "odd", sshtest.Options{})
	r = run(t, t.Context(), options(t, odd, files, []*sshtest.Server{s3}, h3))
	if n := r.Nodes[0]; n.Status != report.Failed || current(t, s3) != "" {
		t.Errorf("%+v", n)
	}
}

// Nodes that share a home make one environment: the others wait for the first, and verify it.
func TestSharedHome(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	x := newSite(t)
	l, files := x.lock(t, small)
	home := t.TempDir()
	h1, s1 := host(t, "gpu1", sshtest.Options{Home: home})
	h2, s2 := host(t, "gpu2", sshtest.Options{Home: home})
	r := run(t, t.Context(), options(t, l, files, []*sshtest.Server{s1, s2}, h1, h2))
	if r.Err() != nil || r.Nodes[0].Changed == r.Nodes[1].Changed || len(leftovers(t, s1)) > 0 {
		t.Errorf("%v, left %q", r.Err(), leftovers(t, s1))
	}
	old := current(t, s1)
	x.Add(t, wheelindex.Wheel{Name: "alpha", Version: "1.1"})
	l, files = x.lock(t, small)
	opt := options(t, l, files, []*sshtest.Server{s1, s2}, h1, h2)
	if r := run(t, t.Context(), opt); r.Err() != nil || current(t, s1) == old {
		t.Errorf("%v", r.Err())
	}
	r = back(t, opt)
	if r.Err() != nil || r.Nodes[0].Changed == r.Nodes[1].Changed || current(t, s1) != old {
		t.Errorf("rollback: %v: %+v", r.Err(), r.Nodes)
	}
}

// A job on one node uses the environment that all nodes with this folder have in common.
func TestJobOnANodeWithTheSameFolder(t *testing.T) {
	t.Parallel()
	l := lockOfOneFile()
	survey := func(name, site string) envdeploy.ProbeResult {
		return envdeploy.ProbeResult{
			Name:  name,
			Facts: new(factsForLock()),
			State: &envdeploy.EnvironmentState{
				Place: "/home/me/env", Free: 1 << 40, Writable: true, Previous: &envdeploy.Environment{},
				Last: &node.LastChange{Runs: []node.Run{{ID: "r"}}},
			},
			Shares: site,
		}
	}
	busy := survey("gpu2", "nfs:server:7")
	busy.Processes.InUse = []node.Process{{PID: 7, User: "me", Command: "python train.py"}}
	nodes := []envdeploy.ProbeResult{survey("gpu1", "nfs:server:7"), busy, survey("gpu3", "local:a:1:2"), {Name: "gpu4", Err: errors.New("no connection")}}
	const want = "shares the environments' directory with gpu2: environment in use by pid 7 (me): python train.py"
	for policy, action := range map[change.InUse]change.Action{{}: change.Refuse, {Wait: time.Minute}: change.Refuse, {Ignore: true}: change.Install} {
		plan, err := envdeploy.NewPlan(nodes, envdeploy.PlanOptions{Lock: l, InUse: policy})
		if err != nil {
			t.Fatal(err)
		}
		if p := plan.Nodes[0]; p.Action != action || !strings.Contains(strings.Join(append(p.Reasons, p.Notes...), ";"), want) || action == change.Refuse && len(p.Send) > 0 {
			t.Errorf("%+v: %+v", policy, p)
		}
		if p := plan.Nodes[2]; p.Action != change.Install {
			t.Errorf("%+v: %+v", policy, p)
		}
	}
	p, err := envdeploy.NewRollbackPlan(nodes, "", change.InUse{})
	if err != nil || p.Nodes[0].Action != change.Refuse || p.Nodes[2].Action != change.Rollback {
		t.Errorf("%v, %+v", err, p.Nodes)
	}
}

// A disk that fails just after the switch does not take the new environment away.
func TestFailureAfterTheSwitch(t *testing.T) {
	t.Parallel()
	x := newSite(t)
	l, files := x.lock(t, small)
	h, s := host(t, "gpu1", sshtest.Options{})
	dir := t.TempDir()
	hook := `import os, sys
if sys.argv[:1] == ["-c"]:
    rename, fsync, switched = os.rename, os.fsync, []
    def noted(old, new, **k):
        rename(old, new, **k)
        if str(new).endswith("/current"):
            switched.append(new)
    def failing(fd):
        if switched and "dsbuild_node.environments" in sys.modules:
            switched.clear()
            raise OSError(5, "Input/output error")
        fsync(fd)
    os.rename, os.fsync = noted, failing
`
	if err := os.WriteFile(filepath.Join(dir, "sitecustomize.py"), []byte(hook), 0o644); err != nil {
		t.Fatal(err)
	}
	h.Env = map[string]string{"PYTHONPATH": dir}
	r := run(t, t.Context(), options(t, l, files, []*sshtest.Server{s}, h))
	n := r.Nodes[0]
	if n.Status != report.Failed || n.Environment.Digest != l.Sets[0].Digest || !strings.Contains(n.Error, "the new environment stays current") {
		t.Errorf("%+v", n)
	}
	if got := python(t, s, "import alpha; print(alpha.__version__)"); got != "1.0" {
		t.Error(got)
	}
}

// An interrupt in the middle leaves what was there.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	x := newSite(t)
	l, files := x.lock(t, small)
	h, s := host(t, "gpu1", sshtest.Options{})
	opt := options(t, l, files, []*sshtest.Server{s}, h)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	opt.Dialer = &sshtest.CountingDialer{Dialer: opt.Dialer, Before: func(up remote.Upload) error {
		if strings.Contains(up.Path, "torch") {
			stop()
		}
		return nil
	}}
	r := run(t, ctx, opt)
	if n := r.Nodes[0]; n.Status != report.Failed || current(t, s) != "" || !strings.Contains(n.Error, "rolled back to no environment") {
		t.Errorf("%+v", n)
	}
	opt = options(t, l, files, []*sshtest.Server{s}, h)
	if r := run(t, t.Context(), opt); r.Err() != nil || len(leftovers(t, s)) > 0 {
		t.Errorf("%v, left %q", r.Err(), leftovers(t, s))
	}
}
