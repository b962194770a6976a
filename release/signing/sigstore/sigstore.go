// Package sigstore verifies bundles of sigstore: signatures by a short-lived certificate, which a
// certificate authority (Fulcio) gave to an identity, and which a transparency log (Rekor) has
// recorded. It needs no network: a bundle has everything but the trusted root, which is a file.
package sigstore

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"github.com/sigstore/sigstore-go/pkg/bundle"
	"github.com/sigstore/sigstore-go/pkg/fulcio/certificate"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/verify"
)

// version is the version of bundles that dsbuild reads and writes.
const version = "v0.3"

// payloadType is the type of the payload of an envelope around a statement.
const payloadType = "application/vnd.in-toto+json"

// Identity names a signer: the issuer of its token, and its subject there.
type Identity struct{ Issuer, Subject string }

// String is the identity for messages.
func (i Identity) String() string { return fmt.Sprintf("%q of %q", i.Subject, i.Issuer) }

// TrustedRoot holds the certificate authorities and the logs that a team trusts.
type TrustedRoot struct{ verifier *verify.Verifier }

// maxTrustedRoot bounds the file of a trusted root, in bytes.
const maxTrustedRoot = 128 << 10

// ReadTrustedRoot reads the trusted root in a file.
func ReadTrustedRoot(path string) (*TrustedRoot, error) {
	text, err := ReadFile(path, maxTrustedRoot)
	if err != nil {
		return nil, fmt.Errorf("cannot read the trusted root: %w", err)
	}
	r, err := ParseTrustedRoot(text)
	if err != nil {
		return nil, fmt.Errorf("the trusted root %s cannot be used: %w", path, err)
	}
	return r, nil
}

// ReadFile reads a regular file of a limited size, also through a link.
func ReadFile(path string, most int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > most {
		return nil, fmt.Errorf("%s is not a file of at most %d KiB", path, most>>10)
	}
	return os.ReadFile(path)
}

// ParseTrustedRoot reads a trusted root in sigstore's own format (trusted_root.json).
func ParseTrustedRoot(text []byte) (*TrustedRoot, error) {
	material, err := root.NewTrustedRootFromJSON(text)
	switch {
	case err != nil:
		return nil, err
	case len(material.FulcioCertificateAuthorities()) == 0:
		return nil, errors.New("it has no certificate authority")
	case len(material.RekorLogs()) == 0:
		return nil, errors.New("it has no transparency log")
	}
	// A certificate is valid for minutes: only the log, or a timestamp, says when it signed.
	options := []verify.VerifierOption{verify.WithTransparencyLog(1), verify.WithObserverTimestamps(1)}
	if len(material.CTLogs()) > 0 {
		options = append(options, verify.WithSignedCertificateTimestamps(1))
	}
	verifier, err := verify.NewVerifier(material, options...)
	if err != nil {
		return nil, err
	}
	return &TrustedRoot{verifier}, nil
}

// Verify proves that a bundle is a signature of a message, and returns its signer. The bundle holds
// either a signature of the message itself, or an envelope (DSSE) around the very same bytes.
func (r *TrustedRoot) Verify(text, message []byte) (Identity, error) {
	b, err := parse(text)
	if err != nil {
		return Identity{}, err
	}
	artifact := verify.WithArtifact(bytes.NewReader(message))
	if envelope := b.GetDsseEnvelope(); envelope != nil {
		if envelope.GetPayloadType() != payloadType || !bytes.Equal(envelope.GetPayload(), message) {
			return Identity{}, errors.New("it is not of this statement")
		}
		artifact = verify.WithoutArtifactUnsafe() // the envelope's signature is verified, and its payload is the message
	}
	// The caller compares the identity with its policy.
	result, err := r.verifier.Verify(b, verify.NewPolicy(artifact, verify.WithoutIdentitiesUnsafe()))
	if err != nil {
		return Identity{}, err
	}
	if result.Signature == nil || result.Signature.Certificate == nil {
		return Identity{}, errors.New("it has no certificate")
	}
	return identityOf(*result.Signature.Certificate)
}

func identityOf(c certificate.Summary) (Identity, error) {
	if c.Issuer == "" || c.SubjectAlternativeName == "" {
		return Identity{}, errors.New("its certificate names no identity")
	}
	return Identity{c.Issuer, c.SubjectAlternativeName}, nil
}

// parse reads a bundle.
func parse(text []byte) (*bundle.Bundle, error) {
	b := &bundle.Bundle{}
	if err := b.UnmarshalJSON(text); err != nil {
		return nil, fmt.Errorf("not a bundle of sigstore: %w", err)
	}
	if v, err := b.Version(); err != nil || v != version {
		return nil, fmt.Errorf("a bundle of another version than %s", version)
	}
	return b, nil
}

// ClaimedIdentity returns the identity that a bundle's certificate names. Nothing of it is verified.
func ClaimedIdentity(text []byte) (Identity, error) {
	b, err := parse(text)
	if err != nil {
		return Identity{}, err
	}
	content, err := b.VerificationContent()
	if err != nil {
		return Identity{}, err
	}
	leaf := content.Certificate()
	if leaf == nil {
		return Identity{}, errors.New("it has no certificate")
	}
	summary, err := certificate.SummarizeCertificate(leaf)
	if err != nil {
		return Identity{}, err
	}
	return identityOf(summary)
}
