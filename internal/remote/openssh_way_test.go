//go:build linux

package remote_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
	"github.com/dsbuild/dsbuild/internal/testkit/remotetest"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
)

func TestMain(m *testing.M) {
	if code, asked := remote.Askpass(os.Args[1:], os.Stdout); asked {
		os.Exit(code)
	}
	home, err := os.MkdirTemp("", "home") // without keys
	if err == nil {
		err = os.Setenv("HOME", home)
	}
	if err != nil {
		panic(err)
	}
	code := m.Run()
	os.RemoveAll(home)
	os.Exit(code)
}

// needSSH skips a test if there is no ssh; CI has one.
func needSSH(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("ssh"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

// bySSH is a dialer that reaches every node by OpenSSH.
func bySSH(t *testing.T, opt remote.Options) *remote.SSH {
	t.Helper()
	needSSH(t)
	opt.Client = remote.OpenSSH
	opt.Config = cmp.Or(opt.Config, remote.NoConfig)
	opt.AgentSocket = "none"
	if opt.Timeout == 0 {
		opt.Timeout = time.Minute
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	opt.Askpass = program
	return remote.NewSSH(opt)
}

// A connection by OpenSSH passes all conformance tests.
func TestConformanceByOpenSSH(t *testing.T) {
	t.Parallel()
	f := nodestest.Up(t, nodes.Options{Count: 1, Env: nodes.NoPython})
	remotetest.Conformance(t, bySSH(t, remote.Options{}), func(*testing.T) (remote.Target, string) { return fleetTarget(f, 0), f.Nodes[0].Home })
}

func TestConformanceByOpenSSHInProcess(t *testing.T) {
	t.Parallel()
	d := bySSH(t, remote.Options{})
	remotetest.Conformance(t, d, func(t *testing.T) (remote.Target, string) {
		s := sshtest.Start(t, sshtest.Options{})
		return s.Target(), s.Home
	})
}

// The tests of dsbuild's own SSH hold for OpenSSH as well. Others: TestFullRemoteByOpenSSH.
func TestByOpenSSH(t *testing.T) {
	t.Parallel()
	needs.Time(t)
	testByOpenSSH(t, map[string]func(*testing.T, way){
		"changed host key":      testChangedHostKey,
		"cut while putting":     testCutWhilePutting,
		"silence":               testSilenceIsNoticed,
		"jump hosts are shared": testJumpHostsAreShared,
		"jump host is checked":  testJumpHostIsChecked,
		"password":              testPasswordOfNodes,
	})
}

// testByOpenSSH runs tests by OpenSSH.
func testByOpenSSH(t *testing.T, tests map[string]func(*testing.T, way)) {
	needSSH(t)
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { test(t, byOpenSSH) })
	}
}

// masterOf is the pid of the only master that this process runs.
func masterOf(t *testing.T) int {
	t.Helper()
	for _, pid := range children(t, os.Getpid()) {
		words, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && strings.Contains(string(words), "\x00-M\x00") {
			return pid
		}
	}
	t.Fatal("no master runs")
	return 0
}

// If a master is killed, the programs that run through it end, and the next connection has
// another master. An upload goes on where it broke.
func TestKilledMaster(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{})
	d := bySSH(t, remote.Options{})
	c := dial(t, d, s.Target())
	err := c.Run(t.Context(), remote.Command{Argv: []string{"sh", "-c", "echo on; sleep 60"}, Stdout: writerFunc(func(b []byte) (int, error) {
		syscall.Kill(masterOf(t), syscall.SIGKILL)
		return len(b), nil
	})})
	wantError(t, err, remote.ErrLost, "lost connection to .* while running a command", "reboot")
	wantError(t, c.Run(t.Context(), remote.Command{Argv: []string{"true"}}), remote.ErrLost, "", "")

	c = dial(t, d, s.Target())
	up, want := blob(32<<20, filepath.Join(s.Home, "big"))
	var once sync.Once
	var sent, again atomic.Int64
	up.Progress = func(n int64) {
		if sent.Add(n) > 16<<20 {
			once.Do(func() { syscall.Kill(masterOf(t), syscall.SIGKILL) })
		}
	}
	wantError(t, c.Put(t.Context(), up), remote.ErrLost, "while writing", "")
	c.Close()
	c = dial(t, d, s.Target())
	first := int64(0)
	up.Progress = func(n int64) {
		if first == 0 {
			first = n
		}
		again.Add(n)
	}
	if err := c.Put(t.Context(), up); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(up.Path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if again.Load() != up.Size || first < 8<<20 {
		t.Errorf("told of %d bytes, %d of them were there", again.Load(), first)
	}
}

// The signal that ended a program arrives through a master too.
func TestSignalThroughAMaster(t *testing.T) {
	f := nodestest.Up(t, nodes.Options{Count: 1, Env: nodes.NoPython})
	c := dial(t, bySSH(t, remote.Options{}), fleetTarget(f, 0))
	var exit *remote.ExitError
	err := c.Run(t.Context(), remote.Command{Argv: []string{"sh", "-c", "kill -SEGV $$"}})
	if !errors.As(err, &exit) || exit.Signal != "SEGV" || exit.Code != -1 {
		t.Errorf("got %v", err)
	}
}

// Where a node allows few sessions on a connection, another connection has the others: a file is put, and commands run,
// beside a program. Where it allows none, the error names the setting.
func TestFewSessions(t *testing.T) {
	needSSH(t)
	f := nodestest.Up(t, nodes.Options{Count: 1, Env: nodes.NoPython})
	for name, d := range map[string]*remote.SSH{"native": native.dialer(), "openssh": bySSH(t, remote.Options{})} {
		configure(t, f, 0, "MaxSessions 1")
		c := dial(t, d, fleetTarget(f, 0))
		r, w := io.Pipe()
		err := c.Run(t.Context(), remote.Command{Argv: []string{"sh", "-c", "echo on; cat"}, Stdin: r, Stdout: writerFunc(func(b []byte) (int, error) {
			defer w.Close()
			runTrue(t, c)
			up, want := blob(3<<20, filepath.Join(f.Nodes[0].Home, name))
			if err := c.Put(t.Context(), up); err != nil {
				t.Errorf("%s: a file: %v", name, err)
			} else if got, err := os.ReadFile(up.Path); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %d bytes, %v", name, len(got), err)
			}
			return len(b), nil
		})})
		if err != nil {
			t.Errorf("%s: the first program: %v", name, err)
		}
		runTrue(t, c)
		c.Close()
		if n := strings.Count(read(t, f.Nodes[0].Log()), "Accepted publickey"); n > 5 {
			t.Errorf("%s: %d logins, want one for each session beside the others, 5 at most", name, n)
		}
		configure(t, f, 0, "MaxSessions 0")
		err = dial(t, d, fleetTarget(f, 0)).Run(t.Context(), remote.Command{Argv: []string{"true"}})
		if err == nil || !strings.Contains(err.Error(), "session rejected by the node") || !strings.Contains(fault.Hint(err), "MaxSessions") {
			t.Errorf("%s: without any session: %v, hint %q", name, err, fault.Hint(err))
		}
		os.Remove(f.Nodes[0].Log())
	}
}

// The settings of a configuration that keep ssh from being a master have no effect, and those that say from where it
// connects, and with which variables, do. Variables of this machine are not sent.
func TestConfigurationOfAMaster(t *testing.T) {
	needSSH(t)
	f := nodestest.Up(t, nodes.Options{Count: 2, Env: nodes.NoPython})
	for i := range f.Nodes {
		configure(t, f, i, "AcceptEnv DSBUILD_*")
	}
	t.Setenv("DSBUILD_HERE", "here")
	config := write(t, "config", `
BindAddress 127.0.0.77
SetEnv "DSBUILD_SET=two  words" DSBUILD_MORE=x
SendEnv DSBUILD_HERE
ForkAfterAuthentication yes
StdinNull yes
SessionType none
RequestTTY force
RemoteCommand sleep 1
PermitLocalCommand yes
LocalCommand exit 1
ProxyUseFdpass yes
VisualHostKey yes
FingerprintHash md5
LogLevel QUIET
LogVerbose kex.c:*:1000
AddKeysToAgent ask
ControlPersist yes
LocalForward 127.0.0.1:1 127.0.0.1:1
ExitOnForwardFailure yes
`)
	opt := remote.Options{Config: config, AgentSocket: "none", Timeout: time.Minute}
	d := remote.NewSSH(opt)
	opt.Client = remote.Native
	behind := fleetTarget(f, 1)
	behind.Jump = []remote.Target{fleetTarget(f, 0)}
	for name, c := range map[string]struct {
		dialer *remote.SSH
		target remote.Target
		from   string
	}{
		"direct": {d, fleetTarget(f, 0), "127.0.0.77 "}, "behind a jump host": {d, behind, "127.0.0.1 "},
		"native": {remote.NewSSH(opt), fleetTarget(f, 0), "127.0.0.1 "},
	} {
		conn := dial(t, c.dialer, c.target)
		o, _, err := output(t, conn, remote.Command{Argv: []string{"sh", "-c", `echo "$SSH_CONNECTION"; env | grep -E "^DSBUILD_(SET|MORE|HERE)=" | sort`}})
		if want := "\nDSBUILD_MORE=x\nDSBUILD_SET=two  words\n"; err != nil || !strings.HasPrefix(o, c.from) || !strings.HasSuffix(o, want) {
			t.Errorf("%s: %q, %v; want a connection from %s and %q", name, o, err, c.from, want)
		}
		conn.Close()
	}
	wrong := fleetTarget(f, 0)
	wrong.User = "no-such-user"
	_, err := d.Dial(t.Context(), wrong)
	wantError(t, err, remote.ErrAuth, `tried .*id_ed25519`, "authorized_keys")
}

// Everybody on this machine sees ssh's arguments, so they contain no secret.
func TestPasswordIsNoArgument(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{Password: "top-secret-words"})
	var seen strings.Builder
	p := &person{answer: func(context.Context, string, bool) (string, error) { return "top-secret-words", nil }}
	c := dial(t, bySSH(t, remote.Options{Answers: remote.NewAnswers(p)}), keyless(s))
	for _, pid := range children(t, os.Getpid()) {
		for _, file := range []string{"cmdline", "environ"} {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
			if err != nil {
				t.Fatal(err)
			}
			seen.Write(text)
		}
	}
	if text := seen.String(); !strings.Contains(text, "ControlMaster") && !strings.Contains(text, "\x00-M\x00") || strings.Contains(text, "top-secret") {
		t.Errorf("seen: %q", text)
	}
	runTrue(t, c)
	if p.count() != 1 {
		t.Errorf("asked %q", p.asked)
	}
}

// fakeSSH puts an ssh on PATH that prints this version, and returns its folder.
func fakeSSH(t *testing.T, says string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "ssh"), []byte("#!/bin/sh\necho '"+says+"' >&2\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestFindOpenSSH(t *testing.T) {
	for _, c := range []struct{ says, want, advice string }{
		{"OpenSSH_9.2p1 Debian-2+deb12u6, OpenSSL 3.0.19 27 Jan 2026", "", ""},
		{"OpenSSH_8.4p1, OpenSSL 1.1.1", "", ""},
		{"OpenSSH_10.0p2, LibreSSL 3.9", "", ""},
		{"OpenSSH_8.3p1, OpenSSL 1.1.1", "is OpenSSH_8.3p1, but 8.4 or newer is required", "newer ssh first on PATH"},
		{"OpenSSH_7.4p1, OpenSSL 1.0.2k-fips", "is OpenSSH_7.4p1, but 8.4 or newer is required", "--ssh native"},
		{"Dropbear v2022.83", "unexpected output of .* -V: Dropbear v2022.83", "OpenSSH client first on PATH"},
	} {
		t.Setenv("PATH", fakeSSH(t, c.says)+":"+os.Getenv("PATH"))
		program, err := remote.FindOpenSSH(t.Context())
		if c.want == "" {
			if err != nil || filepath.Base(program) != "ssh" {
				t.Errorf("%s: %q, %v", c.says, program, err)
			}
			continue
		}
		wantError(t, err, remote.ErrOpenSSH, c.want, c.advice)
	}
	t.Setenv("PATH", t.TempDir())
	_, err := remote.FindOpenSSH(t.Context())
	wantError(t, err, remote.ErrOpenSSH, "ssh not found on PATH", "install the OpenSSH client")
	_, err = remote.NewSSH(remote.Options{Config: remote.NoConfig, Client: remote.OpenSSH}).Dial(t.Context(), remote.Target{Address: "127.0.0.1"})
	wantError(t, err, remote.ErrOpenSSH, "ssh not found on PATH", "install")
}
