//go:build linux

package remote_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
	"github.com/dsbuild/dsbuild/internal/testkit/remotetest"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
)

// behindProxy is a configuration for node 1 of a fleet. Its name does not resolve, and a
// ProxyCommand leads through node 0.
func behindProxy(t *testing.T, f *nodes.Fleet) string {
	t.Helper()
	needSSH(t)
	bastion, n := f.Nodes[0], f.Nodes[1]
	return write(t, "config", fmt.Sprintf(`
Host gpu1
  HostName gpu1.invalid
  HostKeyAlias [%s]:%d
  User %s
  IdentityFile %s
  UserKnownHostsFile %s
  ProxyCommand ssh -F none -i %s -o UserKnownHostsFile=%s -o BatchMode=yes -p %d -W %s:%d %s@%s
`, n.Address, n.Port, f.User, f.IdentityFile, f.KnownHosts, f.IdentityFile, f.KnownHosts, bastion.Port, n.Address, n.Port, f.User, bastion.Address))
}

// dsbuild selects OpenSSH by itself for a node behind a ProxyCommand, and the connection passes
// all conformance tests.
func TestConformanceProxyCommand(t *testing.T) {
	t.Parallel()
	f := nodestest.Up(t, nodes.Options{Count: 2, Env: nodes.NoPython})
	d := remote.NewSSH(remote.Options{Config: behindProxy(t, f), AgentSocket: "none"})
	remotetest.Conformance(t, d, func(*testing.T) (remote.Target, string) {
		return remote.Target{Name: "gpu1"}, f.Nodes[1].Home
	})
}

// The ProxyCommand of an argument, as in ansible_ssh_common_args, has options of its own.
func TestProxyCommandOfArguments(t *testing.T) {
	t.Parallel()
	needSSH(t)
	f := nodestest.Up(t, nodes.Options{Count: 2, Env: nodes.NoPython})
	bastion, target := f.Nodes[0], fleetTarget(f, 1)
	command := fmt.Sprintf("ssh -F none -i %s -o UserKnownHostsFile=%s -p %d -W %%h:%%p %s@%s", f.IdentityFile, f.KnownHosts, bastion.Port, f.User, bastion.Address)
	target.SSHArgs = []string{"-o", "ControlMaster=auto", "-o", "ProxyCommand=" + command}
	c := dial(t, remote.NewSSH(remote.Options{Config: remote.NoConfig, AgentSocket: "none"}), target)
	o, _, err := output(t, c, remote.Command{Argv: []string{"sh", "-c", "echo $HOME"}})
	if err != nil || strings.TrimSpace(o) != f.Nodes[1].Home {
		t.Errorf("got %q, %v; want the home of the second node, %s", o, err, f.Nodes[1].Home)
	}
	if log, err := os.ReadFile(bastion.Log()); err != nil || !strings.Contains(string(log), "Accepted publickey") {
		t.Errorf("the log of the first node, %v, has no login; want one, because the way leads through it:\n%s", err, log)
	}
}

func TestProxyCommandFails(t *testing.T) {
	t.Parallel()
	needSSH(t)
	for command, c := range map[string]struct {
		timeout time.Duration
		want    string
	}{
		"sh -c 'echo no way through >&2; exit 1'": {time.Minute, "ProxyCommand .* failed: no way through"},
		"sleep 600": {2 * time.Second, "timed out after 2s"},
	} {
		file := write(t, "config", "Host gpu1\n ProxyCommand "+command+"\n User train\n")
		d := remote.NewSSH(remote.Options{Config: file, AgentSocket: "none", Timeout: c.timeout, Backoff: time.Millisecond})
		_, err := d.Dial(t.Context(), remote.Target{Name: "gpu1"})
		wantError(t, err, remote.ErrDial, c.want, "ssh -v")
	}
}

// A jump host in the inventory replaces the ProxyCommand of the configuration.
func TestJumpHostSparesProxyCommand(t *testing.T) {
	t.Parallel()
	f := nodestest.Up(t, nodes.Options{Count: 2, Env: nodes.NoPython})
	for _, way := range []remote.Client{remote.Auto, remote.Native, remote.OpenSSH} {
		d := remote.NewSSH(remote.Options{Config: write(t, "config", "Host 127.0.*\n ProxyCommand false\n"), AgentSocket: "none", Client: way, Timeout: time.Minute})
		target := fleetTarget(f, 1)
		jump := fleetTarget(f, 0)
		jump.Jump = []remote.Target{}
		target.Jump = []remote.Target{jump}
		c := dial(t, d, target)
		o, _, err := output(t, c, remote.Command{Argv: []string{"sh", "-c", "echo $HOME"}})
		if err != nil || strings.TrimSpace(o) != f.Nodes[1].Home {
			t.Errorf("%s: got %q, %v", way, o, err)
		}
		c.Close()
	}
}

// No process and no folder is left.
func TestOpenSSHLeavesNothing(t *testing.T) {
	f := nodestest.Up(t, nodes.Options{Count: 1, Env: nodes.NoPython})
	temp, err := os.MkdirTemp("", "l") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(temp) })
	t.Setenv("TMPDIR", temp)
	before := children(t, os.Getpid()) // the node's processes
	refused := fleetTarget(f, 0)
	refused.IdentityFiles = []string{"/no/such/key"}
	if _, err := bySSH(t, remote.Options{}).Dial(t.Context(), refused); !errors.Is(err, remote.ErrAuth) {
		t.Errorf("got %v", err)
	}
	d := bySSH(t, remote.Options{})
	c := dial(t, d, fleetTarget(f, 0))
	runTrue(t, c)
	if found, err := filepath.Glob(os.Getenv("TMPDIR") + "/dsbuild-ssh-*/*"); err != nil || len(found) == 0 {
		t.Errorf("found %q, %v", found, err)
	}
	if folders, err := filepath.Glob(temp + "/dsbuild-ssh-*"); err != nil || len(folders) != 1 {
		t.Errorf("folders %q, %v", folders, err)
	} else if info, err := os.Stat(folders[0]); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%s has the mode %v, %v", folders[0], info.Mode(), err)
	}
	c.Close()
	isNew := func(pid int) bool { return !slices.Contains(before, pid) }
	if pids := children(t, os.Getpid()); slices.ContainsFunc(pids, isNew) {
		t.Errorf("processes %v run, and %v before", pids, before)
	}
	if found, err := filepath.Glob(os.Getenv("TMPDIR") + "/*"); err != nil || len(found) > 0 {
		t.Errorf("found %q, %v", found, err)
	}
}

// Only ssh reaches a node behind a ProxyCommand, so the hint for an unknown key lets ssh add it.
func TestHintBehindAProxyCommand(t *testing.T) {
	t.Parallel()
	f := nodestest.Up(t, nodes.Options{Count: 2, Env: nodes.NoPython})
	config := behindProxy(t, f)
	known := filepath.Join(t.TempDir(), "known_hosts")
	d := remote.NewSSH(remote.Options{Config: config, AgentSocket: "none"})
	target := remote.Target{Name: "gpu1", KnownHosts: []string{known}}
	_, err := d.Dial(t.Context(), target)
	want := fmt.Sprintf("ssh -o StrictHostKeyChecking=ask -o HashKnownHosts=no -i %s -o UserKnownHostsFile=%s -p 22 %s@gpu1 true$",
		f.IdentityFile, known, f.User)
	wantError(t, err, remote.ErrHostKey, "is not in", want)
	_, command, _ := strings.Cut(fault.Hint(err), "then add it: ")
	command = strings.NewReplacer("=ask", "=accept-new", "ssh ", "ssh -F "+config+" ").Replace(command) // no terminal here
	if out, err := exec.CommandContext(t.Context(), "sh", "-c", command).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	dial(t, d, target).Close()
}

// A KnownHostsCommand identifies a node, unless the inventory has a known_hosts.
func TestKnownHostsCommand(t *testing.T) {
	t.Parallel()
	needSSH(t)
	s := sshtest.Start(t, sshtest.Options{})
	known := read(t, s.KnownHosts)
	target := s.Target()
	target.KnownHosts = nil
	reach := func(printed string, target remote.Target) error {
		config := write(t, "config", "UserKnownHostsFile none\nKnownHostsCommand /bin/cat "+write(t, "printed", printed)+"\n")
		d := remote.NewSSH(remote.Options{Config: config, AgentSocket: "none", Timeout: time.Minute})
		c, err := d.Dial(t.Context(), target)
		if err == nil {
			c.Close()
		}
		return err
	}
	if err := reach(known, target); err != nil {
		t.Error(err)
	}
	wantError(t, reach("# nobody\n", target), remote.ErrHostKey, "it presented ssh-ed25519 SHA256:", "ssh-keyscan")
	target.KnownHosts = []string{write(t, "empty", "")}
	wantError(t, reach(known, target), remote.ErrHostKey, "is not in .*empty; it presented ssh-ed25519 SHA256:", "ssh-keyscan")
}
