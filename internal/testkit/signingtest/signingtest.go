// Package signingtest makes signed wheels that a policy accepts, and attacks that it must refuse: for
// tests of the judgement here and on nodes.
package signingtest

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/pem"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"

	"github.com/dsbuild/dsbuild/release/signing"
)

// Case is a wheel with its statement and signatures, and a policy.
type Case struct {
	Name   string
	Policy *signing.Policy
	Signed signing.Signed
	Want   string // part of the reason for which it is refused; "" if it is accepted
}

// Keys are signers by their names: a, b, c, rsa, token, ca, other.
type Keys map[string]ssh.Signer

// NewKeys makes keys.
func NewKeys(t testing.TB) Keys {
	t.Helper()
	k := Keys{}
	for _, name := range []string{"a", "b", "c", "ca", "other"} {
		_, private, err := ed25519.GenerateKey(rand.Reader)
		must(t, err)
		k[name], err = ssh.NewSignerFromKey(private)
		must(t, err)
	}
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	must(t, err)
	k["rsa"], err = ssh.NewSignerFromKey(private)
	must(t, err)
	k["token"] = newToken(t, 1)
	return k
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tokenKey is a security key (FIDO) as the agent shows one.
type tokenKey struct {
	private ed25519.PrivateKey
	public  ssh.PublicKey
	flags   byte
}

// newToken makes a security key whose signatures have these flags: 1 if somebody touched it.
func newToken(t testing.TB, flags byte) tokenKey {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	must(t, err)
	key, err := ssh.ParsePublicKey(ssh.Marshal(struct{ Kind, Key, Application string }{ssh.KeyAlgoSKED25519, string(public), "ssh:"}))
	must(t, err)
	return tokenKey{private, key, flags}
}

// PublicKey implements ssh.Signer.
func (k tokenKey) PublicKey() ssh.PublicKey { return k.public }

// Sign implements ssh.Signer.
func (k tokenKey) Sign(_ io.Reader, data []byte) (*ssh.Signature, error) {
	application, message := sha256.Sum256([]byte("ssh:")), sha256.Sum256(data)
	rest := []byte{k.flags, 0, 0, 0, 7} // and the counter
	return &ssh.Signature{Format: k.public.Type(), Blob: ed25519.Sign(k.private, slices.Concat(application[:], rest, message[:])), Rest: rest}, nil
}

// Public is the public half of a key, as in authorized_keys.
func (k Keys) Public(name string) string {
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(k[name].PublicKey())))
}

// Policy reads a policy, in which $name stands for a public key and @name for its fingerprint. It is
// read as if it were 2020: a policy may have expired since.
func (k Keys) Policy(t testing.TB, text string) *signing.Policy {
	t.Helper()
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(k))) { // $ca before $c
		text = strings.ReplaceAll(text, "$"+name, k.Public(name))
		text = strings.ReplaceAll(text, "@"+name, ssh.FingerprintSHA256(k[name].PublicKey()))
	}
	p, err := signing.ReadPolicy("-", strings.NewReader(text), time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC))
	must(t, err)
	return p
}

// Sign signs a text in the namespace of dsbuild.
func (k Keys) Sign(t testing.TB, name, text string) string {
	t.Helper()
	return SignWith(t, k[name], text, signing.Namespace)
}

// SignWith signs a text in a namespace.
func SignWith(t testing.TB, key ssh.Signer, text, namespace string) string {
	t.Helper()
	s, err := sshsig.Sign(strings.NewReader(text), key, sshsig.HashSHA512, namespace)
	must(t, err)
	return string(sshsig.Armor(s))
}

// Certify returns a key with a certificate by a CA for builder-1, as change leaves it.
func (k Keys) Certify(t testing.TB, name, ca string, change func(*ssh.Certificate)) ssh.Signer {
	t.Helper()
	c := &ssh.Certificate{
		Key: k[name].PublicKey(), CertType: ssh.UserCert, KeyId: name, ValidPrincipals: []string{"builder-1"},
		ValidAfter: uint64(time.Now().Add(-time.Hour).Unix()), ValidBefore: uint64(time.Now().Add(time.Hour).Unix()),
	}
	if change != nil {
		change(c)
	}
	must(t, c.SignCert(rand.Reader, k[ca]))
	s, err := ssh.NewCertSigner(c, k[name])
	must(t, err)
	return s
}

// Accepted are cases that a policy accepts, for a wheel with its statement.
func Accepted(t testing.TB, k Keys, wheel, statement string) []Case {
	t.Helper()
	all := newCases(t, k, wheel, statement)
	all.add("one key", "signers: [{name: a, key: $a}]", "", all.by("a"))
	all.add("everything that a policy can ask", "signers: [{name: a, key: $a, from: 2020-01-01, until: 2100-01-01}]\nminimum: 0.19.8\nmax_age: 1d\nsources: [git+*, 'pkg:pypi/deepspeed@*']\nrevoked: ['@other']", "", all.by("a"))
	all.add("two of three", "signers: [{name: a, key: $a}, {name: b, key: $b}, {name: c, key: $c}]\nbuilders: 2", "", all.by("c", "a"))
	all.add("an untrusted one beside", "signers: [{name: a, key: $a}]", "", all.by("other", "a"))
	all.add("RSA", "signers: [{name: rsa, key: $rsa}]", "", all.by("rsa"))
	all.add("a certificate", "signers: [{name: team, ca: $ca, principals: [builder-0, builder-1]}]", "", []string{SignWith(t, k.Certify(t, "b", "ca", nil), statement, signing.Namespace)})
	all.add("a security key", "signers: [{name: token, key: $token}]", "", all.by("token"))
	all.add("SHA-256", "signers: [{name: a, key: $a}]", "", []string{signSHA256(t, k["a"], statement)})
	return all.list
}

func signSHA256(t testing.TB, key ssh.Signer, text string) string {
	t.Helper()
	s, err := sshsig.Sign(strings.NewReader(text), key, sshsig.HashSHA256, signing.Namespace)
	must(t, err)
	return string(sshsig.Armor(s))
}

// cases collects cases for one wheel.
type cases struct {
	t         testing.TB
	keys      Keys
	wheel     string
	statement string
	list      []Case
}

func newCases(t testing.TB, k Keys, wheel, statement string) *cases {
	t.Helper()
	return &cases{t: t, keys: k, wheel: wheel, statement: statement}
}

// by are signatures of the statement.
func (c *cases) by(names ...string) []string {
	var all []string
	for _, name := range names {
		all = append(all, c.keys.Sign(c.t, name, c.statement))
	}
	return all
}

func (c *cases) add(name, policy, want string, signatures []string) {
	c.t.Helper()
	c.addStatement(name, policy, want, c.statement, signatures)
}

func (c *cases) addStatement(name, policy, want, statement string, signatures []string) {
	c.t.Helper()
	c.list = append(c.list, Case{Name: name, Policy: c.keys.Policy(c.t, policy), Want: want, Signed: signing.Signed{Name: c.wheel, Statement: statement, Signatures: append([]string{}, signatures...)}})
}

// Attacks are cases that every judgement must refuse.
func Attacks(t testing.TB, k Keys, wheel, statement string) []Case {
	t.Helper()
	c := newCases(t, k, wheel, statement)
	c.addKeys()
	c.addCertificates()
	c.addSignatures()
	c.addStatements()
	c.list = append(c.list, Case{Name: "policy that trusts nobody", Policy: &signing.Policy{Builders: 1}, Want: "", Signed: signing.Signed{Name: wheel, Statement: statement, Signatures: c.by("a")}})
	c.list[len(c.list)-1].Want = "trust"
	return c.list
}

const one = "signers: [{name: a, key: $a}]"

func (c *cases) addKeys() {
	a := c.by("a")
	c.add("other key", one, "is not trusted by the policy", c.by("other"))
	c.add("expired key", "signers: [{name: a, key: $a, until: 2026-01-01}]", "expired", a)
	c.add("key not yet valid", "signers: [{name: a, key: $a, from: 2099-01-01}, {name: b, key: $b}]", "not valid before", a)
	c.add("revoked key", "signers: [{name: b, key: $b}]\nrevoked: ['@a']", "is revoked", a)
	c.add("wrong namespace", "signers: [{name: a, key: $a}]", "namespace", []string{SignWith(c.t, c.keys["a"], c.statement, "git")})
	two := "signers: [{name: a, key: $a}, {name: b, key: $b}, {name: team, ca: $ca, principals: [builder-1]}]\nbuilders: 2"
	c.add("one of two builders", two, "1 of 2", a)
	c.add("the same key twice", two, "1 of 2", append(a, a...))
	c.add("the same key in two hashes", two, "1 of 2", append(c.by("a"), signSHA256(c.t, c.keys["a"], c.statement)))
	certified := SignWith(c.t, c.keys.Certify(c.t, "a", "ca", nil), c.statement, signing.Namespace)
	c.add("the same key with and without a certificate", two, "1 of 2", append(c.by("a"), certified))
	c.add("one trusted and one untrusted builder", two, "1 of 2", c.by("a", "other"))
}

func (c *cases) addCertificates() {
	team := "signers: [{name: team, ca: $ca, principals: [builder-1]}]"
	sign := func(ca string, change func(*ssh.Certificate)) []string {
		return []string{SignWith(c.t, c.keys.Certify(c.t, "b", ca, change), c.statement, signing.Namespace)}
	}
	hour := func(hours int) uint64 { return uint64(time.Now().Add(time.Duration(hours) * time.Hour).Unix()) }
	c.add("certificate of another CA", team, "is not trusted by the policy", sign("other", nil))
	c.add("certificate for another principal", team, "none of the principals", sign("ca", func(x *ssh.Certificate) { x.ValidPrincipals = []string{"builder-2"} }))
	c.add("certificate for nobody", team, "none of the principals", sign("ca", func(x *ssh.Certificate) { x.ValidPrincipals = nil }))
	c.add("expired certificate", team, "invalid certificate: ", sign("ca", func(x *ssh.Certificate) { x.ValidAfter, x.ValidBefore = hour(-3), hour(-2) }))
	c.add("certificate not yet valid", team, "invalid certificate: ", sign("ca", func(x *ssh.Certificate) { x.ValidAfter, x.ValidBefore = hour(2), hour(3) }))
	c.add("certificate of a host", team, "certificate", sign("ca", func(x *ssh.Certificate) { x.CertType = ssh.HostCert }))
	c.add("certificate with a condition", team, "certificate", sign("ca", func(x *ssh.Certificate) { x.CriticalOptions = map[string]string{"force-command": "true"} }))
	c.add("revoked key with a certificate", team+"\nrevoked: ['@b']", "is revoked", sign("ca", nil))
	c.add("the CA's own key", team, "is not trusted by the policy", c.by("ca"))
	c.add("CA as a plain key", "signers: [{name: ca, key: $ca}]", "is not trusted by the policy", sign("ca", nil))
	c.add("trusted key with a certificate of a stranger", "signers: [{name: b, key: $b}]", "is not trusted by the policy", sign("other", nil))
	forged := c.keys.Certify(c.t, "b", "ca", nil)
	forged.PublicKey().(*ssh.Certificate).ValidPrincipals = []string{"builder-1", "builder-3"} // after it was signed
	old, err := ssh.NewSignerWithAlgorithms(c.keys["rsa"].(ssh.AlgorithmSigner), []string{ssh.KeyAlgoRSA})
	must(c.t, err)
	c.keys["sha1"] = old
	c.add("certificate signed with SHA-1", "signers: [{name: team, ca: $rsa, principals: [builder-1]}]", "SHA-1", sign("sha1", nil))
	c.add("forged certificate", "signers: [{name: team, ca: $ca, principals: [builder-3]}]", "", []string{SignWith(c.t, forged, c.statement, signing.Namespace)})
	c.list[len(c.list)-1].Want = "0 of 1"
}

func (c *cases) addSignatures() {
	a := c.by("a")[0]
	lines := strings.Split(strings.TrimSpace(a), "\n")
	c.add("no signature", one, "0 of 1", nil)
	c.add("empty signature", one, "0 of 1", []string{""})
	c.add("garbage", one, "0 of 1", []string{strings.Repeat("\x00\xff garbage\n", 40)})
	c.add("truncated signature", one, "0 of 1", []string{strings.Join(append(lines[:2:2], lines[len(lines)-1]), "\n")})
	c.add("signature without its end", one, "0 of 1", []string{strings.Join(lines[:len(lines)-1], "\n")})
	c.add("signature of another statement", one, "not a signature of this attestation", []string{c.keys.Sign(c.t, "a", c.statement+" ")})
	c.add("altered signature", one, "0 of 1", []string{reseal(c.t, a, func(s *sshsig.Signature) { s.Signature.Blob[5] ^= 1 })})
	c.add("key of another in the signature", one, "0 of 1", []string{reseal(c.t, c.by("other")[0], func(s *sshsig.Signature) { s.PublicKey = c.keys["a"].PublicKey() })})
	c.add("namespace changed afterwards", one, "0 of 1", []string{reseal(c.t, SignWith(c.t, c.keys["a"], c.statement, "git"), func(s *sshsig.Signature) { s.Namespace = signing.Namespace })})
	c.add("a certificate's signature as a login", one, "0 of 1", []string{string(pem.EncodeToMemory(&pem.Block{Type: "SSH SIGNATURE", Bytes: []byte("SSHSIG\x00\x00\x00\x01")}))})
	c.add("version 2", one, "0 of 1", []string{version2(a)})
	raw, err := c.keys["rsa"].(ssh.AlgorithmSigner).SignWithAlgorithm(rand.Reader, []byte("x"), ssh.KeyAlgoRSA)
	must(c.t, err)
	c.add("RSA with SHA-1", "signers: [{name: rsa, key: $rsa}]", "0 of 1", []string{reseal(c.t, c.by("rsa")[0], func(s *sshsig.Signature) { s.Signature = raw })})
}

// reseal changes a signature after it was made.
func reseal(t testing.TB, armored string, change func(*sshsig.Signature)) string {
	t.Helper()
	s, err := sshsig.Unarmor([]byte(armored))
	must(t, err)
	change(s)
	return string(sshsig.Armor(s))
}

func version2(armored string) string {
	block, _ := pem.Decode([]byte(armored))
	block.Bytes = bytes.Replace(block.Bytes, []byte("SSHSIG\x00\x00\x00\x01"), []byte("SSHSIG\x00\x00\x00\x02"), 1)
	return string(pem.EncodeToMemory(block))
}

func (c *cases) addStatements() {
	signed := func(name, policy, want string, change func(string) string) {
		c.t.Helper()
		text := change(c.statement)
		if text == c.statement {
			c.t.Fatalf("%s: nothing was changed", name)
		}
		c.addStatement(name, policy, want, text, []string{c.keys.Sign(c.t, "a", text)})
	}
	replace := func(old, new string) func(string) string {
		return func(s string) string { return strings.Replace(s, old, new, 1) }
	}
	c.addStatement("no provenance attestation", one, "no provenance attestation", "", c.by("a"))
	c.addStatement("statement edited after it was signed", one, "not a signature of this attestation", strings.Replace(c.statement, "plan_digest", "plan_digesT", 1), c.by("a"))
	sum := c.statement[strings.Index(c.statement, `"sha256": "`)+len(`"sha256": "`):][:64]
	signed("statement of another wheel", one, "provenance attestation is for sha256", replace(sum, strings.Repeat("0", 64)))
	signed("statement of another name", one, "provenance attestation is for another file", replace(c.wheel, "deepspeed-9.9.9-py3-none-any.whl"))
	signed("statement of several files", one, "cannot read the provenance attestation", replace(`"subject": [`, `"subject": [{"name": "other.whl", "digest": {"sha256": "`+strings.Repeat("0", 64)+`"}},`))
	signed("statement of two digests", one, "cannot read the provenance attestation", replace(`"sha256": "`+sum+`"`, `"sha256": "`+strings.Repeat("0", 64)+`", "sha256": "`+sum+`"`))
	signed("statement without a file", one, "cannot read the provenance attestation", replace(`"subject": [`, `"subject": [], "was": [`))
	signed("another predicate", one, "cannot read the provenance attestation", replace("https://slsa.dev/provenance/v1", "https://example.org/anything"))
	signed("no in-toto statement", one, "cannot read the provenance attestation", replace("https://in-toto.io/Statement/v1", "https://in-toto.io/Statement/v9"))
	signed("truncated statement", one, "cannot read the provenance attestation", func(s string) string { return s[:len(s)/2] })
	signed("statement of garbage", one, "cannot read the provenance attestation", func(string) string { return "\x01\x02[" })
	signed("deep statement", one, "cannot read the provenance attestation", func(string) string { return strings.Repeat("[", 100000) })
	c.add("replayed older version", one+"\nminimum: 0.20", "older than 0.20", c.by("a"))
	signed("replayed older build", one+"\nmax_age: 30d", "exceeds max_age", finishedIn(2025))
	signed("clock before the signature", one, "in the future by this clock", finishedIn(2099))
	c.add("other sources", one+"\nsources: ['git+https://github.com/deepspeedai/DeepSpeed@*']", "none of the sources", c.by("a"))
	c.add("sources that only begin alike", one+"\nsources: ['pkg:pypi/deepspeed@0.1']", "none of the sources", c.by("a"))
}

// finishedIn changes the year in which a build ended.
func finishedIn(year int) func(string) string {
	return func(s string) string {
		at := strings.Index(s, `"finishedOn": "`) + len(`"finishedOn": "`)
		return s[:at] + time.Date(year, 1, 2, 3, 4, 5, 0, time.UTC).Format(time.RFC3339) + s[at+strings.Index(s[at:], `"`):]
	}
}
