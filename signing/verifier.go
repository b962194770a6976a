package signing

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// VerifierCommand is the argument with which a node runs dsbuild as the verifier of a bundle.
const VerifierCommand = "verify-bundle"

// NeedsVerifier is the advice of a node that needs the verifier to judge a wheel, and has none.
const NeedsVerifier = "verifier"

// maxQuestion bounds what a node asks: a statement, a bundle, and the trusted roots of all signers.
const maxQuestion = maxStatement*2 + maxSignature*2 + maxSigners*maxTrustedRoot

// question is a node's question to its verifier: which of these signers made a bundle for a statement?
type question struct {
	Statement string       `json:"statement"`
	Bundle    string       `json:"bundle"`
	Signers   []nodeSigner `json:"signers"`
}

// verdict is the verifier's answer.
type verdict struct {
	Name     string `json:"name"`     // the signer's
	Identity string `json:"identity"` // tells one identity from others
	Error    string `json:"error"`    // why no signer made the bundle; "" if one did
}

// AnswerQuestion is the verifier that nodes run: their ssh-keygen cannot verify bundles of sigstore.
// It reads a question of check.py, judges by the node's clock, and writes the verdict.
func AnswerQuestion(in io.Reader, out io.Writer, now time.Time) error {
	var q question
	decoder := json.NewDecoder(io.LimitReader(in, maxQuestion))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&q); err != nil {
		return fmt.Errorf("the question cannot be read: %w", err)
	}
	p, err := policyOf(q.Signers)
	if err != nil {
		return err
	}
	var v verdict
	name, key, err := p.identityOf(q.Statement, q.Bundle, now)
	if err != nil {
		v.Error = err.Error()
	} else {
		v.Name, v.Identity = name, string(key)
	}
	return json.NewEncoder(out).Encode(v)
}

// policyOf returns a policy of signers in the form for nodes.
func policyOf(all []nodeSigner) (*Policy, error) {
	p := &Policy{}
	for _, n := range all {
		s := Signer{Name: n.Name, Identity: n.Identity, From: moment(n.From), Until: moment(n.Until)}
		if s.Identity == nil {
			return nil, errors.New("a signer has no identity of sigstore")
		}
		if err := s.Identity.parse(); err != nil {
			return nil, fmt.Errorf("the trusted root of %s: %w", s.Name, err)
		}
		p.Signers = append(p.Signers, s)
	}
	return p, nil
}

// moment is a time of the form for nodes.
func moment(seconds int64) time.Time {
	if seconds == 0 {
		return time.Time{}
	}
	return time.Unix(seconds, 0)
}
