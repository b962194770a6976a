package signing_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/testkit/signingtest"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/release/signing"
	"github.com/dsbuild/dsbuild/wheel"
)

// judgeAll judges cases that must be accepted, and attacks that must be refused.
func judgeAll(t *testing.T, good, bad []signingtest.Case, sum string) {
	t.Helper()
	if len(bad) < 40 {
		t.Errorf("only %d attacks, at least 40 expected", len(bad))
	}
	for _, c := range append(good, bad...) {
		_, err := c.Policy.Check(c.Signed, sum, time.Now())
		switch {
		case c.Want == "" && err != nil:
			t.Errorf("%s: refused: %v", c.Name, err)
		case c.Want != "" && (err == nil || !strings.Contains(err.Error(), c.Want)):
			t.Errorf("%s: %v, but it must be refused with %q", c.Name, err, c.Want)
		}
	}
	t.Logf("result: %d wheels accepted, %d attacks refused", len(good), len(bad))
}

func TestAttacks(t *testing.T) {
	t.Parallel()
	file, m, statement := wheeltest.Built(t, t.TempDir(), wheeltest.Options{})
	k := signingtest.NewKeys(t)
	good := signingtest.Accepted(t, k, filepath.Base(file), string(statement))
	judgeAll(t, good, signingtest.Attacks(t, k, filepath.Base(file), string(statement)), m.SHA256)
}

// The bytes must be those of the wheel that was signed, whoever holds them.
func TestCheckComparesTheFile(t *testing.T) {
	t.Parallel()
	file, _, statement := wheeltest.Built(t, t.TempDir(), wheeltest.Options{})
	k := signingtest.NewKeys(t)
	c := signingtest.Accepted(t, k, filepath.Base(file), string(statement))[0]
	if _, err := c.Policy.Check(c.Signed, strings.Repeat("1", 64), time.Now()); err == nil || !strings.Contains(err.Error(), "but this file has 111") {
		t.Errorf("%v", err)
	}
}

type signer struct {
	t    *testing.T
	keys signingtest.Keys
	name string
}

func (s signer) Sign(message []byte, namespace string) ([]byte, error) {
	return []byte(signingtest.SignWith(s.t, s.keys[s.name], string(message), namespace)), nil
}

func TestSign(t *testing.T) {
	t.Parallel()
	file, m, statement := wheeltest.Built(t, t.TempDir(), wheeltest.Options{})
	k := signingtest.NewKeys(t)
	if _, err := signing.Sign(file, signer{t, k, "a"}); err == nil || !strings.Contains(err.Error(), "no provenance attestation next to") {
		t.Errorf("%v", err)
	}
	if err := os.WriteFile(file+wheel.ProvenanceSuffix, statement, 0o644); err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, name := range []string{"a", "b", "a"} {
		path, err := signing.Sign(file, signer{t, k, name})
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	if files, err := wheel.SignatureFiles(file); err != nil || len(files) != 2 || paths[0] != paths[2] {
		t.Errorf("%q, %v", files, err)
	}
	// Stock ssh-keygen reads what dsbuild wrote.
	allowed := filepath.Join(t.TempDir(), "allowed_signers")
	if err := os.WriteFile(allowed, []byte("ci namespaces=\"dsbuild\" "+k.Public("a")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("ssh-keygen", "-Y", "verify", "-f", allowed, "-I", "ci", "-n", "dsbuild", "-s", paths[0])
	cmd.Stdin = bytes.NewReader(statement)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "Good \"dsbuild\" signature for ci") {
		t.Errorf("%v\n%s", err, out)
	}
	s, err := signing.ReadSigned(file)
	if err != nil {
		t.Fatal(err)
	}
	if names, err := k.Policy(t, "signers: [{name: a, key: $a}, {name: b, key: $b}]\nbuilders: 2").Check(s, m.SHA256, time.Now()); err != nil || len(names) != 2 {
		t.Errorf("%q, %v", names, err)
	}
	// Another wheel under the name.
	if err := os.WriteFile(file, []byte("other"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := signing.Sign(file, signer{t, k, "a"}); err == nil || !strings.Contains(err.Error(), "not signed") {
		t.Errorf("%v", err)
	}
}

// The policy of the documentation, which has every key, can be read.
func TestPolicyOfTheDocumentation(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/signing.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(page), "# policy.yaml\n")
	text, _, closed := strings.Cut(rest, "```")
	if !found || !closed {
		t.Fatal("docs/signing.md has no block that begins with # policy.yaml")
	}
	p, err := signing.ReadPolicy("-", strings.NewReader(text), time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC))
	if err != nil || p.Builders != 2 || len(p.Revoked) != 1 || p.MaxAge == 0 {
		t.Errorf("%v, %+v", err, p)
	}
}
