//go:build linux

package remote_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
	"github.com/dsbuild/dsbuild/internal/testkit/remotetest"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
)

// master runs an OpenSSH that is connected to node i of a fleet and shares its connection, with
// further lines of ssh_config. It returns the configuration. The socket's name has many tokens.
func master(t *testing.T, f *nodes.Fleet, i int) (config string) {
	t.Helper()
	needSSH(t)
	n := f.Nodes[i]
	dir, err := os.MkdirTemp("", "cm") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	config = filepath.Join(dir, "config")
	text := fmt.Sprintf(`
Host gpu*
  HostName %s
  Port %d
  User %s
  ControlPath %s/%%C-%%n-%%L-%%i
`, n.Address, n.Port, f.User, dir)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ssh := func(args ...string) ([]byte, error) {
		args = append([]string{"-F", config, "-i", f.IdentityFile, "-o", "UserKnownHostsFile=" + f.KnownHosts, "-o", "BatchMode=yes"}, args...)
		return exec.CommandContext(t.Context(), "ssh", args...).CombinedOutput()
	}
	cmd := exec.CommandContext(t.Context(), "ssh", "-F", config, "-i", f.IdentityFile, "-o", "UserKnownHostsFile="+f.KnownHosts, "-o", "BatchMode=yes", "-M", "-N", "gpu1")
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("the master said: %s", said.String())
		}
	})
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		out, err := ssh("-O", "check", "gpu1")
		if err == nil {
			return config
		}
		if time.Now().After(deadline) {
			t.Fatalf("no master: %v %s", err, out)
		}
	}
}

// ridden is the node to which a master is connected.
func ridden() remote.Target {
	return remote.Target{Name: "gpu1", IdentityFiles: []string{"/no/such/key"}}
}

// A connection through the user's OpenSSH master passes all conformance tests.
func TestConformanceControlMaster(t *testing.T) { testConformanceControlMaster(t, native) }

func testConformanceControlMaster(t *testing.T, by way) {
	t.Parallel()
	f := nodestest.Up(t, nodes.Options{Count: 1, Env: nodes.NoPython})
	config := master(t, f, 0)
	d := by.rider(config)
	remotetest.Conformance(t, d, func(*testing.T) (remote.Target, string) { return ridden(), f.Nodes[0].Home })
	log, err := os.ReadFile(f.Nodes[0].Log())
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(log), "Accepted publickey"); n != 1 {
		t.Errorf("%d logins", n)
	}
}

// The jump host on the way to a node may be one to which a master is connected.
func TestControlMasterOfAJumpHost(t *testing.T) { testControlMasterOfAJumpHost(t, native) }

func testControlMasterOfAJumpHost(t *testing.T, by way) {
	t.Parallel()
	f := nodestest.Up(t, nodes.Options{Count: 2, Env: nodes.NoPython})
	d := by.rider(master(t, f, 0))
	target := fleetTarget(f, 1)
	target.Jump = []remote.Target{{Address: "gpu1"}}
	c := dial(t, d, target)
	o, _, err := output(t, c, remote.Command{Argv: []string{"sh", "-c", "echo $HOME"}})
	if err != nil || strings.TrimSpace(o) != f.Nodes[1].Home {
		t.Errorf("got %q, %v", o, err)
	}
	up, b := blob(3<<20, filepath.Join(f.Nodes[1].Home, "file"))
	if err := c.Put(t.Context(), up); err != nil {
		t.Error(err)
	} else if got, err := os.ReadFile(up.Path); err != nil || !bytes.Equal(got, b) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	// A node that is down does not affect the others, and does not end the master.
	down := target
	down.Port = 1
	for range 3 {
		_, err = d.Dial(t.Context(), down)
		wantError(t, err, remote.ErrDial, "from the jump host: ", "test from the jump host")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	stalled := target
	stalled.Address, stalled.Port = "127.0.0.1", sshtest.Start(t, sshtest.Options{StallOnAccept: true}).Port
	if _, err = d.Dial(ctx, stalled); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	runTrue(t, c)
	c.Close()
	runTrue(t, dial(t, d, target))
}

// A silent program may go on: the master's other traffic shows that the node answers.
func TestControlMasterSilentProgram(t *testing.T) {
	t.Parallel()
	f := nodestest.Up(t, nodes.Options{Count: 1, Env: nodes.NoPython})
	c := dial(t, native.impatientRider(master(t, f, 0)), ridden())
	if _, _, err := output(t, c, remote.Command{Argv: []string{"sleep", "5"}}); err != nil {
		t.Error(err)
	}
}

// dsbuild gives up a node that falls silent, although its master still runs.
func TestControlMasterOfASilentNode(t *testing.T) { testControlMasterOfASilentNode(t, native) }

func testControlMasterOfASilentNode(t *testing.T, by way) {
	t.Parallel()
	f := nodestest.Up(t, nodes.Options{Count: 1, Env: nodes.NoPython})
	d := by.impatientRider(master(t, f, 0))
	c := dial(t, d, ridden())
	pids := children(t, f.Nodes[0].Pid())
	signal := func(s syscall.Signal) {
		for _, pid := range pids {
			syscall.Kill(pid, s) // sshd's process for the connection
		}
	}
	var once sync.Once
	err := c.Run(t.Context(), remote.Command{Argv: []string{"sh", "-c", "echo on; sleep 60"}, Stdout: writerFunc(func(b []byte) (int, error) {
		once.Do(func() { signal(syscall.SIGSTOP) })
		return len(b), nil
	})})
	wantError(t, err, remote.ErrLost, "no response", "")
	// The next connection asks the node itself.
	dial(t, d, fleetTarget(f, 0))
	signal(syscall.SIGCONT)
	runTrue(t, dial(t, d, ridden())) // the master is still there
}

// A master outlives the connections through it, however they end.
func TestControlMasterStays(t *testing.T) { testControlMasterStays(t, native) }

func testControlMasterStays(t *testing.T, by way) {
	t.Parallel()
	f := nodestest.Up(t, nodes.Options{Count: 1, Env: nodes.NoPython})
	d := by.rider(master(t, f, 0))
	for i := range 20 {
		c := dial(t, d, ridden())
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Millisecond/2)
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() { c.Run(ctx, remote.Command{Argv: []string{"sleep", ".1"}}) })
		}
		all.Wait()
		c.Close()
		cancel()
	}
	c, printed := dial(t, d, ridden()), make(chan struct{})
	var once sync.Once
	go c.Run(t.Context(), remote.Command{Argv: []string{"sh", "-c", "while :; do echo noise; done"}, Stdout: writerFunc(func(b []byte) (int, error) {
		once.Do(func() { close(printed) })
		return len(b), nil
	})})
	<-printed
	c.Close() // while a program prints
	c = dial(t, d, ridden())
	c.Close()
}

// Several environments of a node share the user's master and its MaxSessions: what finds no room
// waits for it, and loses nothing. The master stays, although OpenSSH's exits after a refusal that it
// has passed on to a client of its socket.
func TestControlMasterIsFull(t *testing.T) {
	t.Parallel()
	f := nodestest.Up(t, nodes.Options{Count: 1, Env: nodes.NoPython})
	if err := f.Configure(0, "MaxSessions 2"); err != nil {
		t.Fatal(err)
	}
	d := native.rider(master(t, f, 0))
	conns := []remote.Conn{dial(t, d, ridden()), dial(t, d, ridden()), dial(t, d, ridden())}
	var all sync.WaitGroup
	for range 2 {
		began := make(chan struct{})
		all.Go(func() {
			var once sync.Once
			err := conns[0].Run(t.Context(), remote.Command{Argv: []string{"sh", "-c", "echo on; sleep 2"}, Stdout: writerFunc(func(b []byte) (int, error) {
				once.Do(func() { close(began) })
				return len(b), nil
			})})
			if err != nil {
				t.Error(err)
			}
		})
		<-began
	}
	all.Go(func() {
		text := strings.Repeat("line\n", 100_000)
		var out bytes.Buffer
		err := conns[1].Run(t.Context(), remote.Command{Argv: []string{"cat"}, Stdin: strings.NewReader(text), Stdout: &out})
		if err != nil || out.String() != text {
			t.Errorf("%d of %d bytes, %v", out.Len(), len(text), err)
		}
	})
	all.Go(func() {
		up, b := blob(3<<20, filepath.Join(f.Nodes[0].Home, "file"))
		if err := conns[2].Put(t.Context(), up); err != nil {
			t.Error(err)
		} else if got, err := os.ReadFile(up.Path); err != nil || !bytes.Equal(got, b) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	})
	all.Wait()
	for _, c := range conns {
		c.Close()
	}
	dial(t, d, ridden())
}

// Where the user's master has room for one session, a second program and a file need another connection. If none is
// possible, they fail soon, and the hint does not advise to close the master, which is the only way in.
func TestControlMasterHasOneSession(t *testing.T) {
	t.Parallel()
	f := nodestest.Up(t, nodes.Options{Count: 1, Env: nodes.NoPython})
	if err := f.Configure(0, "MaxSessions 1"); err != nil {
		t.Fatal(err)
	}
	d := native.rider(master(t, f, 0))
	keyless, keyed := ridden(), fleetTarget(f, 0)
	keyed.Name, keyed.Address = "gpu1", ""
	for _, target := range []remote.Target{keyless, keyed} {
		c := dial(t, d, target)
		runTrue(t, c)
		r, w := io.Pipe()
		err := c.Run(t.Context(), remote.Command{Argv: []string{"sh", "-c", "echo on; cat"}, Stdin: r, Stdout: writerFunc(func(b []byte) (int, error) {
			defer w.Close()
			start := time.Now()
			up, _ := blob(3<<20, filepath.Join(f.Nodes[0].Home, "file"))
			for _, err := range []error{c.Run(t.Context(), remote.Command{Argv: []string{"true"}}), c.Put(t.Context(), up)} {
				if len(target.KnownHosts) > 0 {
					if err != nil {
						t.Errorf("with a key: %v", err)
					}
					continue
				}
				wantError(t, err, remote.ErrAuth, "^session rejected by the node: .*; no second connection either: no usable SSH key",
					"^raise MaxSessions in the node's sshd_config; or, for a second connection: set identity_file: ")
			}
			if took := time.Since(start); took > 15*time.Second {
				t.Errorf("%s for a program and a file, want at most 2 s and two logins", took)
			}
			return len(b), nil
		})})
		if err != nil {
			t.Error(err)
		}
		c.Close()
	}
}

// A node without SFTP gets files through the master too.
func TestControlMasterWithoutSFTP(t *testing.T) {
	t.Parallel()
	f := nodestest.Up(t, nodes.Options{Count: 1, Env: nodes.NoPython})
	if err := f.Configure(0, "Subsystem other /bin/false"); err != nil {
		t.Fatal(err)
	}
	up, b := blob(3<<20, filepath.Join(f.Nodes[0].Home, "file"))
	if err := dial(t, native.rider(master(t, f, 0)), ridden()).Put(t.Context(), up); err != nil {
		t.Error(err)
	} else if got, err := os.ReadFile(up.Path); err != nil || !bytes.Equal(got, b) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// children are the processes that a process has started.
func children(t *testing.T, pid int) []int {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, file := range stats {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		var child, parent int
		var state string
		fmt.Sscanf(string(text), "%d", &child)
		fmt.Sscanf(string(text[bytes.LastIndexByte(text, ')')+1:]), "%s %d", &state, &parent)
		if parent == pid {
			pids = append(append(pids, child), children(t, child)...)
		}
	}
	return pids
}

// dsbuild ignores a socket without a listener, one that does not answer, and one that may belong
// to another user.
func TestStaleControlMaster(t *testing.T) { testStaleControlMaster(t, native) }

func testStaleControlMaster(t *testing.T, by way) {
	t.Parallel()
	f := nodestest.Up(t, nodes.Options{Count: 1, Env: nodes.NoPython})
	dir := t.TempDir()
	stale := filepath.Join(dir, "stale")
	l, err := net.Listen("unix", stale)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	rude := filepath.Join(dir, "rude")
	l, err = net.Listen("unix", rude)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Write([]byte("\x00\x00\x00\x04what"))
			c.Close()
		}
	}()
	target := fleetTarget(f, 0)
	target.ControlPaths = []string{filepath.Join(dir, "none"), stale, file, rude}
	dial(t, by.quick(), target)
	foreign := target
	foreign.IdentityFiles = []string{"/no/such/key"}
	if _, err := by.quick().Dial(t.Context(), foreign); !errors.Is(err, remote.ErrAuth) {
		t.Errorf("got %v", err)
	}
}

func TestControlPath(t *testing.T) {
	d := configured(t, `
Host gpu1
  HostName 10.0.0.1
  User train
  Port 2200
  ControlPath ~/%h-%p-%r-%n-${CM_TEST}-%%
Host gpu2
  ControlPath none
Host gpu3
  ProxyJump ops@b1,b2:2200
  User train
  ControlPath /tmp/%C
`)
	t.Setenv("CM_TEST", "x")
	for name, want := range map[string]string{
		"gpu1": account(t) + "/10.0.0.1-2200-train-gpu1-x-%", "gpu2": "", "gpu4": "",
	} {
		got, err := d.Resolve(t.Context(), remote.Target{Address: name})
		if err != nil || strings.Join(got.ControlPaths, " ") != want {
			t.Errorf("%s: %q, %v; want %q", name, got.ControlPaths, err, want)
		}
	}
	// %C has the value that this machine's OpenSSH computes.
	got, err := d.Resolve(t.Context(), remote.Target{Address: "gpu3"})
	if err != nil || len(got.ControlPaths) != 1 || !regexp.MustCompile(`^/tmp/[0-9a-f]{40}$`).MatchString(got.ControlPaths[0]) {
		t.Errorf("got %q, %v", got.ControlPaths, err)
	}
	given, err := d.Resolve(t.Context(), remote.Target{Address: "gpu1", ControlPaths: []string{}})
	if err != nil || len(given.ControlPaths) != 0 {
		t.Errorf("got %q, %v", given.ControlPaths, err)
	}
}

// OpenSSH's existing connection works where no other login does. It is the user's, and stays.
func TestControlMasterAlone(t *testing.T) {
	t.Parallel()
	f := nodestest.Up(t, nodes.Options{Count: 1, Env: nodes.NoPython})
	config := master(t, f, 0)
	keys := filepath.Join(f.Nodes[0].Dir, "authorized_keys")
	authorized := read(t, keys)
	t.Cleanup(func() { os.WriteFile(keys, []byte(authorized), 0o600) })
	if err := os.WriteFile(keys, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := native.quick().Dial(t.Context(), fleetTarget(f, 0)); !errors.Is(err, remote.ErrAuth) {
		t.Fatalf("a login: %v", err)
	}
	for range 2 {
		c := dial(t, native.rider(config), ridden())
		o, _, err := output(t, c, remote.Command{Argv: []string{"sh", "-c", "echo $HOME"}})
		if err != nil || strings.TrimSpace(o) != f.Nodes[0].Home {
			t.Errorf("got %q, %v", o, err)
		}
		up, b := blob(3<<20, filepath.Join(f.Nodes[0].Home, "file"))
		if err := c.Put(t.Context(), up); err != nil {
			t.Error(err)
		} else if got, err := os.ReadFile(up.Path); err != nil || !bytes.Equal(got, b) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		c.Close()
	}
	// dsbuild's own SSH does not use it.
	native := remote.NewSSH(remote.Options{Config: config, AgentSocket: "none", Client: remote.Native})
	if _, err := native.Dial(t.Context(), ridden()); !errors.Is(err, remote.ErrAuth) {
		t.Errorf("native: %v", err)
	}
}
