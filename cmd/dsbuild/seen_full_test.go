//go:build full

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/wheel"
)

// throng is 200 nodes in four parts of fifty: those of a part share an
// environment. The first is as it should be, the second has no torch, the third
// is not listening, and in the fourth pip fails.
type throng struct {
	dir, program, wheel, inventory string
	sites                          [3]string
	servers                        []*sshtest.Server
}

const crowded = 200

func newThrong(t *testing.T) *throng {
	t.Helper()
	c := &throng{dir: t.TempDir(), program: makeProgram(t)}
	c.inventory = filepath.Join(c.dir, "inventory.yaml")
	tag := strings.TrimSpace(command(t, c.dir, "python3", "-c", "import sys; print('cp%d%d' % sys.version_info[:2])"))
	c.wheel = wheeltest.Packed(t, c.dir, wheeltest.Options{Python: tag, CPU: wheel.CPUv2, Requires: []string{"einops"}, Ops: []wheeltest.Op{{Name: "cpu_adam", Dir: "adam", SASS: []string{"8.0"}}}})
	for i := range c.sites {
		env := filepath.Join(c.dir, fmt.Sprint("env", i))
		command(t, c.dir, "python3", "-m", "venv", "--without-pip", env)
		sites, err := filepath.Glob(filepath.Join(env, "lib", "python3*", "site-packages"))
		if err != nil || len(sites) != 1 {
			t.Fatalf("%q, %v", sites, err)
		}
		c.sites[i] = sites[0]
		c.put(t, i, "einops-0.8.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: einops\nVersion: 0.8.0\n")
		c.torch(t, i)
	}
	if err := os.RemoveAll(filepath.Join(c.sites[1], "torch")); err != nil {
		t.Fatal(err)
	}
	c.put(t, 2, "zz.pth", "import os, sys; any(a.endswith('.whl') for a in sys.argv) and (print('ERROR: this pip does not work', flush=True), os._exit(1))\n")
	for range crowded {
		c.servers = append(c.servers, sshtest.Start(t, sshtest.Options{}))
	}
	c.write(t, 1)
	return c
}

func (c *throng) put(t *testing.T, env int, name, text string) {
	t.Helper()
	file := filepath.Join(c.sites[env], name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (c *throng) torch(t *testing.T, env int) {
	t.Helper()
	c.put(t, env, "torch/version.py", "__version__ = '2.15.0+cu132'\ncuda = '13.2'\n")
	c.put(t, env, "torch/__init__.py", "from . import version\n")
	c.put(t, env, "torch-2.15.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: torch\nVersion: 2.15.0\n")
}

// write writes the inventory; port, if it is not 0, is that of the third part.
func (c *throng) write(t *testing.T, port int) {
	t.Helper()
	known, text := filepath.Join(c.dir, "known_hosts"), "known_hosts: known_hosts\nnodes:\n"
	var keys []byte
	for i, s := range c.servers {
		key, err := os.ReadFile(s.KnownHosts)
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, key...)
		env, at := []int{0, 1, 0, 2}[i*4/crowded], s.Port
		if i*4/crowded == 2 && port != 0 {
			at = port
		}
		text += fmt.Sprintf("  - {hosts: gpu%03d, address: %s, port: %d, user: %s, identity_file: %s, python: %s/env%d/bin/python}\n", i+1, s.Address, at, s.User, s.IdentityFile, c.dir, env)
	}
	for file, text := range map[string][]byte{known: keys, c.inventory: []byte(text)} {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// dsbuild runs the program on a terminal of 24 lines, and returns what a person
// sees there in the end, and what went over it.
func (c *throng) dsbuild(t *testing.T, want int, args ...string) (seen, all string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), c.program, args...)
	cmd.Dir = c.dir
	cmd.Env = append(os.Environ(), "TERM=xterm", "LC_ALL=C.UTF-8", "XDG_STATE_HOME="+filepath.Join(c.dir, "state"), "XDG_CACHE_HOME="+filepath.Join(c.dir, "cache"))
	begin := time.Now()
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: 80})
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	output, _ := io.ReadAll(tty) //nolint:errcheck // a terminal ends with an error
	err = cmd.Wait()
	all = strings.ReplaceAll(string(output), "\r\n", "\n")
	if code := exitStatus(err); code != want {
		t.Fatalf("dsbuild %s: exit %d (%v), want %d\n%s", strings.Join(args, " "), code, err, want, all[max(0, len(all)-4000):])
	}
	t.Logf("result: dsbuild %s of %d nodes: %.1f s, %.1f s of CPU on this side", args[0], crowded, time.Since(begin).Seconds(), (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds())
	seen = all
	if at := strings.LastIndex(all, "\x1b[K"); at >= 0 {
		seen = all[at+len("\x1b[K"):]
	}
	t.Log(seen)
	return seen, all
}

// report reads the report of the last run.
func (c *throng) report(t *testing.T) report.Report {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(c.dir, "r.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r report.Report
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// TestFullFleetOfAHundredFailures: 150 of 200 nodes are not well, for three
// reasons. Who runs dsbuild sees them on one screen, mends them, and runs it again.
func TestFullFleetOfAHundredFailures(t *testing.T) {
	c := newThrong(t)
	deployed := []string{"deploy", "inventory.yaml", "--wheel", c.wheel, "--verify", "files", "--report", "r.json", "--report", "r.html"}
	seen, all := c.dsbuild(t, 3, deployed...)
	lines := 0
	for line := range strings.Lines(seen) {
		lines += (len([]rune(line))-2)/80 + 1
	}
	t.Logf("result: what 150 failures of 200 nodes look like: %d lines of 80 characters", lines)
	if lines > 40 {
		t.Errorf("%d lines", lines)
	}
	for _, want := range []string{
		"gpu[051-100] (50 nodes): fit: no torch in the environment", "gpu[101-150] (50 nodes): connect: cannot connect",
		"gpu[152-200] (49 nodes): install: shares an environment with gpu151, which failed", "gpu151: install: node reported: pip exited with status 1: ERROR: this pip does not work",
		"50 of 200 nodes ok, 50 failed, 50 unreachable, 50 refused",
	} {
		if strings.Count(seen, want) != 1 {
			t.Errorf("%d times %q", strings.Count(seen, want), want)
		}
	}
	for _, want := range []string{`probing +\d+% \|█+`, `\d+ of 200 nodes\n`, `\n  50 failed: gpu\[101-150\]`, `deploying +\d+%`} {
		if !regexp.MustCompile(want).MatchString(all) {
			t.Errorf("the bar does not show %s", want)
		}
	}
	r := c.report(t)
	if len(r.Causes) != 4 || len(r.Causes[3].Nodes) != 1 {
		t.Errorf("%d causes", len(r.Causes))
	}
	for _, c := range r.Causes[:2] { // unreachable and refused; the third were asked for their version
		if c.Log != "" { // there is nothing in it that is not said
			t.Errorf("%s has a log: %s", c.Node, c.Log)
		}
	}
	if log, err := os.ReadFile(r.Causes[3].Log); err != nil || !strings.Contains(string(log), "pip    ERROR: this pip does not work") {
		t.Errorf("the log of %s: %v\n%s", r.Causes[3].Node, err, log)
	}

	// Mended, only those are asked again, environment by environment.
	if err := os.Remove(filepath.Join(c.sites[2], "zz.pth")); err != nil {
		t.Fatal(err)
	}
	c.torch(t, 1)
	c.write(t, 0)
	seen, _ = c.dsbuild(t, 0, append(deployed, "--limit", "gpu[051-200]", "--serial", "1")...)
	if r = c.report(t); len(r.Nodes) != 150 || !strings.Contains(seen, "150 nodes ok, all equal") {
		t.Errorf("%d nodes", len(r.Nodes))
	}
	groups := map[int]int{}
	for _, n := range r.Nodes {
		groups[n.Serial]++
	}
	if len(groups) != 3 || groups[0] != 50 || groups[1] != 50 || groups[2] != 50 { // the third part runs it already
		t.Errorf("groups %v", groups)
	}
}
