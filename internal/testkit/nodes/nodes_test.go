//go:build linux

package nodes_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
)

// run runs a line on a node, with the fleet's own key and known_hosts.
func run(t *testing.T, f *nodes.Fleet, n *nodes.Node, line string) (string, error) {
	t.Helper()
	key, err := os.ReadFile(f.IdentityFile)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.ParsePrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	check, err := knownhosts.New(f.KnownHosts)
	if err != nil {
		t.Fatal(err)
	}
	c, err := ssh.Dial("tcp", net.JoinHostPort(n.Address, strconv.Itoa(n.Port)), &ssh.ClientConfig{
		User: f.User, Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)}, HostKeyCallback: check,
		HostKeyAlgorithms: []string{ssh.KeyAlgoED25519}, Timeout: time.Minute,
	})
	if err != nil {
		return "", err
	}
	defer c.Close()
	s, err := c.NewSession()
	if err != nil {
		return "", err
	}
	defer s.Close()
	out, err := s.CombinedOutput(line)
	return strings.TrimSpace(string(out)), err
}

func mustRun(t *testing.T, f *nodes.Fleet, n *nodes.Node, line string) string {
	t.Helper()
	out, err := run(t, f, n, line)
	if err != nil {
		t.Fatalf("%s: %s: %v: %s", n.Name, line, err, out)
	}
	return out
}

func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !bytes.Contains(b, []byte(") Z "))
}

func TestNodesAreApart(t *testing.T) {
	f := nodestest.Up(t, nodes.Options{Count: 3, Env: nodes.FakeTorch, Each: map[int]nodes.Env{2: nodes.NoPython}})
	homes, keys := map[string]bool{}, map[string]bool{}
	for _, n := range f.Nodes {
		got := mustRun(t, f, n, `printf '%s|%s' "$HOME" "$TMPDIR"; touch "$HOME/was-here" "$TMPDIR/was-here"`)
		if want := n.Home + "|" + filepath.Join(n.Dir, "tmp"); got != want {
			t.Errorf("%s: HOME and TMPDIR are %s, want %s", n.Name, got, want)
		}
		for _, file := range []string{filepath.Join(n.Home, "was-here"), filepath.Join(n.Dir, "tmp", "was-here")} {
			if _, err := os.Stat(file); err != nil {
				t.Error(err)
			}
		}
		homes[n.Home], keys[hostKey(t, n)] = true, true
	}
	if len(homes) != 3 || len(keys) != 3 {
		t.Errorf("%d homes and %d host keys for 3 nodes", len(homes), len(keys))
	}
	prefix := mustRun(t, f, f.Nodes[0], f.Nodes[0].Python+` -c 'import sys; print(sys.prefix, "%d.%d" % sys.version_info[:2])'`)
	if want := filepath.Join(f.Nodes[0].Dir, "venv") + " 3.11"; prefix != want {
		t.Errorf("the environment is %q, want %q", prefix, want)
	}
	fake := mustRun(t, f, f.Nodes[0], f.Nodes[0].Python+` -c 'import torch, importlib.metadata as m; print(torch.__version__, torch.version.cuda, m.version("torch"))'`)
	if want := "2.6.0+cu124 12.4 2.6.0+cu124"; fake != want {
		t.Errorf("the stub says %q, want %q", fake, want)
	}
	if _, err := run(t, f, f.Nodes[2], f.Nodes[2].Python+" --version"); err == nil {
		t.Error("the node without Python has one")
	}
}

// hostKey is the fingerprint of a node's host key.
func hostKey(t *testing.T, n *nodes.Node) string {
	t.Helper()
	key, err := n.HostKey()
	if err != nil {
		t.Fatal(err)
	}
	return ssh.FingerprintSHA256(key)
}

func TestUpAgainKeepsWhatIsThere(t *testing.T) {
	opt := nodes.Options{Dir: t.TempDir(), Count: 2, Env: nodes.FakeTorch}
	first := nodestest.Up(t, opt)
	key, installed := hostKey(t, first.Nodes[0]), filepath.Join(first.Nodes[0].Dir, "venv", "installed-later")
	if err := os.WriteFile(installed, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := first.Down(); err != nil {
		t.Fatal(err)
	}
	second := nodestest.Up(t, opt)
	if hostKey(t, second.Nodes[0]) != key {
		t.Error("node1 is another one now")
	}
	if _, err := os.Stat(installed); err != nil {
		t.Errorf("the environment was made again: %v", err)
	}
}

// If a program is killed, its nodes end with it. Processes that ran on them end when the next
// program starts.
func TestKilledProgram(t *testing.T) {
	const marker = "DSBUILD_TEST_NODES_HOLDER"
	opt := nodes.Options{Dir: os.Getenv(marker), Count: 1, Env: nodes.NoPython}
	if opt.Dir != "" {
		f := nodestest.Up(t, opt)
		orphan := mustRun(t, f, f.Nodes[0], `setsid sleep 300 >/dev/null 2>&1 </dev/null & echo $!`)
		fmt.Printf("pids=%d %s\n", f.Nodes[0].Pid(), orphan)
		os.Stdin.Read(make([]byte, 1))
		return
	}
	opt.Dir = t.TempDir()
	nodestest.Up(t, nodes.Options{Count: 1, Env: nodes.NoPython}) // skips, or installs
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilledProgram$")
	cmd.Env = append(os.Environ(), marker+"="+opt.Dir)
	_, err := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err, err2, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	var listener, orphan int
	_, err = fmt.Fscanf(out, "pids=%d %d\n", &listener, &orphan)
	cmd.Process.Kill()
	cmd.Wait()
	if err != nil || !alive(orphan) {
		t.Fatalf("no process to leave behind: %v", err)
	}
	nodestest.Up(t, opt)
	if alive(listener) || alive(orphan) {
		t.Errorf("still there: listener %v, orphan %v", alive(listener), alive(orphan))
	}
}

func TestDownLeavesNoProcess(t *testing.T) {
	f := nodestest.Up(t, nodes.Options{Count: 1, Env: nodes.NoPython})
	n := f.Nodes[0]
	listener := n.Pid()
	if listener == 0 {
		t.Fatal("not running")
	}
	// This process outlives its connection, as a stuck install would.
	out := mustRun(t, f, n, `setsid sleep 300 >/dev/null 2>&1 </dev/null & echo $!`)
	orphan, err := strconv.Atoi(out)
	if err != nil || !alive(orphan) {
		t.Fatalf("no process to leave behind: %q", out)
	}
	if err := f.Down(); err != nil {
		t.Fatal(err)
	}
	if n.Pid() != 0 || alive(listener) || alive(orphan) {
		t.Errorf("still there: listener %v, orphan %v", alive(listener), alive(orphan))
	}
	if err := f.Down(); err != nil {
		t.Errorf("down twice: %v", err)
	}
}

func TestStopStartRekey(t *testing.T) {
	f := nodestest.Up(t, nodes.Options{Count: 1, Env: nodes.NoPython})
	n := f.Nodes[0]
	if err := f.Stop(0); err != nil {
		t.Fatal(err)
	}
	if _, err := run(t, f, n, "true"); err == nil {
		t.Fatal("a stopped node answers")
	}
	if err := f.Start(0); err != nil {
		t.Fatal(err)
	}
	mustRun(t, f, n, "true")
	old := hostKey(t, n)
	if err := f.Rekey(0); err != nil {
		t.Fatal(err)
	}
	_, err := run(t, f, n, "true")
	if err == nil || !strings.Contains(err.Error(), "key mismatch") || hostKey(t, n) == old {
		t.Errorf("after a new host key: %v", err)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for _, o := range []nodes.Options{{}, {Dir: t.TempDir(), Count: 251}, {Dir: t.TempDir(), Count: -1}} {
		if _, err := nodes.Up(t.Context(), o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
}

// A home may have a space in its path.
func TestFolderWithASpace(t *testing.T) {
	f := nodestest.Up(t, nodes.Options{Dir: filepath.Join(t.TempDir(), "my nodes"), Count: 1, Env: nodes.FakeTorch})
	n := f.Nodes[0]
	// A command starts in the node's home only if the account's shell reads .bashrc.
	if got := mustRun(t, f, n, "cd && pwd"); got != n.Home {
		t.Errorf("the home is %s", got)
	}
	got := mustRun(t, f, n, `"`+n.Python+`" -c 'import sys; print(sys.prefix)'`)
	if got != filepath.Join(n.Dir, "venv") {
		t.Errorf("Python is in %s", got)
	}
	sftp := exec.CommandContext(t.Context(), "sftp", "-b", "-", "-P", strconv.Itoa(n.Port), "-i", f.IdentityFile,
		"-o", `UserKnownHostsFile="`+f.KnownHosts+`"`, f.User+"@"+n.Address)
	sftp.Stdin = strings.NewReader("pwd\n")
	out, err := sftp.CombinedOutput()
	if err != nil || !strings.Contains(string(out), ": "+n.Home+"\n") {
		t.Errorf("sftp: %v\n%s", err, out)
	}
}

// Nodes with networks of their own are reached from the controller's; a link has the speed that it was
// given, also that of a node that was killed and comes back.
func TestNodesWithNetworks(t *testing.T) {
	f := nodestest.Up(t, nodes.Options{Count: 2, Env: nodes.NoPython, Networks: true})
	ssh := func(i int, line string) ([]byte, time.Duration, error) {
		n := f.Nodes[i]
		argv := append(f.EnterController(), "ssh", "-n", "-F", "none", "-i", f.IdentityFile, "-p", strconv.Itoa(n.Port),
			"-o", "UserKnownHostsFile="+f.KnownHosts, f.User+"@"+n.Address, line)
		begin := time.Now()
		out, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).Output()
		return out, time.Since(begin), err
	}
	if err := errors.Join(f.Shape(0, 8), f.Kill(1), f.Start(1)); err != nil {
		t.Fatal(err)
	}
	for i := range f.Nodes {
		out, took, err := ssh(i, "head -c 1500000 /dev/zero")
		if err != nil || len(out) != 1500000 || took < time.Second {
			t.Errorf("node %d: %d bytes at 1 MB/s in %s: %v", i+1, len(out), took, err)
		}
	}
	if err := f.Shape(0, 0); err != nil {
		t.Fatal(err)
	}
	if _, took, err := ssh(1, "head -c 60000000 /dev/zero"); err != nil || took > time.Minute {
		t.Errorf("60 MB without a limit, a minute with it: %s, %v", took, err)
	}
}
