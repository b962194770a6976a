package remote

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/nodeerr"
)

// defaultIdentities returns the key files that ssh tries if the configuration names none.
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

// keySet holds the keys for one handshake.
type keySet struct {
	signers []ssh.Signer
	labels  []string // one for each signer
	notes   []string // keys that could not be used, each with the reason
	missing bool     // an identity file does not exist
	locked  []string // encrypted identity files, if there is no way to prompt for the passphrase
	agent   net.Conn
	certs   []*ssh.Certificate // from CertificateFile; each goes before its key
	full    error              // this process can open no more files, so some keys may be missing
	allowed algorithms         // of the keys
	barred  bool               // the client configuration allows no key

	// unlock opens an encrypted identity file. It is nil if there is no way to prompt for the passphrase.
	unlock func(file string, text []byte) (ssh.Signer, error)
}

// keysFor collects the keys for t: first the configured identity files, each through the agent if the
// agent holds its key, then the agent's other keys unless IdentitiesOnly is set. The order matters
// because a node ends the connection after about six keys. If there is neither a key nor a way to
// prompt for a password, keysFor returns an error before dsbuild dials.
func (d *SSH) keysFor(ctx context.Context, t Target) (*keySet, error) {
	k := &keySet{allowed: t.allowed, barred: !t.allows(byKey)}
	attended := d.opt.Answers.attended(t)
	if attended {
		k.unlock = func(file string, text []byte) (ssh.Signer, error) {
			_, s, err := d.opt.Answers.unlock(ctx, file, text)
			return s, err
		}
	}
	if !k.barred {
		k.gather(t, k.openAgent(d.agentFor(t)))
	}
	if k.full != nil {
		k.close()
		return nil, filesError(t, k.full)
	}
	if len(k.signers) > 0 || attended && (t.allows(interactively) || t.allows(byPassword)) {
		return k, nil
	}
	defer k.close()
	err := nodeerr.Errorf("%w for %s%s", noKeyError{}, nodeerr.Own(loginName(t)), k.details())
	if k.missing && len(k.locked) == 0 && len(t.IdentityFiles) > 0 {
		return nil, fault.WithHint(err, "%s", fault.Set("identity_file", "an existing private key"))
	}
	return nil, fault.WithHint(err, "%s", k.hint())
}

// gather adds the keys for t. The agent holds held.
func (k *keySet) gather(t Target, held []ssh.Signer) {
	k.loadCerts(t.CertificateFiles)
	others := held
	if t.IdentitiesOnly {
		others = nil
	}
	files := t.IdentityFiles
	if len(files) == 0 {
		home, _ := os.UserHomeDir()
		files = defaultIdentities(home)
		k.addAgent(others)
		others = nil
	}
	for _, f := range files {
		k.addFile(f, held)
	}
	k.addAgent(others)
}

// noKeyError means that there was nothing to log in with. It is an ErrAuth.
type noKeyError struct{}

func (noKeyError) Error() string        { return "no usable SSH key" }
func (noKeyError) Is(target error) bool { return target == ErrAuth } //nolint:errorlint // Is itself

func loginName(t Target) string { return t.User + "@" + hostPort(t) }

// agentFor returns the socket of the agent for t, or "" for none.
func (d *SSH) agentFor(t Target) string {
	switch socket := cmp.Or(d.opt.AgentSocket, t.Agent); socket {
	case "none":
		return ""
	case "":
		return cmp.Or(os.Getenv("SSH_AUTH_SOCK"), defaultAgent)
	default:
		return socket
	}
}

func (k *keySet) openAgent(socket string) []ssh.Signer {
	if socket == "" {
		return nil
	}
	c, err := dialAgent(socket, 2*time.Second)
	if err != nil && socket == defaultAgent && errors.Is(err, fs.ErrNotExist) {
		return nil // no agent at the default socket, and no setting names one
	}
	if err != nil {
		k.notice(err)
		k.notes = append(k.notes, fmt.Sprintf("cannot reach the SSH agent at %s", socket))
		return nil
	}
	k.agent = c
	signers, err := agent.NewClient(c).Signers()
	if err != nil {
		k.notes = append(k.notes, fmt.Sprintf("cannot list the SSH agent's keys: %v", err))
	}
	return signers
}

// notice records an error that is unrelated to a key, such as too many open files.
func (k *keySet) notice(err error) {
	if tooManyFiles(err) {
		k.full = err
	}
}

// tooManyFiles reports whether err means that this process or machine has too many open files.
func tooManyFiles(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// filesError is the error of a connection for which no file descriptor was left. It is transient,
// because other connections free theirs.
func filesError(t Target, err error) error {
	err = nodeerr.Errorf("%w to %s: file limit of the control node reached: %w",
		ErrDial, nodeerr.Own(loginName(t)), err)
	return fault.WithHint(err, "lower --forks, or raise the limit: ulimit -n")
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
			k.notice(err)
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
			k.addOne(c, label+" with certificate "+cert.KeyId)
		}
	}
	k.addOne(s, label)
}

func (k *keySet) addOne(s ssh.Signer, label string) {
	s, why := k.allowed.signer(s)
	if why != "" {
		k.notes = append(k.notes, label+" "+why)
		return
	}
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
		k.add(s, fmt.Sprintf("agent key %s %s", s.PublicKey().Type(), ssh.FingerprintSHA256(s.PublicKey())))
	}
}

// addFile adds the key of an identity file and, before it, its certificate.
func (k *keySet) addFile(file string, held []ssh.Signer) {
	b, err := os.ReadFile(file)
	if err != nil {
		k.notice(err)
		if k.byAgent(file, publicOf(file), held) {
			return
		}
		if errors.Is(err, os.ErrNotExist) {
			k.notes, k.missing = append(k.notes, file+" does not exist"), true
			return
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
		k.addLocked(file, b, pub)
		return
	}
	k.notes = append(k.notes, fmt.Sprintf("%s is not a private key: %v", file, err))
}

// addLocked adds the key of an encrypted identity file. If its public key is unknown, addLocked
// decrypts the file immediately.
func (k *keySet) addLocked(file string, text []byte, pub ssh.PublicKey) {
	if k.unlock == nil {
		k.locked = append(k.locked, file)
		k.notes = append(k.notes, file+" is encrypted and not in the SSH agent, and no terminal can prompt for its passphrase")
		return
	}
	open := func() (ssh.Signer, error) { return k.unlock(file, text) }
	if pub == nil {
		opened, err := open()
		if err != nil {
			k.notes = append(k.notes, err.Error())
			return
		}
		pub = opened.PublicKey()
	}
	s := &lockedKey{pub, open}
	if cert := certSigner(file, s); cert != nil {
		k.addOne(cert, file+"-cert.pub")
	}
	k.add(s, file)
}

// byAgent adds the key of an identity file if the agent holds it.
func (k *keySet) byAgent(file string, pub ssh.PublicKey, held []ssh.Signer) bool {
	for _, a := range held {
		if pub != nil && samePublic(a.PublicKey(), pub) {
			k.add(a, file+" (SSH agent)")
			return true
		}
	}
	return false
}

// publicOf reads a public key from FILE itself or from FILE.pub. FILE may hold the public half of a
// key whose private half only the agent has.
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

// securityKey reports whether an identity file needs a security key (FIDO). Only OpenSSH can use
// one.
func securityKey(file string) bool {
	pub := publicOf(file)
	return pub != nil && strings.HasPrefix(pub.Type(), "sk-")
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
		return nil, errors.New("not a certificate")
	}
	return cert, nil
}

func samePublic(a, b ssh.PublicKey) bool { return bytes.Equal(a.Marshal(), b.Marshal()) }

// details returns the notes in parentheses.
func (k *keySet) details() string {
	if len(k.notes) == 0 {
		return ""
	}
	return " (" + strings.Join(k.notes, "; ") + ")"
}

// hint returns what to do about a login without an accepted key.
func (k *keySet) hint() string {
	switch {
	case k.barred:
		return "allow keys for this host in the client configuration (PubkeyAuthentication, PreferredAuthentications)"
	case len(k.locked) > 0:
		return fmt.Sprintf("add the key to an SSH agent: eval \"$(ssh-agent)\"; ssh-add %s", Quote(k.locked[0]))
	case len(k.labels) == 0:
		return "create a key (ssh-keygen) and add it to the user's authorized_keys on the node (ssh-copy-id), " +
			"or " + fault.Set("identity_file", "a key that the node accepts").String()
	}
	return "add one of these keys to the user's authorized_keys on the node (ssh-copy-id), " +
		"or " + fault.Set("identity_file", "another key").String()
}
