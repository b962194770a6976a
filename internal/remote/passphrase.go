package remote

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"golang.org/x/crypto/ssh"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// lockedKey is an encrypted identity file. The user is prompted for its passphrase only when a node
// accepts the key.
type lockedKey struct {
	pub  ssh.PublicKey
	open func() (ssh.Signer, error)
}

// PublicKey implements ssh.Signer.
func (k *lockedKey) PublicKey() ssh.PublicKey { return k.pub }

// Sign implements ssh.Signer.
func (k *lockedKey) Sign(rand io.Reader, data []byte) (*ssh.Signature, error) {
	return k.SignWithAlgorithm(rand, data, "")
}

// SignWithAlgorithm implements ssh.AlgorithmSigner.
func (k *lockedKey) SignWithAlgorithm(rand io.Reader, data []byte, algorithm string) (*ssh.Signature, error) {
	s, err := k.open()
	if err != nil {
		return nil, err
	}
	if as, ok := s.(ssh.AlgorithmSigner); ok && algorithm != "" {
		return as.SignWithAlgorithm(rand, data, algorithm)
	}
	return s.Sign(rand, data)
}

// unlock decrypts the identity file with the contents text. It prompts for the passphrase once in a run and
// keeps the key, because decryption is slow by design.
func (a *Answers) unlock(ctx context.Context, file string, text []byte) (passphrase string, key ssh.Signer, err error) {
	var opened ssh.Signer
	again := ""
	ask := func() (string, error) {
		for n := 0; n < rounds; n++ {
			typed, err := a.ask(ctx, question(file, "", again+"passphrase:"), false)
			if errors.Is(err, errNoAnswer) {
				break
			}
			if err != nil {
				return "", err
			}
			opened, err = ssh.ParsePrivateKeyWithPassphrase(text, []byte(typed))
			if err == nil || !errors.Is(err, x509.IncorrectPasswordError) {
				return typed, err
			}
			again = "wrong passphrase; "
		}
		return "", fault.WithHint(fmt.Errorf("no passphrase entered for %s", file),
			"enter it, or add the key to the SSH agent: ssh-add %s", Quote(file))
	}
	l, err := a.beginTrial(ctx, "passphrase of "+filepath.Clean(file), ask)
	if err != nil {
		return "", nil, err
	}
	if opened != nil {
		l.secret.key = opened
		l.end(nil, nil)
	}
	return l.text, l.secret.key, nil
}
