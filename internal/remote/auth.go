package remote

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/dsbuild/dsbuild/internal/hint"
)

// defaultIdentities are the files ssh tries when none is named.
func defaultIdentities(home string) []string {
	if home == "" {
		return nil
	}
	var files []string
	for _, n := range []string{"id_ed25519", "id_ecdsa", "id_rsa"} {
		if f := filepath.Join(home, ".ssh", n); exists(f) {
			files = append(files, f)
		}
	}
	return files
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// keySet is what one authentication can try. It is opened for one handshake.
type keySet struct {
	signers []ssh.Signer
	labels  []string // one for each signer
	notes   []string // keys that could not be used, and why
	locked  []string // identity files that need a passphrase
	agent   net.Conn
	certs   []*ssh.Certificate // of CertificateFile, each goes before its key
}

// keysFor gathers the keys for t: the identity files that were named, each by
// way of the agent if that holds it, then, unless they are to be the only ones,
// what else the agent holds. Named
// files go first because a node ends the connection after about six keys. An
// empty set is an error before anything is dialled.
func (d *SSH) keysFor(t Target) (*keySet, error) {
	k := &keySet{}
	held := k.openAgent(d.agentFor(t))
	k.loadCerts(t.CertificateFiles)
	others := held
	if t.IdentitiesOnly {
		others = nil
	}
	files := t.IdentityFiles
	named := len(files) > 0
	if !named {
		home, _ := os.UserHomeDir()
		files = defaultIdentities(home)
		k.addAgent(others)
	}
	for _, f := range files {
		k.addFile(f, held)
	}
	if named {
		k.addAgent(others)
	}
	if len(k.signers) > 0 {
		return k, nil
	}
	defer k.close()
	err := fmt.Errorf("%w for %s: there is no key to try%s", ErrAuth, login(t), k.because())
	return nil, hint.With(err, "%s", k.advice())
}

func login(t Target) string { return t.User + "@" + hostPort(t) }

// agentFor is the socket of the agent for t; "" is none.
func (d *SSH) agentFor(t Target) string {
	socket := d.opt.AgentSocket
	if socket == "" {
		socket = t.Agent
	}
	switch socket {
	case "none":
		return ""
	case "":
		return cmp.Or(os.Getenv("SSH_AUTH_SOCK"), defaultAgent)
	}
	return socket
}

func (k *keySet) openAgent(socket string) []ssh.Signer {
	if socket == "" {
		return nil
	}
	c, err := dialAgent(socket, 2*time.Second)
	if err != nil && socket == defaultAgent && errors.Is(err, fs.ErrNotExist) {
		return nil // nobody has named one
	}
	if err != nil {
		k.notes = append(k.notes, fmt.Sprintf("no agent answers at %s", socket))
		return nil
	}
	k.agent = c
	signers, err := agent.NewClient(c).Signers()
	if err != nil {
		k.notes = append(k.notes, fmt.Sprintf("the agent lists no keys: %v", err))
	}
	return signers
}

func (k *keySet) close() {
	if k.agent != nil {
		k.agent.Close()
	}
}

// loadCerts reads the certificates of CertificateFile.
func (k *keySet) loadCerts(files []string) {
	for _, f := range files {
		cert, err := readCert(f)
		if err != nil {
			k.notes = append(k.notes, fmt.Sprintf("%s: %v", f, err))
			continue
		}
		k.certs = append(k.certs, cert)
	}
}

// add adds a key and, before it, the certificates of CertificateFile for it.
func (k *keySet) add(s ssh.Signer, label string) {
	for _, cert := range k.certs {
		if c, err := ssh.NewCertSigner(cert, s); err == nil {
			k.addOne(c, label+" with its certificate "+cert.KeyId)
		}
	}
	k.addOne(s, label)
}

func (k *keySet) addOne(s ssh.Signer, label string) {
	for _, have := range k.signers {
		if samePublic(have.PublicKey(), s.PublicKey()) {
			return
		}
	}
	k.signers = append(k.signers, s)
	k.labels = append(k.labels, label)
}

func (k *keySet) addAgent(held []ssh.Signer) {
	for _, s := range held {
		k.add(s, fmt.Sprintf("the agent's %s %s", s.PublicKey().Type(), ssh.FingerprintSHA256(s.PublicKey())))
	}
}

// addFile adds the key of an identity file and, before it, its certificate.
func (k *keySet) addFile(file string, held []ssh.Signer) {
	b, err := os.ReadFile(file)
	if err != nil {
		if k.byAgent(file, publicOf(file), held) {
			return
		}
		if errors.Is(err, os.ErrNotExist) {
			err = errors.New("does not exist")
		}
		k.notes = append(k.notes, fmt.Sprintf("%s: %v", file, err))
		return
	}
	s, err := ssh.ParsePrivateKey(b)
	if err == nil {
		if cert := certSigner(file, s); cert != nil {
			k.addOne(cert, file+"-cert.pub")
		}
		k.add(s, file)
		return
	}
	var missing *ssh.PassphraseMissingError
	pub := publicOf(file)
	if errors.As(err, &missing) && missing.PublicKey != nil {
		pub = missing.PublicKey
	}
	if k.byAgent(file, pub, held) {
		return
	}
	if missing != nil {
		k.locked = append(k.locked, file)
		k.notes = append(k.notes, file+" is encrypted and no agent holds it")
		return
	}
	k.notes = append(k.notes, fmt.Sprintf("%s is not a private key: %v", file, err))
}

// byAgent adds the key of an identity file if the agent holds it.
func (k *keySet) byAgent(file string, pub ssh.PublicKey, held []ssh.Signer) bool {
	for _, a := range held {
		if pub != nil && samePublic(a.PublicKey(), pub) {
			k.add(a, file+" (by the agent)")
			return true
		}
	}
	return false
}

// publicOf reads FILE.pub, or FILE itself where that is the public half of a
// key that only the agent has.
func publicOf(file string) ssh.PublicKey {
	for _, f := range []string{file, file + ".pub"} {
		if b, err := os.ReadFile(f); err == nil {
			if pub, _, _, _, err := ssh.ParseAuthorizedKey(b); err == nil {
				return pub
			}
		}
	}
	return nil
}

func certSigner(file string, s ssh.Signer) ssh.Signer {
	cert, err := readCert(file + "-cert.pub")
	if err != nil {
		return nil
	}
	c, err := ssh.NewCertSigner(cert, s)
	if err != nil {
		return nil
	}
	return c
}

func readCert(file string) (*ssh.Certificate, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pub, _, _, _, err := ssh.ParseAuthorizedKey(b)
	if err != nil {
		return nil, err
	}
	cert, ok := pub.(*ssh.Certificate)
	if !ok {
		return nil, errors.New("is not a certificate")
	}
	return cert, nil
}

func samePublic(a, b ssh.PublicKey) bool { return bytes.Equal(a.Marshal(), b.Marshal()) }

// refused says which keys the node turned down. It must not be retried:
// sshd bans addresses that fail too often.
func (k *keySet) refused(t Target, text string, offered *[]string) error {
	accepts := ""
	if offered != nil && len(*offered) > 0 {
		accepts = "; the node accepts " + strings.Join(*offered, ", ")
	}
	if strings.Contains(strings.ToLower(text), "too many") {
		err := fmt.Errorf("%w by %s: too many keys: %d were ready%s", ErrAuth, login(t), len(k.signers), k.because())
		return hint.With(err, "name the one key that fits (identity_file: in the inventory, or IdentityFile in ~/.ssh/config): it is tried first")
	}
	if !strings.HasPrefix(text, "ssh: unable") {
		k.notes = append(k.notes, strings.TrimPrefix(text, "ssh: "))
	}
	err := fmt.Errorf("%w by %s: tried %s%s%s", ErrAuth, login(t), strings.Join(k.labels, ", "), k.because(), accepts)
	return hint.With(err, "%s", k.advice())
}

func (k *keySet) because() string {
	if len(k.notes) == 0 {
		return ""
	}
	return " (" + strings.Join(k.notes, "; ") + ")"
}

func (k *keySet) advice() string {
	if len(k.locked) > 0 {
		return fmt.Sprintf("unlock the key for the agent first: eval \"$(ssh-agent)\"; ssh-add %s", k.locked[0])
	}
	return "the public half of one of these keys belongs into ~/.ssh/authorized_keys of that user on the node (ssh-copy-id), or name another key: identity_file: in the inventory"
}
