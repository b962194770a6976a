package remote_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
)

// fidoAgent is an agent with one security key: the touch comes at once.
type fidoAgent struct {
	agent.Agent
	private ed25519.PrivateKey
	public  ssh.PublicKey
}

func newFIDOAgent(t *testing.T) *fidoAgent {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	blob := ssh.Marshal(struct{ Kind, Key, Application string }{"sk-ssh-ed25519@openssh.com", string(public), "ssh:"})
	key, err := ssh.ParsePublicKey(blob)
	if err != nil {
		t.Fatal(err)
	}
	return &fidoAgent{Agent: agent.NewKeyring(), private: private, public: key}
}

func (k *fidoAgent) List() ([]*agent.Key, error) {
	return []*agent.Key{{Format: k.public.Type(), Blob: k.public.Marshal(), Comment: "token"}}, nil
}

func (k *fidoAgent) Sign(key ssh.PublicKey, data []byte) (*ssh.Signature, error) {
	if !bytes.Equal(key.Marshal(), k.public.Marshal()) {
		return nil, errors.New("no such key")
	}
	application, message := sha256.Sum256([]byte("ssh:")), sha256.Sum256(data)
	rest := binary.BigEndian.AppendUint32([]byte{1}, 7) // touched, for the seventh time
	whole := append(append(append([]byte{}, application[:]...), rest...), message[:]...)
	return &ssh.Signature{Format: k.public.Type(), Blob: ed25519.Sign(k.private, whole), Rest: rest}, nil
}

// serveFIDO lets the test's agent answer at SSH_AUTH_SOCK.
func serveFIDO(t *testing.T, a agent.Agent) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "agent")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go agent.ServeAgent(a, c) //nolint:errcheck // it ends with the connection
		}
	}()
	t.Setenv("SSH_AUTH_SOCK", socket)
}

type typist struct{ answers []string }

func (p *typist) Ask(context.Context, string, bool) (string, error) {
	if len(p.answers) == 0 {
		return "", errors.New("nobody is there")
	}
	said := p.answers[0]
	p.answers = p.answers[1:]
	return said, nil
}

// mustVerify has stock ssh-keygen verify what a key signs; options are those of allowed_signers.
func mustVerify(t *testing.T, k *remote.Key, options, public string) {
	t.Helper()
	signature, err := k.Sign([]byte("message"), "dsbuild")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	allowed, file := filepath.Join(dir, "allowed"), filepath.Join(dir, "signature")
	for path, text := range map[string]string{allowed: "me " + options + " " + strings.TrimSpace(public) + "\n", file: string(signature)} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("ssh-keygen", "-Y", "verify", "-f", allowed, "-I", "me", "-n", "dsbuild", "-s", file)
	cmd.Stdin = strings.NewReader("message")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func open(t *testing.T, p remote.Prompter, file string) *remote.Key {
	t.Helper()
	k, err := remote.NewAnswers(p).OpenKey(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k
}

func TestKeysOfFiles(t *testing.T) {
	t.Setenv("SSH_AUTH_SOCK", filepath.Join(t.TempDir(), "nobody"))
	dir := t.TempDir()
	size := map[string][]string{"rsa": {"-b", "2048"}} // a larger one takes long
	for _, kind := range []string{"ed25519", "ecdsa", "rsa"} {
		file := filepath.Join(dir, kind)
		keygen(t, append([]string{"-q", "-t", kind, "-N", "", "-f", file}, size[kind]...)...)
		mustVerify(t, open(t, nil, file), `namespaces="dsbuild"`, read(t, file+".pub"))
	}
	locked := filepath.Join(dir, "locked")
	keygen(t, "-q", "-t", "ed25519", "-N", "secret", "-f", locked)
	mustVerify(t, open(t, &typist{[]string{"wrong", "secret"}}, locked), "", read(t, locked+".pub"))
	if _, err := remote.NewAnswers(nil).OpenKey(t.Context(), locked); err == nil || !strings.Contains(fault.Hint(err), "ssh-add") {
		t.Errorf("%v, hint %s", err, fault.Hint(err))
	}
	// With its certificate, an RSA key signs with SHA-2 as well.
	keygen(t, "-q", "-s", filepath.Join(dir, "ed25519"), "-I", "x", "-n", "me", "-V", "+1h", filepath.Join(dir, "rsa.pub"))
	for _, name := range []string{"rsa", "rsa.pub", "rsa-cert.pub"} {
		mustVerify(t, open(t, nil, filepath.Join(dir, name)), "cert-authority", read(t, filepath.Join(dir, "ed25519.pub")))
	}
}

func TestKeysOfTheAgent(t *testing.T) {
	k := newFIDOAgent(t)
	serveFIDO(t, k)
	file := filepath.Join(t.TempDir(), "id_ed25519_sk")
	public := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(k.public)))
	if err := os.WriteFile(file+".pub", []byte(public+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	mustVerify(t, open(t, nil, file+".pub"), "", public)
	mustVerify(t, open(t, nil, file), "", public)
	other := newFIDOAgent(t)
	if err := os.WriteFile(file+".pub", ssh.MarshalAuthorizedKey(other.public), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := remote.NewAnswers(nil).OpenKey(t.Context(), file); err == nil || !strings.Contains(fault.Hint(err), "add the security key to the SSH agent") {
		t.Errorf("%v, hint %s", err, fault.Hint(err))
	}
}

// A message about a key file that cannot be read has none of its contents.
func TestMessagesHoldNoKey(t *testing.T) {
	t.Setenv("SSH_AUTH_SOCK", filepath.Join(t.TempDir(), "nobody"))
	dir := t.TempDir()
	whole := filepath.Join(dir, "whole")
	keygen(t, "-q", "-t", "ed25519", "-N", "", "-f", whole)
	lines := strings.Split(strings.TrimSpace(read(t, whole)), "\n")
	for name, text := range map[string]string{
		"cut":     strings.Join(lines[:len(lines)-2], "\n"),
		"no end":  strings.Join(lines[:len(lines)-1], "\n"),
		"no base": strings.Replace(read(t, whole), lines[2], lines[2]+"?", 1),
	} {
		file := write(t, "key", text)
		_, err := remote.NewAnswers(nil).OpenKey(t.Context(), file)
		if err == nil {
			t.Errorf("%s: it is opened", name)
			continue
		}
		for _, line := range lines[1 : len(lines)-1] {
			if strings.Contains(err.Error()+fault.Hint(err), line[:12]) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}
