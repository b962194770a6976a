package signing

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"deps.dev/util/semver"
	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/wheel"
)

// clockSlack is how far the clocks of a builder and of this machine may differ.
const clockSlack = 5 * time.Minute

// refused returns the error of a wheel, or of a node's previous version, that the policy rejects.
func refused(try, format string, args ...any) error {
	return fault.New(fault.Wheel, try, "rejected by policy: "+format, args...)
}

// Hints for rejected wheels.
const (
	signHint  = "sign the wheel with a key of the policy: dsbuild sign --key KEY WHEEL"
	copyHint  = "copy WHEEL.provenance.json and its signatures with the wheel, or rebuild the wheel with --sign KEY"
	buildHint = "build a wheel that satisfies the policy, with --sign KEY"
)

// Check checks a wheel against the policy at the time now. sum is the wheel's SHA-256. Check returns
// the names of the builders who signed.
func (p *Policy) Check(s Signed, sum string, now time.Time) ([]string, error) {
	names, _, err := p.check(s, sum, now)
	return names, err
}

// check is Check that also returns the attestation's contents.
func (p *Policy) check(s Signed, sum string, now time.Time) ([]string, wheel.ProvenanceFacts, error) {
	facts, err := readFacts(s.Statement, s.Name, sum)
	if err != nil {
		return nil, facts, refused(copyHint, "%v", err)
	}
	reasons, try := p.checkFacts(facts, now), signHint
	if len(reasons) > 0 {
		try = buildHint // no signature helps
	}
	var names, rejected []string // the different builders whose signatures count, and why others do not
	keys := map[string]bool{}
	for i, armored := range s.Signatures {
		name, key, err := p.builderOf(s.Statement, armored, now)
		switch {
		case err != nil:
			rejected = append(rejected, fmt.Sprintf("signature %d: %v", i+1, err))
		case slices.Contains(names, name) || keys[string(key)]:
			rejected = append(rejected, fmt.Sprintf("signature %d: duplicate of %s", i+1, name))
		default:
			names, keys[string(key)] = append(names, name), true
		}
	}
	if len(names) < max(p.Builders, 1) {
		reason := fmt.Sprintf("%d of %d required signatures", len(names), max(p.Builders, 1))
		if len(rejected) > 0 {
			reason += " (" + strings.Join(rejected, "; ") + ")"
		}
		reasons = append(reasons, reason)
	}
	if len(reasons) > 0 {
		return nil, facts, refused(try, "%s", strings.Join(reasons, "; "))
	}
	return names, facts, nil
}

// Accept checks the wheel file, whose SHA-256 is sum, and its attestation and signatures against the policy.
// It returns what a node keeps of an accepted wheel. A nil policy accepts every wheel.
func (p *Policy) Accept(file, sum string, now time.Time) (Signed, error) {
	signed, err := ReadSigned(file)
	if err == nil && p != nil {
		_, err = p.Check(signed, sum, now)
	}
	if err != nil {
		return signed, err
	}
	record, err := wheel.ReadRecord(file)
	signed.Record = string(record)
	return signed, err
}

// readFacts reads an attestation and compares it with the wheel.
func readFacts(text, name, sum string) (wheel.ProvenanceFacts, error) {
	if text == "" {
		return wheel.ProvenanceFacts{}, errors.New("wheel has no provenance attestation")
	}
	facts, err := wheel.ReadProvenance([]byte(text))
	switch {
	case err != nil:
		return facts, fmt.Errorf("cannot read the provenance attestation: %w", err)
	case facts.Name != name:
		return facts, errors.New("provenance attestation is for another file")
	case facts.SHA256 != sum:
		return facts, fmt.Errorf("provenance attestation is for sha256 %s, but this file has %s", facts.SHA256, sum)
	}
	return facts, nil
}

// checkFacts returns why the policy rejects an attestation's contents, or nil.
func (p *Policy) checkFacts(f wheel.ProvenanceFacts, now time.Time) (reasons []string) {
	refuse := func(format string, args ...any) { reasons = append(reasons, fmt.Sprintf(format, args...)) }
	_, noVersion := semver.PyPI.Parse(f.Version)
	if p.Minimum != "" && (noVersion != nil || semver.PyPI.Compare(f.Version, p.Minimum) < 0) {
		refuse("version %s is older than %s", f.Version, p.Minimum)
	}
	trusted := func(pattern string) bool { return matches(pattern, f.Source) }
	if len(p.Sources) > 0 && !slices.ContainsFunc(p.Sources, trusted) {
		refuse("built from %s, which matches none of the sources", f.Source)
	}
	if age := now.Sub(f.Finished); p.MaxAge > 0 && age > p.MaxAge {
		refuse("built on %s, which exceeds max_age", f.Finished.UTC().Format(time.RFC3339))
	}
	if f.Finished.Sub(now) > clockSlack {
		refuse("built on %s, which is in the future by this clock", f.Finished.UTC().Format(time.RFC3339))
	}
	return reasons
}

// matches reports whether a text matches a pattern in which * stands for any text.
func matches(pattern, text string) bool {
	parts := strings.Split(pattern, "*")
	for i := range parts {
		parts[i] = regexp.QuoteMeta(parts[i])
	}
	ok, err := regexp.MatchString(`(?s)\A`+strings.Join(parts, ".*")+`\z`, text)
	return err == nil && ok
}

// builderOf returns the builder who made a signature, and the key itself without a certificate.
func (p *Policy) builderOf(statement, armored string, now time.Time) (name string, key []byte, err error) {
	sig, err := sshsig.Unarmor([]byte(armored))
	if err != nil {
		return "", nil, errors.New("not an SSH signature")
	}
	key = plainKey(sig.PublicKey)
	name, err = p.trusted(sig, now)
	if err == nil {
		err = verifySignature(statement, sig)
	}
	return name, key, err
}

// verifySignature proves that the key of a signature signed the statement.
func verifySignature(statement string, sig *sshsig.Signature) error {
	key, err := ssh.ParsePublicKey(plainKey(sig.PublicKey))
	if err != nil {
		return err
	}
	plain := *sig
	plain.PublicKey = key
	if key.Type() == ssh.KeyAlgoRSA &&
		sig.Signature.Format != ssh.KeyAlgoRSASHA256 && sig.Signature.Format != ssh.KeyAlgoRSASHA512 {
		return errors.New("uses SHA-1")
	}
	if err := sshsig.Verify(strings.NewReader(statement), &plain, key, sig.HashAlgorithm, sig.Namespace); err != nil {
		return errors.New("not a signature of this attestation")
	}
	return nil
}

// plainKey returns the key of a signature without its certificate.
func plainKey(key ssh.PublicKey) []byte {
	if cert, ok := key.(*ssh.Certificate); ok {
		key = cert.Key
	}
	return key.Marshal()
}

// trusted returns the builder to whom the key of a signature belongs.
func (p *Policy) trusted(sig *sshsig.Signature, now time.Time) (string, error) {
	cert, certified := sig.PublicKey.(*ssh.Certificate)
	authority := plainKey(sig.PublicKey)
	if certified {
		authority = cert.SignatureKey.Marshal()
	}
	for _, blob := range [][]byte{plainKey(sig.PublicKey), authority} {
		if f := fingerprint(blob); slices.Contains(p.Revoked, f) {
			return "", fmt.Errorf("key %s is revoked", f)
		}
	}
	for i := range p.Signers {
		s := &p.Signers[i]
		if s.CA != certified || !bytes.Equal(s.blob, authority) {
			continue
		}
		if why := s.validAt(now); why != "" {
			return "", fmt.Errorf("key of %s is %s", s.Name, why)
		}
		if sig.Namespace != Namespace {
			return "", fmt.Errorf("key of %s may not sign in namespace %q", s.Name, sig.Namespace)
		}
		if certified {
			return s.principalOf(cert, now)
		}
		return s.Name, nil
	}
	return "", fmt.Errorf("key %s is not trusted by the policy", fingerprint(authority))
}

// principalOf returns the builder in a certificate.
func (s *Signer) principalOf(cert *ssh.Certificate, now time.Time) (string, error) {
	for _, principal := range s.Principals {
		if !slices.Contains(cert.ValidPrincipals, principal) {
			continue
		}
		checker := ssh.CertChecker{Clock: func() time.Time { return now }}
		if cert.CertType != ssh.UserCert {
			return "", errors.New("is a host certificate")
		}
		if err := checker.CheckCert(principal, cert); err != nil {
			return "", fmt.Errorf("invalid certificate: %w", err)
		}
		if slices.Contains(ssh.InsecureAlgorithms().PublicKeyAuths, cert.Signature.Format) {
			return "", fmt.Errorf("the certificate is signed with %s (SHA-1), which is insecure", cert.Signature.Format)
		}
		return s.Name + "/" + principal, nil
	}
	return "", fmt.Errorf("certificate has none of the principals of %s", s.Name)
}
