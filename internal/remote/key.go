package remote

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// Key is a user's key that signs files. It is found and unlocked like a login key, through the agent
// if the agent holds it, which also supports security keys (FIDO).
type Key struct {
	signer ssh.Signer
	keys   *keySet
}

// OpenKey opens the key in file, which is a private key or the public half of a key in the agent.
// If the certificate FILE-cert.pub exists, the key signs with it. OpenKey prompts for a passphrase once.
func (a *Answers) OpenKey(ctx context.Context, file string) (*Key, error) {
	k := &keySet{}
	if a.prompter != nil {
		k.unlock = func(file string, text []byte) (ssh.Signer, error) {
			_, s, err := a.unlock(ctx, file, text)
			return s, err
		}
	}
	held := k.openAgent(cmp.Or(os.Getenv("SSH_AUTH_SOCK"), defaultAgent))
	stem := strings.TrimSuffix(strings.TrimSuffix(file, ".pub"), "-cert")
	if exists(stem + "-cert.pub") {
		k.loadCerts([]string{stem + "-cert.pub"})
	}
	if stem != file && !exists(stem) {
		k.addFile(file, held)
	} else {
		k.addFile(stem, held)
	}
	if len(k.signers) == 0 {
		k.close()
		advice := "specify a private key, or the .pub file of a key in the SSH agent (ssh-add -l)"
		if securityKey(file) {
			advice = "add the security key to the SSH agent: ssh-add " + Quote(stem)
		} else if len(k.locked) > 0 {
			advice = "add the key to the SSH agent: ssh-add " + Quote(stem)
		}
		return nil, fault.WithHint(fmt.Errorf("no usable signing key%s", k.details()), "%s", advice)
	}
	return &Key{k.signers[0], k}, nil
}

// Close ends the connection to the agent.
func (k *Key) Close() { k.keys.close() }

// Label names the key for a message.
func (k *Key) Label() string { return k.keys.labels[0] }

// Sign returns the armored signature of a message in a namespace, in the format of ssh-keygen -Y.
func (k *Key) Sign(message []byte, namespace string) ([]byte, error) {
	s, err := sshsig.Sign(bytes.NewReader(message), sha2Signer{k.signer}, sshsig.HashSHA512, namespace)
	if err != nil {
		return nil, err
	}
	return sshsig.Armor(s), nil
}

// sha2Signer never signs with SHA-1. That is an RSA key's default, which sshsig overrides only for
// keys without a certificate.
type sha2Signer struct{ ssh.Signer }

// Sign implements ssh.Signer.
func (s sha2Signer) Sign(rand io.Reader, data []byte) (*ssh.Signature, error) {
	as, able := s.Signer.(ssh.AlgorithmSigner)
	if kind := s.PublicKey().Type(); able && (kind == ssh.KeyAlgoRSA || kind == ssh.CertAlgoRSAv01) {
		return as.SignWithAlgorithm(rand, data, ssh.KeyAlgoRSASHA512)
	}
	return s.Signer.Sign(rand, data)
}

// SignWithAlgorithm implements ssh.AlgorithmSigner.
func (s sha2Signer) SignWithAlgorithm(rand io.Reader, data []byte, _ string) (*ssh.Signature, error) {
	return s.Sign(rand, data)
}
