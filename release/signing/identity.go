package signing

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/release/signing/sigstore"
)

// Identity names the signers of bundles of sigstore that a policy trusts.
type Identity struct {
	Issuer  string // of the tokens
	Subject string // a pattern in which * stands for any text

	root *sigstore.TrustedRoot
}

// isBundle reports whether the text of a signature is a bundle of sigstore; an SSH signature is
// armored.
func isBundle(text string) bool { return strings.HasPrefix(strings.TrimLeft(text, " \t\r\n"), "{") }

// identityKey tells one identity from others.
func identityKey(i sigstore.Identity) []byte { return []byte(i.Issuer + "\x00" + i.Subject) }

// identityOf returns the first signer of the policy whose identity made a bundle, and the identity.
func (p *Policy) identityOf(statement, text string, now time.Time) (name string, key []byte, err error) {
	known := false // whether a trusted root accepted the bundle: then err says more than a failed proof
	for i := range p.Signers {
		s := &p.Signers[i]
		if s.Identity == nil {
			continue
		}
		found, failed := s.Identity.root.Verify([]byte(text), []byte(statement))
		if failed != nil {
			if !known {
				err = fmt.Errorf("the bundle is not valid: %.300s", strings.Join(strings.Fields(failed.Error()), " "))
			}
			continue
		}
		known = true
		if found.Issuer != s.Identity.Issuer || !matches(s.Identity.Subject, found.Subject) {
			err = fmt.Errorf("the policy does not trust the identity %.300s", found)
			continue
		}
		if why := s.validAt(now); why != "" {
			err = fmt.Errorf("the identity of %s is %s", s.Name, why)
			continue
		}
		return s.Name, identityKey(found), nil
	}
	if err == nil {
		err = errors.New("the policy trusts no identity of sigstore")
	}
	return "", nil, err
}
