package deploy_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/inventory"
)

// running reports whether a process runs; a zombie does not.
func running(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(text), ") Z ")
}

// A pip that hangs is ended with all that it has started. Meanwhile another deploy
// does not get the lock, says who holds it, and changes nothing.
func TestHungPipAndWhoWaitsForIt(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	e, opt, _ := withOld(t)
	e.withPip(t, realPip)
	was := e.snapshot(t)
	pids := filepath.Join(t.TempDir(), "pids")
	started, _ := e.hook(t, "import subprocess\n    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    child = subprocess.Popen(['sleep', '1000'])\n    open('"+pids+"', 'w').write('%d %d' % (os.getpid(), child.pid))\n    time.sleep(1000)")
	first := make(chan *report.Report)
	go func() {
		opt := opt
		opt.Timeout = 20 * time.Second
		first <- run(t, context.Background(), opt)
	}()
	waitFor(t, "pip starts", exists(started))
	second := opt
	second.By, second.InUse, second.LockWait = "another", change.InUse{Ignore: true}, time.Second
	n := run(t, context.Background(), second).Nodes[0]
	if n.Status != report.Failed || n.Step != "put" || n.Changed || !n.StateUnknown || n.After != nil || !strings.Contains(n.Error, "another deploy is changing this environment (run ") || !strings.Contains(n.Error, " by tester on gpu1, pid ") || n.Hint == "" {
		t.Errorf("%+v", n)
	}
	n = (<-first).Nodes[0]
	if n.Status != report.Failed || n.Step != "install" || n.Before == nil || n.Error != "node reported: pip timed out after 20 s; rolled back to "+n.Before.String() {
		t.Errorf("%+v", n)
	}
	e.mustBe(t, was)
	if left := e.leftovers(t); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	text, err := os.ReadFile(pids)
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range strings.Fields(string(text)) {
		if pid, err := strconv.Atoi(word); err != nil || running(pid) {
			t.Errorf("process %s still runs (%v)", word, err)
		}
	}
}

// A node that is up to date while another deploy works there is not told as up to date.
func TestAnotherDeployOnANodeThatIsUpToDate(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	e, opt, _ := withOld(t)
	if r := run(t, context.Background(), opt); r.Err() != nil {
		t.Fatal(r.Err())
	}
	home := e.own()
	if err := os.Mkdir(filepath.Join(home, "run-other"), 0o700); err != nil {
		t.Fatal(err)
	}
	lock, err := os.OpenFile(filepath.Join(home, "lock"), os.O_RDWR|os.O_TRUNC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(lock, "run 20260101T000000-x by somebody on gpu1")
	opt.LockWait = time.Second
	n := run(t, context.Background(), opt).Nodes[0]
	if n.Status != report.Failed || n.Step != "put" || n.Changed || !n.StateUnknown || n.After != nil || !strings.HasSuffix(n.Error, fmt.Sprintf("another deploy is changing this environment (run 20260101T000000-x by somebody on gpu1, now held by pid %d)", os.Getpid())) || n.Hint == "" {
		t.Errorf("%+v", n)
	}
	// The files of a run that was cut off are removed.
	lock.Close()
	if n := run(t, context.Background(), opt).Nodes[0]; n.Status != report.OK || n.Changed || len(e.leftovers(t)) > 0 {
		t.Errorf("%+v, left %q", n, e.leftovers(t))
	}
}

// A node on a slow line ends by the limit, and is named; what has arrived stays for the
// next run. Nobody waits for it.
func TestSlowNodeHoldsUpNobody(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	wheels := largeWheel(t)
	var hosts []inventory.Host
	var servers []*sshtest.Server
	var environments []environment
	for i := range 2 {
		var opt sshtest.Options
		if i == 1 {
			opt.Rate = 20 << 10 // 200 s for the wheel
		}
		e := newEnvironment(t, "2.15.0")
		h, s := host(t, "gpu"+strconv.Itoa(i+1), e, opt)
		hosts, servers, environments = append(hosts, h), append(servers, s), append(environments, e)
	}
	opt := options(t, wheels, servers, hosts...)
	opt.Timeout = 15 * time.Second
	r := run(t, context.Background(), opt)
	for i, n := range r.Nodes {
		switch {
		case i != 1 && (n.Status != report.OK || n.Seconds["put"] >= r.Nodes[1].Seconds["put"]):
			t.Errorf("%+v", n)
		case i == 1 && (n.Status != report.Failed || n.Step != "put" || n.Error != "timed out after 15.0s" || n.Hint == "" || n.StateUnknown || n.After != nil):
			t.Errorf("%+v", n)
		}
	}
	if got := environments[1].version(t); got != "" {
		t.Errorf("an import finds %q", got)
	}
}

// A network that is cut in the middle of each step: nothing is closed, and yet
// nothing comes any more. The node is given up by its silence, and named.
func TestSilenceInTheMiddle(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	for _, step := range []string{"put", "install", "verify"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			e := newEnvironment(t, "2.15.0")
			h, s := host(t, "gpu1", e, sshtest.Options{})
			opt := options(t, load(t, makeWheel(t, t.TempDir(), wheelOptions{})), []*sshtest.Server{s}, h)
			opt.Dialer = impatient()
			opt.Hosts[0].ExecPrefix = []string{"setsid", "--wait"} // outlives its connection, as under OpenSSH
			was := e.snapshot(t)
			began := filepath.Join(t.TempDir(), "began")
			switch step {
			case "put":
				opt.Dialer = &sshtest.CountingDialer{Dialer: opt.Dialer, Before: func(remote.Upload) error {
					s.Hush()
					return nil
				}}
			case "install":
				began, _ = e.hook(t, "time.sleep(60)")
			case "verify":
				opt.Wheels = load(t, makeWheel(t, t.TempDir(), wheelOptions{files: map[string]string{
					"deepspeed/ops/cpu_adam_loaded.py": "import time\nopen('" + began + "', 'w').close()\ntime.sleep(60)\n",
				}}))
			}
			if step != "put" {
				go func() {
					waitFor(t, "it begins", exists(began))
					s.Hush()
				}()
			}
			n := run(t, context.Background(), opt).Nodes[0]
			if n.Status != report.Failed && n.Status != report.Unreachable || n.Step != step || n.StateUnknown != (step != "put") || !strings.Contains(n.Error, "no response for") && !strings.Contains(n.Error, "SSH handshake with ") {
				t.Errorf("%+v", n)
			}
			// The server ends its programs when the client has given up.
			waitFor(t, "the node puts itself right", func() bool { return !exists(e.own("change.json"))() })
			e.mustBe(t, was)
		})
	}
}

// smallDisk is a file system of so many bytes and names.
func smallDisk(t *testing.T, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("mounting a small file system: %v", err)
		}
		t.Skipf("mounting a small file system: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) }) //nolint:errcheck // a test's scratch
	return dir
}

// The disk is full, but for so much, when pip starts or when all is verified: the
// old version comes back, and with room again the next run succeeds.
func TestFullDiskWhileInstalling(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	const fill = "f = open(BALLAST, 'wb', 0)\n    try:\n        while True: f.write(bytes(4096))\n    except OSError: pass\n    f.truncate(max(0, f.tell() - FREE))"
	const names = "n = 0\n    try:\n        while True: open(BALLAST + str(n), 'w').close(); n += 1\n    except OSError: pass"
	old, _, _ := withOld(t)
	for name, c := range map[string]struct {
		free  int
		code  string
		final bool
	}{
		"nearly enough":   {4 << 20, fill, false},
		"no name":         {0, names, false},
		"when it is done": {0, fill, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			disk := smallDisk(t, "size=100m,nr_inodes=4000")
			e := old.copied(t, disk).withPip(t, realPip)
			h, s := host(t, "gpu1", e, sshtest.Options{})
			opt := options(t, nil, []*sshtest.Server{s}, h)
			ballast := filepath.Join(disk, "ballast")
			code := strings.NewReplacer("BALLAST", "'"+ballast+"'", "FREE", strconv.Itoa(c.free)).Replace(c.code)
			step := "install"
			if c.final {
				step = "record"
				opt.Wheels = load(t, makeWheel(t, t.TempDir(), wheelOptions{files: map[string]string{
					"deepspeed/ops/cpu_adam_loaded.py": "if True:\n    " + code + "\n",
				}}))
			} else {
				opt.Wheels = largeWheel(t)
				e.hook(t, code)
			}
			was := e.snapshot(t)
			n := run(t, context.Background(), opt).Nodes[0]
			if n.Status != report.Failed || n.Step != step || n.Changed || n.StateUnknown || !strings.Contains(n.Error, "No space left") || !strings.Contains(n.Error, "rolled back to DeepSpeed 0.19.7") || !strings.Contains(n.Hint, "free disk space: df -h") {
				t.Errorf("%+v", n)
			}
			e.mustBe(t, was)
			if left := e.leftovers(t); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
			all, _ := filepath.Glob(ballast + "*")
			for _, file := range all {
				os.Remove(file)
			}
			os.Remove(filepath.Join(e.site, hookName))
			if c.final || c.free > 0 {
				return
			}
			opt.Wheels = load(t, makeWheel(t, t.TempDir(), wheelOptions{}))
			if r := run(t, context.Background(), opt); r.Err() != nil {
				t.Error(r.Err())
			}
		})
	}
}

func TestReadOnlyEnvironmentIsRefused(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t, "size=64m")
	e := newEnvironmentIn(t, disk, "2.15.0")
	if err := syscall.Mount("", disk, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	h, s := host(t, "gpu1", e, sshtest.Options{})
	r := run(t, context.Background(), options(t, load(t, makeWheel(t, t.TempDir(), wheelOptions{})), []*sshtest.Server{s}, h))
	if n := r.Nodes[0]; n.Status != report.Refused || !strings.Contains(n.Error, "read-only file system: "+e.site) || n.Hint == "" || code(r.Err()) != 3 {
		t.Errorf("%+v", n)
	}
}

// Nodes that cannot be reached, each in another way, are named with the reason; the
// others get the wheel.
func TestUnreachableNodesAreNamed(t *testing.T) {
	t.Parallel()
	wheels := load(t, makeWheel(t, t.TempDir(), wheelOptions{}))
	var hosts []inventory.Host
	var servers []*sshtest.Server
	for i, c := range unreachable() {
		e := environment{}
		if c.want == "" {
			e = newEnvironment(t, "2.15.0")
		}
		h, s := host(t, "gpu"+strconv.Itoa(i+1), e, c.opt)
		if c.change != nil {
			c.change(&h, s)
		}
		hosts, servers = append(hosts, h), append(servers, s)
	}
	opt := options(t, wheels, servers, hosts...)
	opt.Dialer, opt.Forks = impatient(), len(hosts)
	for i, n := range run(t, context.Background(), opt).Nodes {
		c := unreachable()[i]
		switch {
		case c.want == "" && n.Status != report.OK:
			t.Errorf("%+v", n)
		case c.want != "" && (n.Status != report.Unreachable || n.Step != "connect" || !n.StateUnknown || !strings.Contains(n.Error, c.want) || n.Hint == ""):
			t.Errorf("%s: %+v", c.want, n)
		}
	}
}

// kind is a node that cannot be reached, and what is said of it; "" can be.
type kind struct {
	want   string
	opt    sshtest.Options
	change func(h *inventory.Host, s *sshtest.Server)
}

func unreachable() []kind {
	return []kind{
		{},
		{want: "connection refused", change: func(_ *inventory.Host, s *sshtest.Server) { s.Stop() }},
		{want: "SSH handshake with ", opt: sshtest.Options{StallOnAccept: true}},
		{want: "has changed", opt: sshtest.Options{WrongKey: true}},
		{want: "closed during SSH handshake", opt: sshtest.Options{Reset: true}},
		{want: "authentication failed", opt: sshtest.Options{RefuseAuth: true}},
		{want: "cannot resolve host", change: func(h *inventory.Host, _ *sshtest.Server) { h.Address = "no-such-node.invalid" }},
	}
}
