//go:build linux

package remote_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/remote/sshtest"
)

// configured is a dialer with this ssh_config.
func configured(t *testing.T, text string) *remote.SSH {
	t.Helper()
	t.Setenv("HOME", t.TempDir())
	file := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return remote.NewSSH(remote.Options{ConfigFiles: []string{file}, AgentSocket: "none"})
}

const clientConfig = `
Host gpu*
  HostName %h.cluster.example
  User train
  Port 2200
  IdentityFile ~/.ssh/cluster
  IdentityFile /keys/%r@%h
  ProxyJump ops@bastion:2222,inner
  UserKnownHostsFile ~/kh1 "/etc/kh 2"
Host bastion
  HostName 192.0.2.1
  IdentityFile ~/.ssh/bastion
Host inner
  Port 2300
  ProxyJump never-used
Host direct
  ProxyJump none
Host *
  User fallback
`

func TestResolve(t *testing.T) {
	d := configured(t, clientConfig)
	home := os.Getenv("HOME")
	got, err := d.Resolve(remote.Target{Name: "gpu1/train", Address: "gpu1"})
	if err != nil {
		t.Fatal(err)
	}
	if got.Name != "gpu1/train" || got.Address != "gpu1.cluster.example" || got.User != "train" || got.Port != 2200 {
		t.Errorf("got %+v", got)
	}
	if want := home + "/.ssh/cluster /keys/train@gpu1.cluster.example"; strings.Join(got.IdentityFiles, " ") != want {
		t.Errorf("identities %q, want %q", got.IdentityFiles, want)
	}
	if got.KnownHosts[0] != home+"/kh1" || got.KnownHosts[1] != "/etc/kh 2" {
		t.Errorf("known hosts %q", got.KnownHosts)
	}
	if len(got.Jump) != 2 {
		t.Fatalf("jumps %+v", got.Jump)
	}
	b, i := got.Jump[0], got.Jump[1]
	if b.Address != "192.0.2.1" || b.User != "ops" || b.Port != 2222 || b.IdentityFiles[0] != home+"/.ssh/bastion" {
		t.Errorf("the bastion is %+v", b)
	}
	if i.Address != "inner" || i.User != "fallback" || i.Port != 2300 || i.IdentityFiles[0] != home+"/.ssh/cluster" {
		t.Errorf("the inner one is %+v", i)
	}
	again, err := d.Resolve(got)
	if err != nil || fmt.Sprint(again) != fmt.Sprint(got) {
		t.Errorf("resolving twice changes it: %+v, %v", again, err)
	}
}

func TestResolveInventoryWins(t *testing.T) {
	d := configured(t, clientConfig)
	in := remote.Target{
		Address: "gpu1", User: "root", Port: 22, IdentityFiles: []string{"/id"}, KnownHosts: []string{"/kh"},
		Jump: []remote.Target{{Address: "bastion"}},
	}
	got, err := d.Resolve(in)
	if err != nil {
		t.Fatal(err)
	}
	if got.User != "root" || got.Port != 22 || got.IdentityFiles[0] != "/id" || len(got.KnownHosts) != 1 || got.KnownHosts[0] != "/kh" {
		t.Errorf("got %+v", got)
	}
	// The inventory's known_hosts holds for its jump hosts too.
	if len(got.Jump) != 1 || got.Jump[0].Address != "192.0.2.1" || got.Jump[0].KnownHosts[0] != "/kh" {
		t.Errorf("jumps %+v", got.Jump)
	}
	got, err = d.Resolve(remote.Target{Name: "direct"})
	if err != nil || len(got.Jump) != 0 || got.Address != "direct" || got.User != "fallback" || got.Port != 22 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestResolveRefusals(t *testing.T) {
	d := configured(t, "Host a\n ProxyJump b\nHost b\n ProxyJump a\nHost p\n Port 99999\nHost j\n ProxyJump x:y\n")
	for _, target := range []remote.Target{{}, {Address: "-oProxyCommand=id"}, {Address: "a"}, {Address: "p"}, {Address: "j"}} {
		if got, err := d.Resolve(target); err == nil {
			t.Errorf("%+v gave %+v", target, got)
		}
	}
}

// What the parser does not know is left to ssh.
func TestResolveMatchExec(t *testing.T) {
	if _, err := exec.LookPath("ssh"); err != nil {
		t.Skip(err)
	}
	d := configured(t, "Match exec \"true\"\n  User by-exec\nHost gpu1\n  Port 2200\n")
	got, err := d.Resolve(remote.Target{Address: "gpu1"})
	if err != nil || got.User != "by-exec" || got.Port != 2200 || got.Address != "gpu1" {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestParseJump(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "none": "", "host": "@host:0", "u@host:22": "u@host:22", "a, b@c:1": "@a:0 b@c:1",
		"[::1]:22": "@::1:22", "::1": "@::1:0", "ssh://u@h:9": "u@h:9", "u@corp@h": "u@corp@h:0",
	} {
		got, err := remote.ParseJump(in)
		var s []string
		for _, j := range got {
			s = append(s, fmt.Sprintf("%s@%s:%d", j.User, j.Address, j.Port))
		}
		if err != nil || strings.Join(s, " ") != want {
			t.Errorf("%q: %q, %v; want %q", in, s, err, want)
		}
	}
	for _, bad := range []string{"host:", "host:x", "host:0", "host:70000", "a,,b", "@", "-oX"} {
		if got, err := remote.ParseJump(bad); err == nil {
			t.Errorf("%q gave %+v", bad, got)
		}
	}
}

// encrypt writes an encrypted copy of a key, named "locked", with its public half.
func encrypt(t *testing.T, file string) string {
	t.Helper()
	priv := readKey(t, file)
	block, err := ssh.MarshalPrivateKeyWithPassphrase(priv, "", []byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	locked := filepath.Join(t.TempDir(), "locked")
	if err := os.WriteFile(locked, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	return locked
}

func readKey(t *testing.T, file string) any {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	priv, err := ssh.ParseRawPrivateKey(b)
	if err != nil {
		t.Fatal(err)
	}
	return priv
}

// serveAgent runs an agent with these keys.
func serveAgent(t *testing.T, keys ...any) string {
	t.Helper()
	ring := agent.NewKeyring()
	for _, k := range keys {
		if err := ring.Add(agent.AddedKey{PrivateKey: k}); err != nil {
			t.Fatal(err)
		}
	}
	socket := filepath.Join(t.TempDir(), "agent")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				agent.ServeAgent(ring, c)
			}()
		}
	}()
	return socket
}

func otherKeys(t *testing.T, n int) []any {
	t.Helper()
	var keys []any
	for range n {
		k, err := newEd25519()
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, k)
	}
	return keys
}

func TestAgent(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	s := sshtest.Start(t, sshtest.Options{})
	right := readKey(t, s.IdentityFile)
	target := s.Target()
	target.IdentityFiles = nil
	d := remote.NewSSH(remote.Options{ConfigFiles: []string{}, AgentSocket: serveAgent(t, right)})
	dial(t, d, target)

	// The agent unlocks an encrypted file; and a named key goes before the
	// others, of which a server takes six at most.
	target.IdentityFiles = []string{encrypt(t, s.IdentityFile)}
	full := serveAgent(t, append(otherKeys(t, 9), right)...)
	d = remote.NewSSH(remote.Options{ConfigFiles: []string{}, AgentSocket: full})
	dial(t, d, target)
	if s.Refused() != 0 {
		t.Errorf("%d keys were refused before the named one", s.Refused())
	}

	target.IdentityFiles = nil
	_, err := d.Dial(t.Context(), target)
	wantError(t, err, remote.ErrAuth, "too many keys|tried the agent's", "identity_file")

	d = remote.NewSSH(remote.Options{ConfigFiles: []string{}, AgentSocket: filepath.Join(t.TempDir(), "gone")})
	_, err = d.Dial(t.Context(), target)
	wantError(t, err, remote.ErrAuth, "no agent answers", "")
}

func TestDefaultIdentity(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	s := sshtest.Start(t, sshtest.Options{})
	if err := os.Mkdir(filepath.Join(home, ".ssh"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(s.IdentityFile, filepath.Join(home, ".ssh", "id_ed25519")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(s.KnownHosts, filepath.Join(home, ".ssh", "known_hosts")); err != nil {
		t.Fatal(err)
	}
	cfg := fmt.Sprintf("Host gpu1\n HostName %s\n Port %d\n", s.Address, s.Port)
	if err := os.WriteFile(filepath.Join(home, ".ssh", "config"), []byte(cfg), 0o600); err != nil {
		t.Fatal(err)
	}
	dial(t, remote.NewSSH(remote.Options{AgentSocket: "none"}), remote.Target{Name: "gpu1"})
}

// A certificate authority signs the node's key and the user's.
func TestUserCertificate(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{})
	key, err := ssh.NewSignerFromKey(readKey(t, s.IdentityFile))
	if err != nil {
		t.Fatal(err)
	}
	cert := &ssh.Certificate{Key: key.PublicKey(), CertType: ssh.UserCert, ValidPrincipals: []string{"train"}, ValidBefore: ssh.CertTimeInfinity}
	if err := cert.SignCert(rand.Reader, key); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.IdentityFile+"-cert.pub", ssh.MarshalAuthorizedKey(cert), 0o600); err != nil {
		t.Fatal(err)
	}
	dial(t, quick(), s.Target()) // the server knows the bare key only
	if s.Refused() != 1 {
		t.Errorf("%d keys refused: the certificate was not tried first", s.Refused())
	}
}

func newEd25519() (ed25519.PrivateKey, error) {
	_, k, err := ed25519.GenerateKey(rand.Reader)
	return k, err
}
