//go:build linux

package nodes

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	"os"
	"strings"

	"golang.org/x/crypto/ssh"
)

// ensureKey makes an Ed25519 key in file and file.pub unless it exists.
func ensureKey(file string) error {
	if _, err := os.Stat(file + ".pub"); err == nil {
		return nil
	}
	return newKey(file)
}

func newKey(file string) error {
	_, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	block, err := ssh.MarshalPrivateKey(priv, "dsbuild test node")
	if err != nil {
		return err
	}
	signer, err := ssh.NewSignerFromKey(priv)
	if err != nil {
		return err
	}
	os.Remove(file) // the old file may be read-only for this user too
	if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
		return err
	}
	return os.WriteFile(file+".pub", []byte(authorizedKey(signer.PublicKey())+"\n"), 0o644)
}

// HostKey returns the public half of the node's host key.
func (n *Node) HostKey() (ssh.PublicKey, error) {
	file := n.hostKeyFile() + ".pub"
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	key, _, _, _, err := ssh.ParseAuthorizedKey(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return key, nil
}

func authorizedKey(key ssh.PublicKey) string {
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))
}
