//go:build full && linux

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
)

func TestFullFaultsCtrlC(t *testing.T) {
	t.Parallel()
	f := newFaultFleet(t, nodes.Options{Count: 2}, ballast)
	const times = 100
	came, steps := f.interrupts(t, times)
	t.Logf("result: Ctrl-C at %d random moments of a deploy to 2 nodes, which then had: %s; the report was right each time; nodes were at %s", times, came, steps)
}

func TestFullFaultsKilledProgram(t *testing.T) {
	t.Parallel()
	f := newFaultFleet(t, nodes.Options{Count: 2}, ballast)
	at := append(moments(ballast), f.anyMoments(23)...)
	came, missed := f.kills(t, at)
	t.Logf("result: kill -9 of dsbuild at %d moments of a deploy to 2 nodes, what they had once they had come to rest: %s; each next run succeeded and left nothing; missed: %s", len(at), came, list(missed))
}

func TestFullFaultsReboot(t *testing.T) {
	t.Parallel()
	f := newFaultFleet(t, nodes.Options{Count: 2}, ballast)
	at := append(append(moments(ballast), moments(ballast)...), f.anyMoments(6)...)
	came, missed := f.reboots(t, at, f.crash, f.boot, false)
	t.Logf("result: every process of 1 of 2 nodes killed at %d moments, what the next run found there: %s; missed: %s", len(at), came, list(missed))
}

func TestFullFaultsTwoDeploys(t *testing.T) {
	t.Parallel()
	f := newFaultFleet(t, nodes.Options{Count: 2}, ballast)
	const times = 10
	t.Logf("result: two deploys at once, %d times to 2 nodes: %s", times, f.crossing(t, times))
}

func list(missed []string) string {
	if len(missed) == 0 {
		return "none"
	}
	return strings.Join(missed, ", ")
}

// alone runs a test once more as a program in a mount namespace of its own, where it
// returns true: whoever starts another namespace elsewhere meanwhile would keep
// what is mounted here from being unmounted.
func alone(t *testing.T) bool {
	t.Helper()
	const variable = "DSBUILD_TEST_ALONE"
	if os.Getenv(variable) != "" {
		return true
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=50m")
	cmd.Env = append(os.Environ(), variable+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if _, result, is := strings.Cut(line, ": result: "); is {
			t.Logf("result: %s", strings.TrimSpace(result))
		}
	}
	return false
}

// disk is a file system of its own that can lose its power.
type disk struct{ image, dir string }

func newDisk(t *testing.T) *disk {
	t.Helper()
	d := &disk{filepath.Join(t.TempDir(), "image"), t.TempDir()}
	if err := os.WriteFile(d.image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(d.image, 1<<30); err != nil {
		t.Fatal(err)
	}
	command(t, ".", "mkfs.ext4", "-q", d.image)
	d.mount(t)
	t.Cleanup(func() { syscall.Unmount(d.dir, syscall.MNT_DETACH) }) //nolint:errcheck // a test's scratch
	return d
}

// mount makes it ready. Metadata goes to the disk late, so that a power cut takes
// much with it.
func (d *disk) mount(t *testing.T) {
	t.Helper()
	command(t, ".", "mount", "-o", "loop,commit=60,errors=remount-ro", d.image, d.dir)
}

// cut takes the power away: what has not been written to the disk is lost.
func (d *disk) cut(t *testing.T) {
	t.Helper()
	f, err := os.Open(d.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const shutdown, noFlush = 0x8004587d, 2 // EXT4_IOC_SHUTDOWN, EXT4_GOING_FLAGS_NOLOGFLUSH
	if err := unix.IoctlSetPointerInt(int(f.Fd()), shutdown, noFlush); err != nil {
		t.Fatalf("taking the power away: %v", err)
	}
}

// again is what a boot does: the journal is replayed.
func (d *disk) again(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		err := syscall.Unmount(d.dir, 0)
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("umount: %v", err)
		}
	}
	if out, err := exec.Command("e2fsck", "-p", d.image).CombinedOutput(); err != nil && exitStatus(err) > 1 {
		t.Fatalf("e2fsck: %v\n%s", err, out)
	}
	d.mount(t)
}

// A node's disk loses its power with everything on the way to it, in the middle of
// a deploy and right after one.
func TestFullFaultsPowerCut(t *testing.T) {
	t.Parallel()
	if !alone(t) {
		return
	}
	d := newDisk(t)
	f := newFaultFleet(t, nodes.Options{Count: 1, Dir: d.dir}, ballast)
	syscall.Sync()
	down := func(t *testing.T) {
		f.crash(t)
		d.cut(t)
	}
	up := func(t *testing.T) {
		d.again(t)
		f.boot(t)
	}
	at := append(append(moments(ballast), f.anyMoments(6)...), moments(ballast)...)
	came, missed := f.reboots(t, at, down, up, false)
	t.Logf("result: the power of a node's disk cut at %d moments, what the next run found there: %s; missed: %s", len(at), came, list(missed))

	kept := 0
	for range 10 {
		has := f.all(t)
		target := f.other(has)
		cmd, stdout, stderr := f.command(t, f.deployArgs(target)...)
		err := cmd.Run()
		down(t)
		up(t)
		if err != nil {
			t.Fatalf("%v\n%s\n%s", err, stdout, stderr)
		}
		if is := f.has(t, 0); is != target {
			t.Fatalf("right after the deploy of %s the power was cut, and the node has %s", f.name(target), f.name(is))
		}
		kept++
	}
	t.Logf("result: the power cut right after a deploy has succeeded: the new version is there, complete, %d times of %d", kept, 10)
}

// A node's disk fails in the middle of a deploy: it answers every question with an
// error, or takes nothing any more. The report does not claim what nobody can know.
func TestFullFaultsFailingDisk(t *testing.T) {
	t.Parallel()
	if !alone(t) {
		return
	}
	d := newDisk(t)
	f := newFaultFleet(t, nodes.Options{Count: 1, Dir: d.dir}, ballast)
	syscall.Sync()
	up := func(t *testing.T) {
		f.crash(t)
		d.again(t)
		f.boot(t)
	}
	for name, fail := range map[string]func(t *testing.T){"answers with errors": d.cut, "is read-only": d.stop} {
		came, missed := f.reboots(t, moments(ballast)[:6], fail, up, true)
		t.Logf("result: a disk that %s from 6 moments on, what the next run found there: %s; missed: %s", name, came, list(missed))
	}
}

// stop has the kernel take the disk for broken: nothing is written any more.
func (d *disk) stop(t *testing.T) {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(d.dir, &st); err != nil {
		t.Fatal(err)
	}
	device, err := os.Readlink(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)))
	if err == nil {
		err = os.WriteFile(filepath.Join("/sys/fs/ext4", filepath.Base(device), "trigger_fs_error"), []byte("1"), 0)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A controller that is frozen, as a laptop that sleeps is, says nothing and closes
// nothing. The node puts itself right all the same; awake again, the controller asks it.
func TestFullFaultsFrozenController(t *testing.T) {
	t.Parallel()
	f := newFaultFleet(t, nodes.Options{Count: 2}, ballast)
	for _, m := range []moment{moments(ballast)[4], moments(ballast)[0]} {
		has := f.all(t)
		cmd, ended, stdout, stderr := f.start(t, f.deployArgs(f.other(has))...)
		if !f.reach(m, ended) {
			t.Fatalf("it ended before: %s\n%s", stdout, stderr)
		}
		begin := time.Now()
		if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		for i := range f.Nodes {
			for f.Busy(i) && time.Since(begin) < 4*time.Minute {
				time.Sleep(time.Second)
			}
		}
		alone := f.all(t)
		took := time.Since(begin)
		if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		<-ended
		var r report.Report
		if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
			t.Fatalf("%v: %s\n%s", err, stdout, stderr)
		}
		now := f.all(t)
		for i, n := range r.Nodes {
			if alone[i] != has[i] || n.StateUnknown || n.After == nil || n.After.SHA256 != f.wheels[now[i]].sha256 {
				t.Errorf("%s had %s, then %s, now %s: %+v", n.Name, f.name(has[i]), f.name(alone[i]), f.name(now[i]), n)
			}
			t.Logf("%s: %s: %s", n.Name, n.Status, n.Error)
		}
		t.Logf("result: controller frozen %s: both nodes had put themselves right after %.0f s, and the report was right once it woke", m.name, took.Seconds())
		f.deploys(t, 0)
	}
}
