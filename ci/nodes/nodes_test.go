//go:build linux

package nodes_test

import (
	"bytes"
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

	"github.com/dsbuild/dsbuild/ci/nodes"
	"github.com/dsbuild/dsbuild/ci/nodes/nodestest"
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
		HostKeyAlgorithms: []string{ssh.KeyAlgoED25519}, Timeout: 10 * time.Second,
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
	f := nodestest.Up(t, nodes.Options{Count: 3, Env: nodes.Bare, Each: map[int]nodes.Env{1: nodes.FakeTorch, 2: nodes.NoPython}})
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
		homes[n.Home], keys[n.HostKey] = true, true
	}
	if len(homes) != 3 || len(keys) != 3 {
		t.Errorf("%d homes and %d host keys for 3 nodes", len(homes), len(keys))
	}
	prefix := mustRun(t, f, f.Nodes[0], f.Nodes[0].Python+` -c 'import sys; print(sys.prefix, "%d.%d" % sys.version_info[:2])'`)
	if want := filepath.Join(f.Nodes[0].Dir, "venv") + " 3.11"; prefix != want {
		t.Errorf("the bare environment is %q, want %q", prefix, want)
	}
	if out, err := run(t, f, f.Nodes[0], f.Nodes[0].Python+" -c 'import torch'"); err == nil || !strings.Contains(out, "No module named 'torch'") {
		t.Errorf("the bare environment: %v %s", err, out)
	}
	fake := mustRun(t, f, f.Nodes[1], f.Nodes[1].Python+` -c 'import torch, importlib.metadata as m; print(torch.__version__, torch.version.cuda, m.version("torch"))'`)
	if want := "2.6.0+cu124 12.4 2.6.0+cu124"; fake != want {
		t.Errorf("the stub says %q, want %q", fake, want)
	}
	if _, err := run(t, f, f.Nodes[2], f.Nodes[2].Python+" --version"); err == nil {
		t.Error("the node without Python has one")
	}
}

func TestUpAgainKeepsWhatIsThere(t *testing.T) {
	dir := t.TempDir()
	opt := nodes.Options{Dir: dir, Count: 2, Env: nodes.Bare}
	first := nodestest.Up(t, opt)
	installed := filepath.Join(first.Nodes[0].Dir, "venv", "installed-later")
	if err := os.WriteFile(installed, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	second := nodestest.Up(t, opt)
	if d := time.Since(begin); d > 3*time.Second {
		t.Errorf("the second up took %s", d)
	}
	for i, n := range second.Nodes {
		if o := first.Nodes[i]; n.Pid() != o.Pid() || n.HostKey != o.HostKey || n.Port != o.Port {
			t.Errorf("%s is another one now", n.Name)
		}
	}
	if _, err := os.Stat(installed); err != nil {
		t.Errorf("the environment was made again: %v", err)
	}
	// Fewer nodes: the others must not run on with nobody to stop them.
	gone := second.Nodes[1].Pid()
	opt.Count = 1
	nodestest.Up(t, opt)
	if alive(gone) {
		t.Errorf("process %d of the surplus node still runs", gone)
	}
}

func TestDownLeavesNoProcess(t *testing.T) {
	f := nodestest.Up(t, nodes.Options{Count: 1, Env: nodes.NoPython})
	n := f.Nodes[0]
	listener := n.Pid()
	if listener == 0 {
		t.Fatal("not running")
	}
	// One that outlives its connection, as a stuck install would.
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

// A pid file can outlive its process and name a stranger's after a reboot.
func TestDownSparesStrangers(t *testing.T) {
	f := nodestest.Up(t, nodes.Options{Count: 1, Env: nodes.NoPython})
	n := f.Nodes[0]
	if err := f.Stop(0); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(n.Dir, "sshd.pid"), []byte(strconv.Itoa(os.Getpid())), 0o644); err != nil {
		t.Fatal(err)
	}
	if n.Pid() != 0 {
		t.Fatal("this test process was taken for a node")
	}
	if err := f.Down(); err != nil {
		t.Fatal(err)
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
	old := n.HostKey
	if err := f.Rekey(0); err != nil {
		t.Fatal(err)
	}
	_, err := run(t, f, n, "true")
	if err == nil || !strings.Contains(err.Error(), "key mismatch") || n.HostKey == old {
		t.Errorf("after a new host key: %v", err)
	}
}

func TestOpenRefusesForeignState(t *testing.T) {
	dir := t.TempDir()
	if _, err := nodes.Open(dir); err == nil {
		t.Error("an empty folder was opened")
	}
	for _, s := range []string{`{"port":0,"count":1,"envs":[0]}`, `{"port":22,"count":-1,"envs":[]}`, `{"port":22,"count":2,"envs":[0]}`, `x`} {
		if err := os.WriteFile(filepath.Join(dir, "fleet.json"), []byte(s), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := nodes.Open(dir); err == nil {
			t.Errorf("%s was opened", s)
		}
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
	f := nodestest.Up(t, nodes.Options{Dir: filepath.Join(t.TempDir(), "my nodes"), Count: 1, Env: nodes.Bare})
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
