//go:build linux

package remote_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
)

// keygen runs ssh-keygen, which writes and signs the files that OpenSSH reads.
func keygen(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "ssh-keygen", args...).CombinedOutput(); err != nil {
		t.Fatalf("ssh-keygen %s: %v %s", strings.Join(args, " "), err, out)
	}
}

// write makes a file in a folder of its own.
func write(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// configure puts lines into a node's sshd_config.
func configure(t *testing.T, f *nodes.Fleet, i int, lines ...string) {
	t.Helper()
	if err := f.Configure(i, lines...); err != nil {
		t.Fatal(err)
	}
}

// known_hosts can list a node in several ways, as OpenSSH writes them.
func TestOpenSSHKnownHosts(t *testing.T) { testOpenSSHKnownHosts(t, native) }

func testOpenSSHKnownHosts(t *testing.T, by way) {
	t.Parallel()
	f := nodestest.Up(t, nodes.Options{Count: 2, Env: nodes.NoPython})
	known := read(t, f.KnownHosts)
	target := fleetTarget(f, 0)
	with := func(file string) error {
		target.KnownHosts = []string{file}
		c, err := by.quick().Dial(t.Context(), target)
		if err == nil {
			c.Close()
		}
		return err
	}

	hashed := write(t, "hashed", known)
	keygen(t, "-H", "-f", hashed)
	if strings.Contains(read(t, hashed), f.Nodes[0].Address) {
		t.Fatal("it is not hashed")
	}
	if err := with(hashed); err != nil {
		t.Errorf("hashed: %v", err)
	}
	target.Address = "127.0.1.2" // hashed, and for another node
	if err := with(hashed); err != nil {
		t.Errorf("hashed, the other: %v", err)
	}
	target.Address = f.Nodes[0].Address

	key := strings.Join(strings.Fields(strings.Split(known, "\n")[0])[1:3], " ")
	err := with(write(t, "revoked", known+"@revoked * "+key+"\n"))
	wantError(t, err, remote.ErrHostKey, "which is revoked in .*revoked:3$", "")

	// A certificate identifies a node by its signer.
	ca := filepath.Join(t.TempDir(), "ca")
	keygen(t, "-q", "-t", "ed25519", "-N", "", "-f", ca)
	host := filepath.Join(f.Nodes[0].Dir, "host_ed25519")
	sign := func(principal, serial string) {
		keygen(t, "-q", "-s", ca, "-I", "node1", "-h", "-n", principal, "-z", serial, host+".pub")
		configure(t, f, 0, "HostCertificate "+host+"-cert.pub")
	}
	signer := read(t, ca+".pub")
	sign("127.0.1.1", "1")
	for _, hosts := range []string{"*", "10.0.0.1,127.0.1.*", fmt.Sprintf("[127.0.1.*]:%d", target.Port)} {
		if err := with(write(t, "authority", "@cert-authority "+hosts+" "+signer)); err != nil {
			t.Errorf("@cert-authority %s: %v", hosts, err)
		}
	}
	other := filepath.Join(t.TempDir(), "other")
	keygen(t, "-q", "-t", "ed25519", "-N", "", "-f", other)
	err = with(write(t, "authority", "@cert-authority * "+read(t, other+".pub")))
	wantError(t, err, remote.ErrHostKey, "127.0.1.1", "")
	err = with(write(t, "authority", "@cert-authority * "+signer+"@revoked * "+signer))
	wantError(t, err, remote.ErrHostKey, "revoked", "")
	sign("10.0.0.1", "2") // for another node
	err = with(write(t, "authority", "@cert-authority * "+signer))
	wantError(t, err, remote.ErrHostKey, "127.0.1.1", "")
}

// A user's certificate, and a configuration that leads to a node through two others, with all
// ways to write it.
func TestOpenSSHCertificateAndConfiguration(t *testing.T) {
	f := nodestest.Up(t, nodes.Options{Count: 3, Env: nodes.NoPython})
	dir := t.TempDir()
	ca, id := filepath.Join(dir, "ca"), filepath.Join(dir, "id")
	keygen(t, "-q", "-t", "ed25519", "-N", "", "-f", ca)
	keygen(t, "-q", "-t", "ed25519", "-N", "", "-f", id)
	keygen(t, "-q", "-s", ca, "-I", "somebody", "-n", f.User, "-V", "-1m:+1h", id+".pub")
	for i := range f.Nodes {
		configure(t, f, i, "TrustedUserCAKeys "+ca+".pub", "AuthorizedKeysFile none")
	}
	more := filepath.Join(dir, "conf.d")
	if err := os.Mkdir(more, 0o700); err != nil {
		t.Fatal(err)
	}
	included := fmt.Sprintf("Host gpu*\n HostName %s\n ProxyJump hop1,hop2\nHost hop1\n HostName %s\nHost hop2\n HostName %s\n",
		f.Nodes[2].Address, f.Nodes[0].Address, f.Nodes[1].Address)
	if err := os.WriteFile(filepath.Join(more, "nodes"), []byte(included), 0o600); err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf("Include %s/*\nHost *\n Port %d\n User %s\n IdentityFile %s/%%%%d\n IdentityFile %s/i${CONN_TEST}\n UserKnownHostsFile %s\n",
		more, f.Nodes[0].Port, f.User, dir, dir, f.KnownHosts)
	t.Setenv("CONN_TEST", "d")
	for name, text := range map[string]string{"by dsbuild": config, "by ssh -G": config + "Match host 127.0.1.* user " + f.User + " exec true\n IdentitiesOnly yes\n"} {
		d := configured(t, text)
		c := dial(t, d, remote.Target{Name: "gpu1"})
		o, _, err := output(t, c, remote.Command{Argv: []string{"sh", "-c", "echo $HOME"}})
		if err != nil || strings.TrimSpace(o) != f.Nodes[2].Home {
			t.Errorf("%s: got %q, %v", name, o, err)
		}
	}
	log := read(t, f.Nodes[2].Log())
	if n := strings.Count(log, "ED25519-CERT"); n < 2 {
		t.Errorf("the node has seen %d certificates: %s", n, log)
	}
}

// An sshd that accepts few logins at a time gets them all in the end.
func TestOpenSSHMaxStartups(t *testing.T) {
	t.Parallel()
	f := nodestest.Up(t, nodes.Options{Count: 1, Env: nodes.NoPython})
	configure(t, f, 0, "MaxStartups 3:100:3")
	d := remote.NewSSH(remote.Options{Config: remote.NoConfig, AgentSocket: "none", Backoff: 300 * time.Millisecond})
	targets := make([]remote.Target, 16)
	for i := range targets {
		targets[i] = fleetTarget(f, 0)
	}
	for _, err := range all(t, d, targets) {
		if err != nil {
			t.Error(err)
		}
	}
	if log := read(t, f.Nodes[0].Log()); !strings.Contains(log, "past MaxStartups") {
		t.Errorf("nobody was turned away: %s", log)
	}
}

func TestOpenSSHForwardsNothing(t *testing.T) { testOpenSSHForwardsNothing(t, native) }

func testOpenSSHForwardsNothing(t *testing.T, by way) {
	t.Parallel()
	f := nodestest.Up(t, nodes.Options{Count: 2, Env: nodes.NoPython})
	configure(t, f, 0, "AllowTcpForwarding no")
	target := fleetTarget(f, 1)
	target.Jump = []remote.Target{fleetTarget(f, 0)}
	_, err := by.quick().Dial(t.Context(), target)
	wantError(t, err, remote.ErrDial, "forwarding denied by the jump host", "AllowTcpForwarding")
}

// dsbuild does not accept a real sshd that signs only with SHA-1. After the change in the hint
// it does.
func TestOpenSSHSignsWithSHA1(t *testing.T) {
	t.Parallel()
	f := nodestest.Up(t, nodes.Options{Count: 1, Env: nodes.NoPython})
	key := filepath.Join(t.TempDir(), "rsa")
	keygen(t, "-q", "-t", "rsa", "-b", "2048", "-N", "", "-f", key)
	target := fleetTarget(f, 0)
	target.KnownHosts = []string{write(t, "known", fmt.Sprintf("[%s]:%d %s", target.Address, target.Port, read(t, key+".pub")))}
	configure(t, f, 0, "HostKey "+key, "HostKeyAlgorithms ssh-rsa")
	_, err := native.quick().Dial(t.Context(), target)
	wantError(t, err, remote.ErrHostKey, `signs only with ssh-rsa \(SHA-1\)`, "add rsa-sha2-512 to HostKeyAlgorithms in the node's sshd_config")
	configure(t, f, 0, "HostKey "+key, "HostKeyAlgorithms rsa-sha2-512")
	dial(t, native.quick(), target).Close()
}

// No configuration makes ssh accept a key that known_hosts lacks, or learn it.
func TestOpenSSHStaysStrict(t *testing.T) {
	t.Parallel()
	for _, no := range []string{"no", "accept-new", "off"} {
		s := sshtest.Start(t, sshtest.Options{Unknown: true})
		before := read(t, s.KnownHosts)
		config := write(t, "config", "Host *\n StrictHostKeyChecking "+no+"\n UpdateHostKeys yes\n VerifyHostKeyDNS yes\n NoHostAuthenticationForLocalhost yes\n")
		if _, err := bySSH(t, remote.Options{Config: config}).Dial(t.Context(), s.Target()); !errors.Is(err, remote.ErrHostKey) {
			t.Errorf("StrictHostKeyChecking %s: %v", no, err)
		}
		if read(t, s.KnownHosts) != before {
			t.Errorf("StrictHostKeyChecking %s: known_hosts was written to", no)
		}
	}
}

// follow runs the command that a hint has between two texts.
func follow(t *testing.T, hint, after, before string) {
	t.Helper()
	_, command, found := strings.Cut(hint, after)
	command, _, ends := strings.Cut(command, before)
	if !found || !ends {
		t.Errorf("hint %q has no command between %q and %q", hint, after, before)
		return
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", command)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", command, err, out)
	}
}

// The hints about unknown and changed host keys help, and forget no other host: behind jump hosts, for lines of several
// hosts, and where the settings keep no keys.
func TestOpenSSHHintsAboutHostKeys(t *testing.T) {
	f := nodestest.Up(t, nodes.Options{Count: 3, Env: nodes.NoPython})
	d := native.quick()
	reach := func(target remote.Target) error {
		c, err := d.Dial(t.Context(), target)
		if err == nil {
			c.Close()
		}
		return err
	}
	lines := strings.SplitAfter(read(t, f.KnownHosts), "\n")
	within := func(known string, i int, jumps ...int) remote.Target {
		target := fleetTarget(f, i)
		target.KnownHosts = []string{known}
		for _, j := range jumps {
			jump := fleetTarget(f, j)
			jump.KnownHosts = target.KnownHosts
			target.Jump = append(target.Jump, jump)
		}
		return target
	}
	// Unknown, behind two jump hosts, one after the other.
	known := write(t, "known hosts", lines[0])
	for i, target := range []remote.Target{within(known, 1, 0), within(known, 2, 0, 1)} {
		err := reach(target)
		wantError(t, err, remote.ErrHostKey, "is not in", "ssh-keyscan")
		follow(t, fault.Hint(err)+"\n", "then add it: ", "\n")
		if err := reach(target); err != nil {
			t.Errorf("behind %d jump hosts, after the hint: %v", i+1, err)
		}
	}
	// Into a folder that is not there yet.
	absent := within(filepath.Join(t.TempDir(), "new", "known_hosts"), 0)
	follow(t, fault.Hint(reach(absent))+"\n", "then add it: ", "\n")
	if err := reach(absent); err != nil {
		t.Errorf("a missing folder, after the hint: %v", err)
	}
	// Changed: alone in its line, and with others.
	keys := strings.Fields(lines[0])[1:]
	alone := write(t, "alone", lines[1]+lines[0])
	several := write(t, "several", fmt.Sprintf("[%s]:%d,[127.0.1.9]:22 %s\n", f.Nodes[0].Address, f.Nodes[0].Port, strings.Join(keys, " ")))
	if err := f.Rekey(0); err != nil {
		t.Fatal(err)
	}
	err := reach(within(alone, 0))
	wantError(t, err, remote.ErrHostKey, "has changed", "ssh-keygen -f")
	follow(t, fault.Hint(err), "replace its key: ", "; otherwise")
	err = reach(within(several, 0))
	wantError(t, err, remote.ErrHostKey, "has changed", regexp.QuoteMeta(several)+":1 is for several hosts")
	if strings.Contains(fault.Hint(err), " -R ") {
		t.Errorf("the hint forgets the other hosts: %s", fault.Hint(err))
	}
	follow(t, fault.Hint(err), "add its new key: ", "; if all")
	for _, target := range []remote.Target{within(alone, 0), within(several, 0)} {
		if err := reach(target); err != nil {
			t.Errorf("after the hint: %v", err)
		}
	}
	if text := read(t, several); !strings.Contains(text, "127.0.1.9") || !strings.Contains(read(t, alone), f.Nodes[1].Address) {
		t.Errorf("other hosts are forgotten: %q, %q", text, read(t, alone))
	}
	// Nowhere to write to.
	config := write(t, "config", "UserKnownHostsFile /dev/null\n")
	d = remote.NewSSH(remote.Options{Config: config, AgentSocket: "none"})
	unkept := within("", 0)
	unkept.KnownHosts = nil
	err = reach(unkept)
	wantError(t, err, remote.ErrHostKey, "is not in", `then add it: set known_hosts: to ~/.ssh/known_hosts, .* and run ssh-keyscan -p \d+ 127\.0\.1\.1 >> ~/.ssh/known_hosts$`)
}
