// Package signing signs wheels and decides which wheels nodes accept. A wheel's provenance attestation is
// signed with an SSH key (the format of ssh-keygen -Y). A policy lists the trusted signers and what an
// attestation must contain. The control node checks a wheel before it sends it, and the files reported by
// a node before a rollback.
package signing

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
)

// Namespace is the namespace of dsbuild's signatures. A key that
// also signs other things cannot be tricked into signing a wheel.
const Namespace = "dsbuild"

// Policy decides which wheels may be installed on nodes.
type Policy struct {
	Signers    []Signer
	Revoked    []string      // fingerprints of revoked keys
	Builders   int           // number of different signers that a wheel needs
	Minimum    string        // oldest accepted version of DeepSpeed, if any
	Sources    []string      // patterns for the source of a build; empty accepts any source
	MaxAge     time.Duration // of a build, or 0 for any age
	Companions bool          // accept the unsigned wheels that --deps installs with DeepSpeed
}

// Signer is a trusted key, or a certificate authority that vouches for keys.
type Signer struct {
	Name       string
	Key        string    // in the form of authorized_keys, without a comment
	CA         bool      // Key signs certificates; the certificates' keys sign wheels
	Principals []string  // of a CA: certificates for these names are accepted
	From       time.Time // zero means always
	Until      time.Time // zero means forever

	blob []byte
}

// parseKey stores a key in its plain form.
func (s *Signer) parseKey(text string) error {
	key, _, options, rest, err := ssh.ParseAuthorizedKey([]byte(text))
	switch {
	case err != nil:
		return errors.New("is not an SSH public key (ssh-ed25519 AAAA…)")
	case len(options) > 0 || len(bytes.TrimSpace(rest)) > 0:
		return errors.New("must be one public key without options")
	case strings.Contains(key.Type(), "-cert-v01@"):
		return errors.New("is a certificate: use the key of its CA, with ca")
	}
	s.blob, s.Key = key.Marshal(), strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))
	return nil
}

// fingerprint is the fingerprint of the signer's key, as ssh-keygen -l prints it.
func (s *Signer) fingerprint() string { return fingerprint(s.blob) }

func fingerprint(blob []byte) string {
	key, err := ssh.ParsePublicKey(blob)
	if err != nil {
		return ""
	}
	return ssh.FingerprintSHA256(key)
}

// validAt returns why a signer is not trusted at a time. It returns "" if it is.
func (s *Signer) validAt(now time.Time) string {
	switch {
	case !s.From.IsZero() && now.Before(s.From):
		return "not valid before " + s.From.UTC().Format(time.RFC3339)
	case !s.Until.IsZero() && !now.Before(s.Until):
		return "expired on " + s.Until.UTC().Format(time.RFC3339)
	}
	return ""
}

// Trusts returns an error if the policy has too few valid signers at a time.
func (p *Policy) Trusts(now time.Time) error {
	voices := 0
	var gone []string
	for i := range p.Signers {
		s := &p.Signers[i]
		if why := s.validAt(now); why != "" {
			gone = append(gone, s.Name+" is "+strings.TrimPrefix(why, "is "))
			continue
		}
		switch {
		case slices.Contains(p.Revoked, s.fingerprint()):
		case s.CA:
			voices += len(s.Principals)
		default:
			voices++
		}
	}
	if voices >= max(p.Builders, 1) {
		return nil
	}
	more := ""
	if len(gone) > 0 {
		more = " (" + strings.Join(gone, "; ") + ")"
	}
	if voices == 0 {
		return fmt.Errorf("policy has no valid signers now%s", more)
	}
	return fmt.Errorf("policy requires %d builders, but only %d are valid now%s", p.Builders, voices, more)
}
