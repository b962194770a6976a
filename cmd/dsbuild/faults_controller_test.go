//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
)

// fullDisk is a file system without room, but for the names of files.
func fullDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("mounting a small file system: %v", err)
		}
		t.Skipf("mounting a small file system: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) }) //nolint:errcheck // a test's scratch
	if err := os.WriteFile(filepath.Join(dir, "ballast"), make([]byte, 128<<10), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("filling the disk: %v", err)
	}
	return dir
}

// What goes wrong on the machine that drives must not hide how the nodes are, and
// cannot pass for success.
func TestFaultsOfTheController(t *testing.T) {
	t.Parallel()
	f := newFaultFleet(t, nodes.Options{Count: 1, QuickPip: true}, 1<<20)
	t.Run("report on a full disk", func(t *testing.T) { f.reportOnFullDisk(t) })
	t.Run("nobody reads the output", func(t *testing.T) { f.outputNowhere(t) })
	t.Run("no room at home", func(t *testing.T) { f.homeOnFullDisk(t) })
	t.Run("name server", func(t *testing.T) { f.noNameServer(t) })
}

func (f *faultFleet) reportOnFullDisk(t *testing.T) {
	dir := fullDisk(t)
	cmd, stdout, stderr := f.command(t, f.deployArgs(1, "--report", filepath.Join(dir, "r.json"), "--report", filepath.Join(dir, "r.html"))...)
	if code := exitStatus(cmd.Run()); code != exitFailed {
		t.Errorf("exit %d", code)
	}
	var r report.Report
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil || r.Summary.OK != 1 || f.has(t, 0) != 1 {
		t.Errorf("%v\n%s", err, stdout)
	}
	if n := strings.Count(stderr.String(), "cannot write the report: "); n != 2 || !strings.Contains(stderr.String(), "no space left on device") {
		t.Errorf("it says\n%s", stderr)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("%v: %v", err, entries)
	}
}

func (f *faultFleet) outputNowhere(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	cmd, _, stderr := f.command(t, f.deployArgs(0)...)
	cmd.Stdout = full
	if code := exitStatus(cmd.Run()); code != exitFailed || !strings.Contains(stderr.String(), "no space left on device") {
		t.Errorf("exit %d\n%s", code, stderr)
	}
	if f.has(t, 0) != 0 {
		t.Error("the node was not served")
	}
	closed, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	defer w.Close()
	cmd, _, _ = f.command(t, f.deployArgs(1)...)
	cmd.Stdout, cmd.Stderr = w, w // as when a terminal goes away
	// A reader that goes away cuts nothing off: the exit code is that of the deploy.
	code := exitStatus(cmd.Run())
	f.settle(t, 0)
	if has := f.has(t, 0); code != exitOK || has != 1 {
		t.Errorf("exit %d, and the node has wheel %d", code, has)
	}
}

func (f *faultFleet) homeOnFullDisk(t *testing.T) {
	dir := fullDisk(t)
	cmd, stdout, stderr := f.command(t, f.deployArgs(0)...)
	cmd.Env = append(cmd.Env, "HOME="+dir, "TMPDIR="+dir, "XDG_CACHE_HOME="+filepath.Join(dir, "cache"))
	if err := cmd.Run(); err != nil || f.has(t, 0) != 0 {
		t.Errorf("%v\n%s\n%s", err, stdout, stderr)
	}
}

// noNameServer has one node's name looked up where no name server answers: it is
// named, the other one is served.
func (f *faultFleet) noNameServer(t *testing.T) {
	silent, err := net.ListenPacket("udp", "127.0.0.153:53")
	if err == nil {
		defer silent.Close()
		err = exec.CommandContext(t.Context(), "unshare", "--mount", "true").Run()
	}
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skipf("a name server of the test's own needs root and the right to mount: %v", err)
	}
	text, err := os.ReadFile(f.Inventory)
	if err != nil {
		t.Fatal(err)
	}
	inventory := filepath.Join(f.Dir, "named.yaml")
	if err := os.WriteFile(inventory, append(text, "  - {hosts: far, address: far.example.test, python: /nowhere}\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, address := range map[string]string{"refuses": "127.0.0.152", "is silent": "127.0.0.153"} {
		conf := filepath.Join(t.TempDir(), "resolv.conf")
		if err := os.WriteFile(conf, []byte("nameserver "+address+"\noptions timeout:1 attempts:1\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		cmd, stdout, stderr := f.command(t, "deploy", inventory, "--wheel", f.wheels[0].path, "--json")
		self := cmd.Path
		cmd.Path, err = exec.LookPath("unshare")
		if err != nil {
			t.Fatal(err)
		}
		cmd.Args = append([]string{"unshare", "--mount", "bash", "-c", `mount --bind "$1" /etc/resolv.conf; p=$2; shift 2; exec -a dsbuild "$p" "$@"`, "bash", conf, self}, cmd.Args[1:]...)
		code := exitStatus(cmd.Run())
		var r report.Report
		if err := json.Unmarshal(stdout.Bytes(), &r); err != nil || code != exitNodes || len(r.Nodes) != 2 {
			t.Fatalf("exit %d, %v\n%s\n%s", code, err, stdout, stderr)
		}
		if n := r.Nodes[1]; r.Nodes[0].Status != report.OK || n.Status != report.Unreachable || !strings.Contains(n.Error, "name lookup failed") {
			t.Errorf("a name server that %s: %+v and %+v", name, n, r.Nodes[0])
		}
	}
}

// A node whose clock is wrong by decades is served and verified all the same.
func TestNodesWithWrongClocks(t *testing.T) {
	t.Parallel()
	f := newFaultFleet(t, nodes.Options{Count: 2, QuickPip: true}, 1<<20)
	library := wrongClock(t)
	text, err := os.ReadFile(f.Inventory)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	for i, seconds := range map[int]int64{0: -50 * 365 * 86400, 1: 80 * 365 * 86400} {
		for l, line := range lines {
			if at, end, found := strings.Cut(line, "}"); found && strings.Contains(at, "hosts: "+f.Nodes[i].Name+",") {
				lines[l] = at + fmt.Sprintf(", env: {LD_PRELOAD: %s, TEST_CLOCK: \"%d\"}}", library, seconds) + end
			}
		}
	}
	if err := os.WriteFile(f.Inventory, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	if strings.Count(strings.Join(lines, "\n"), "TEST_CLOCK") != 2 {
		t.Fatalf("the inventory is\n%s", text)
	}
	f.deploys(t, 1)
	cmd, stdout, stderr := f.command(t, "verify", f.Inventory, "--wheel", f.wheels[1].path)
	if err := cmd.Run(); err != nil {
		t.Errorf("%v\n%s\n%s", err, stdout, stderr)
	}
	for i, year := range []string{"19", "21"} {
		var out bytes.Buffer
		err := filepath.WalkDir(f.own(i), func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Name() == "journal.jsonl" {
				text, err := os.ReadFile(path)
				out.Write(text)
				return err
			}
			return err
		})
		if err != nil || strings.Contains(out.String(), `"at": "`+year) {
			t.Errorf("%v: the journal goes by the node's clock: %s", err, &out)
		}
	}
}

// wrongClock is a library that moves the clock of a program by TEST_CLOCK seconds.
func wrongClock(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	source, library := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	const code = `#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long moved(void) { char *s = getenv("TEST_CLOCK"); return s ? atol(s) : 0; }
int clock_gettime(clockid_t c, struct timespec *t) {
  int r = syscall(SYS_clock_gettime, c, t);
  if (c == CLOCK_REALTIME || c == CLOCK_REALTIME_COARSE) t->tv_sec += moved();
  return r;
}
time_t time(time_t *p) { struct timespec t; clock_gettime(CLOCK_REALTIME, &t); if (p) *p = t.tv_sec; return t.tv_sec; }
int gettimeofday(struct timeval *v, void *z) { struct timespec t; clock_gettime(CLOCK_REALTIME, &t); v->tv_sec = t.tv_sec; v->tv_usec = t.tv_nsec / 1000; return 0; }
`
	if err := os.WriteFile(source, []byte(code), 0o600); err != nil {
		t.Fatal(err)
	}
	command(t, dir, "gcc", "-shared", "-fPIC", "-w", "-o", library, source)
	for seconds, year := range map[string]string{"-1576800000": "19", "2522880000": "21"} {
		if out := command(t, dir, "env", "LD_PRELOAD="+library, "TEST_CLOCK="+seconds, "python3", "-c", "import datetime; print(datetime.datetime.now())"); !strings.HasPrefix(out, year) {
			t.Fatalf("the clock says %s", out)
		}
	}
	return library
}
