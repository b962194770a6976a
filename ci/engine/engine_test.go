package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
)

// TestEngineUp starts a real engine. It never stops the engine: others use it.
func TestEngineUp(t *testing.T) {
	needs.Time(t)
	skip := t.Skipf
	if os.Getenv("CI") == "true" {
		skip = t.Fatalf
	}
	if os.Geteuid() != 0 {
		skip("the engine needs root")
	}
	release, err := os.ReadFile("/etc/os-release")
	if err := errors.Join(err, checkHost(string(release)), checkRights(cgroupRoot)); err != nil {
		skip("no engine on this host: %v", err)
	}
	l, err := Default()
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(t.TempDir(), "enginectl")
	build := exec.Command("go", "build", "-trimpath", "-gcflags=all=-dwarf=false", "-ldflags=-w", "-o", bin, ".") // FLAGS of the Makefile: Go's cache has the packages
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	run := func(args ...string) string {
		t.Helper()
		out, err := exec.Command(bin, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("enginectl %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	run("up")
	before, _ := l.readRecord()
	if out := run("up"); strings.Count(out, "\n") != 1 {
		t.Errorf("the second up did something:\n%s", out)
	}
	if !socketAnswers(l.Socket()) {
		t.Errorf("%s does not answer", l.Socket())
	}
	if after, _ := l.readRecord(); after.Engine != before.Engine || after.Engine.PID == 0 {
		t.Errorf("the second up changed the engine: %v, then %v", before, after)
	}
	if out := run("status"); !strings.HasPrefix(out, "running: dagger engine "+engineVersion+", pid ") {
		t.Errorf("status: %s", out)
	}
	if out := run("start"); out != "" {
		t.Errorf("start of a running engine: %s", out)
	}
}

func testLayout(t *testing.T) Layout {
	l := At(t.TempDir())
	l.Proc = filepath.Join(t.TempDir(), "proc")
	for _, d := range []string{l.path("run"), l.path("bin"), filepath.Join(l.Proc, "sys/kernel/random"), filepath.Join(l.Proc, "self")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	put(t, filepath.Join(l.Proc, "sys/kernel/random/boot_id"), "boot-1\n")
	put(t, filepath.Join(l.Proc, "self/mountinfo"), "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n")
	return l
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

func fakeProcess(t *testing.T, l Layout, pid int, name, state string, start int) {
	put(t, filepath.Join(l.Proc, fmt.Sprint(pid), "stat"),
		fmt.Sprintf("%d (%s) %s 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 %d 20 21\n", pid, name, state, start))
}

func TestDigestSeesBorders(t *testing.T) {
	if digestOf("ab", "c") == digestOf("a", "bc") || digestOf("a") == digestOf("a", "") {
		t.Error("inputs run into each other")
	}
	if digestOf("a", "b") != digestOf("a", "b") {
		t.Error("not stable")
	}
}

// A piece is current only if its stamp has these inputs and its files exist.
func TestPieceIsCurrent(t *testing.T) {
	l := testLayout(t)
	out := l.path("bin", "thing")
	p := piece{name: "thing", digest: digestOf("1"), outputs: []string{out}, place: func() error { return os.WriteFile(out, nil, 0o755) }}
	if l.isCurrent(p) {
		t.Error("current before it was installed")
	}
	if err := l.installPiece(p); err != nil {
		t.Fatal(err)
	}
	if !l.isCurrent(p) {
		t.Error("not current after it was installed")
	}
	changed := p
	changed.digest = digestOf("2")
	if l.isCurrent(changed) {
		t.Error("current although an input changed")
	}
	if err := os.Remove(out); err != nil {
		t.Fatal(err)
	}
	if l.isCurrent(p) {
		t.Error("current although its file is gone")
	}
}

// A piece that could not be placed must not keep its earlier stamp.
func TestHalfPlacedPieceIsDoneAgain(t *testing.T) {
	l := testLayout(t)
	p := piece{name: "thing", digest: digestOf("1"), place: func() error { return nil }}
	if err := l.installPiece(p); err != nil {
		t.Fatal(err)
	}
	p.place = func() error { return errors.New("killed in the middle") }
	if err := l.installPiece(p); err == nil {
		t.Fatal("no error")
	}
	if l.isCurrent(p) {
		t.Error("a half-placed piece counts as current")
	}
}

func TestCleanRefusesMounts(t *testing.T) {
	l := testLayout(t)
	put(t, l.tmp("rootfs/etc/passwd"), "x")
	put(t, filepath.Join(l.Proc, "self/mountinfo"), "1 0 8:1 / "+l.tmp("rootfs/proc")+" rw - proc proc rw\n")
	if err := l.removeTemporary(); err == nil || !strings.Contains(err.Error(), "is mounted") {
		t.Fatalf("clean: %v", err)
	}
	if _, err := os.Stat(l.tmp("rootfs/etc/passwd")); err != nil {
		t.Error("it removed files below a mount")
	}
	put(t, filepath.Join(l.Proc, "self/mountinfo"), "")
	if err := l.removeTemporary(); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(l.path("tmp")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestProcessIdentity(t *testing.T) {
	l := testLayout(t)
	fakeProcess(t, l, 40, "dagger) S 1 (x", "S", 1000)
	p, err := identifyProcess(l.Proc, 40)
	if err != nil || p != (process{40, "1000", "boot-1"}) {
		t.Fatalf("%+v, %v", p, err)
	}
	if !p.alive(l.Proc) {
		t.Error("a living process counts as dead")
	}
	for name, change := range map[string]func(){
		"another process with its pid": func() { fakeProcess(t, l, 40, "bash", "S", 2000) },
		"a zombie":                     func() { fakeProcess(t, l, 40, "dagger", "Z", 1000) },
		"another boot": func() {
			fakeProcess(t, l, 40, "dagger", "S", 1000)
			put(t, filepath.Join(l.Proc, "sys/kernel/random/boot_id"), "boot-2\n")
		},
		"gone": func() { os.RemoveAll(filepath.Join(l.Proc, "40")) },
	} {
		if change(); p.alive(l.Proc) {
			t.Errorf("%s counts as the process", name)
		}
		put(t, filepath.Join(l.Proc, "sys/kernel/random/boot_id"), "boot-1\n")
	}
	if (process{}).alive(l.Proc) {
		t.Error("no process counts as alive")
	}
}

func TestPhase(t *testing.T) {
	l := testLayout(t)
	expect := func(what string, want phase) {
		t.Helper()
		if got, _ := l.phase(); got != want {
			t.Errorf("%s: phase %d, want %d", what, got, want)
		}
	}
	expect("nothing there", phaseStopped)
	put(t, l.Socket(), "")
	put(t, l.recordFile(), "{half")
	expect("dead socket and torn record", phaseStopped)
	fakeProcess(t, l, 40, "dagger-engine", "S", 1000)
	b, _ := json.Marshal(record{Engine: process{40, "999", "boot-1"}})
	put(t, l.recordFile(), string(b))
	expect("stale pid", phaseStopped)
	b, _ = json.Marshal(record{Version: engineVersion, Engine: process{40, "1000", "boot-1"}})
	put(t, l.recordFile(), string(b))
	expect("lives, does not answer", phaseSilent)
	if s, running := Describe(l); running || !strings.HasPrefix(s, "silent: ") {
		t.Error(s)
	}
	os.Remove(l.Socket())
	ln, err := net.Listen("unix", l.Socket())
	if err != nil {
		t.Fatal(err)
	}
	expect("accepts, does not answer", phaseSilent)
	srv := http.Server{Handler: http.NotFoundHandler()}
	go srv.Serve(ln) //nolint:errcheck // ends with the listener
	expect("answers", phaseRunning)
	if s, running := Describe(l); !running || !strings.HasPrefix(s, "running: dagger engine "+engineVersion+", pid 40, ") {
		t.Error(s)
	}
	srv.Close()
	expect("closed again", phaseSilent)
}

// An engine that was killed removes its cache at the next start, and answers only then.
func TestWaitForAnswer(t *testing.T) {
	for _, c := range []struct {
		name    string
		log     string
		answers time.Duration
		want    string
	}{
		{"starts", "starting\n", 80 * time.Second, ""},
		{"hangs", "starting\n", time.Hour, "timed out"},
		{"removes its cache", "level=INFO msg=\"discarding dagql cache without persistence\"\n", 6 * time.Minute, ""},
		{"hangs after that", "discarding dagql cache\nauto snapshotter\n", time.Hour, "timed out"},
	} {
		synctest.Test(t, func(t *testing.T) {
			l, began := testLayout(t), time.Now()
			put(t, l.Log(), c.log)
			var out bytes.Buffer
			err := l.waitForAnswer(t.Context(), newConsole(&out), func() bool { return time.Since(began) >= c.answers })
			if got := fmt.Sprint(err); err != nil && got != c.want || err == nil && c.want != "" {
				t.Errorf("%s: error %v, want %q", c.name, err, c.want)
			}
			if said := strings.Contains(out.String(), "removes its cache"); said != (c.name == "removes its cache") {
				t.Errorf("%s: printed\n%s", c.name, out.String())
			}
		})
	}
}

// After a crash, no recorded pid may be trusted: another process may have it by now.
func TestSweepSparesStrangers(t *testing.T) {
	l := testLayout(t)
	stranger := exec.Command("sleep", "60")
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stranger.Process.Kill(); _ = stranger.Wait() }()
	real := l
	real.Proc = "/proc"
	now, err := identifyProcess(real.Proc, stranger.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	old := now
	old.Start += "0"
	put(t, l.Socket(), "")
	put(t, l.recordFile(), "{}")
	real.removeLeftovers(record{Network: old})
	time.Sleep(50 * time.Millisecond)
	if !now.alive("/proc") {
		t.Error("a process with the same pid was killed")
	}
	real.removeLeftovers(record{Network: now})
	if err := waitUntil(t.Context(), time.Minute, func() bool { return !now.alive("/proc") }); err != nil {
		t.Error("the network that was left behind still runs")
	}
	if left, _ := os.ReadDir(l.path("run")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestStopWithoutEngine(t *testing.T) {
	l := testLayout(t)
	var out bytes.Buffer
	if err := Down(t.Context(), l, newConsole(&out)); err != nil || !strings.Contains(out.String(), "not running") {
		t.Errorf("%v: %s", err, out.String())
	}
}

func TestStopWithLostRecord(t *testing.T) {
	l := testLayout(t)
	ln, err := net.Listen("unix", l.Socket())
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	err = Down(t.Context(), l, newConsole(&bytes.Buffer{}))
	if err == nil || fault.Hint(err) == "" {
		t.Errorf("error %v, hint %q", err, fault.Hint(err))
	}
	if s, running := Describe(l); running || !strings.HasPrefix(s, "silent: something holds ") {
		t.Error(s)
	}
}

func TestClients(t *testing.T) {
	l := testLayout(t)
	for pid, c := range map[string][2]string{
		"7":  {"dagger\n", "A=b\x00_EXPERIMENTAL_DAGGER_RUNNER_HOST=unix://" + l.Socket() + "\x00"},
		"8":  {"dagger\n", "_EXPERIMENTAL_DAGGER_RUNNER_HOST=unix:///another/engine.sock\x00"},
		"9":  {"bash\n", "_EXPERIMENTAL_DAGGER_RUNNER_HOST=unix://" + l.Socket() + "\x00"},
		"10": {"dagger-engine\n", "HOME=/root\x00"},
	} {
		put(t, filepath.Join(l.Proc, pid, "comm"), c[0])
		put(t, filepath.Join(l.Proc, pid, "environ"), c[1])
	}
	if got := l.clients(); len(got) != 1 || got[0] != 7 {
		t.Error(got)
	}
}

func TestLockWaitsAndSaysSo(t *testing.T) {
	l := testLayout(t)
	unlock, err := l.lock(t.Context(), newConsole(&bytes.Buffer{}))
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(l.Root); err != nil || info.Mode().Perm() != 0o700 || !strings.HasPrefix(l.Socket(), l.Root+"/") {
		t.Errorf("whoever reaches %s is root: %v, %v", l.Socket(), info.Mode(), err)
	}
	var out bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := l.lock(ctx, newConsole(&out)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the lock was given twice: %v", err)
	}
	if n := strings.Count(out.String(), "waiting for another run that holds "); n != 1 {
		t.Errorf("said %d times:\n%s", n, out.String())
	}
	unlock()
	again, err := l.lock(t.Context(), newConsole(&out))
	if err != nil {
		t.Fatal(err)
	}
	again()
}
