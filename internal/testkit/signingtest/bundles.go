package signingtest

import (
	"crypto/x509"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/testkit/sigstoretest"
)

// Workflow is the subject of the bundles that Bundles trusts.
const Workflow = "https://github.com/team/wheels/.github/workflows/build.yml@refs/heads/main"

const inToto = "application/vnd.in-toto+json"

// bundles makes cases with bundles of sigstore.
type bundles struct {
	*cases
	server, other *sigstoretest.Server
	root          string // path of the trusted root of server
}

// Bundles returns cases with bundles of sigstore that a policy accepts, and attacks that every
// judgement must refuse.
func Bundles(t testing.TB, k Keys, wheel, statement string) (accepted, attacks []Case) {
	t.Helper()
	b := bundles{cases: newCases(t, k, wheel, statement), server: sigstoretest.New(t), other: sigstoretest.New(t)}
	folder := t.TempDir()
	b.server.WriteFiles(folder)
	b.root = filepath.Join(folder, "trusted_root.json")
	b.addAccepted()
	accepted, b.list = b.list, nil
	b.addIdentities()
	b.addProofs()
	b.addForms()
	b.addCertificates()
	return accepted, b.list
}

// Identity is the YAML of an identity with a trusted root.
func Identity(subject, root string) string {
	return `sigstore: {issuer: "` + sigstoretest.Issuer + `", subject: "` + subject + `", trusted_root: "` + root + `"}`
}

// signer is the YAML of a signer.
func (b *bundles) signer(name, subject string) string {
	return "{name: " + name + ", " + Identity(subject, b.root) + "}"
}

// ci is a policy that trusts the workflow.
func (b *bundles) ci() string { return "signers: [" + b.signer("ci", Workflow) + "]" }

// sign is a bundle for the statement.
func (b *bundles) sign(subject string) string {
	return b.server.Sign(sigstoretest.Issuer, subject, b.statement)
}

func (b *bundles) addAccepted() {
	good := b.sign(Workflow)
	b.add("an identity", b.ci(), "", []string{good})
	b.add("an identity by a pattern", "signers: ["+b.signer("ci", "https://github.com/team/*@refs/heads/main")+"]", "", []string{good})
	b.add("an envelope around the statement", b.ci(), "", []string{b.server.Envelop(sigstoretest.Issuer, Workflow, b.statement, inToto)})
	b.add("an identity and a key", "signers: ["+b.signer("ci", Workflow)+", {name: a, key: $a}]\nbuilders: 2", "", append(b.by("a"), good))
	b.add("two identities", "signers: ["+b.signer("ci", Workflow)+", "+b.signer("someone", "someone@example.org")+"]\nbuilders: 2", "", []string{b.sign("someone@example.org"), good})
	b.add("an untrusted bundle beside", b.ci(), "", []string{b.other.Sign(sigstoretest.Issuer, Workflow, b.statement), b.sign("someone@example.org"), good})
	b.add("one of two trusted roots", "signers: [{name: someone, "+Identity("someone@example.org", b.otherRoot())+"}, "+b.signer("ci", Workflow)+"]", "", []string{good})
	b.server.Certify = func(c *x509.Certificate) {
		c.NotBefore, c.NotAfter = c.NotBefore.Add(-time.Hour), c.NotAfter.Add(-time.Hour)
	}
	b.server.Clock = func() time.Time { return time.Now().Add(-time.Hour) }
	b.add("a certificate that has expired since", b.ci(), "", []string{b.sign(Workflow)})
	b.server.Certify, b.server.Clock = nil, time.Now
}

// otherRoot is the trusted root of the other sigstore.
func (b *bundles) otherRoot() string {
	folder := b.t.TempDir()
	b.other.WriteFiles(folder)
	return filepath.Join(folder, "trusted_root.json")
}

func (b *bundles) addIdentities() {
	good := b.sign(Workflow)
	b.add("other identity", b.ci(), "does not trust the identity", []string{b.sign("https://github.com/team/wheels/.github/workflows/evil.yml@refs/heads/main")})
	b.add("identity that only begins alike", b.ci(), "does not trust the identity", []string{b.sign(Workflow + "2")})
	b.add("pattern for another repository", "signers: ["+b.signer("ci", "https://github.com/team/other/*")+"]", "does not trust the identity", []string{good})
	b.add("other issuer", b.ci(), "does not trust the identity", []string{b.server.Sign("https://token.example.com", Workflow, b.statement)})
	b.add("other trusted root", b.ci(), "not valid", []string{b.other.Sign(sigstoretest.Issuer, Workflow, b.statement)})
	b.add("policy of keys alone", one, "trusts no identity", []string{good})
	identity := Identity(Workflow, b.root)
	b.add("signer who has expired", "signers: [{name: ci, until: 2026-01-01, "+identity+"}]", "expired", []string{good})
	b.add("signer who is not yet valid", "signers: [{name: ci, from: 2099-01-01, "+identity+"}, {name: a, key: $a}]", "not valid before", []string{good})
	team := "signers: [" + b.signer("team", "https://github.com/team/*") + ", {name: a, key: $a}]\nbuilders: 2"
	b.add("two bundles of one identity", team, "1 of 2", []string{good, b.sign(Workflow)})
	b.add("two identities of one signer", team, "1 of 2", []string{good, b.sign("https://github.com/team/other")})
	b.add("one identity of two signers", "signers: ["+b.signer("ci", Workflow)+", "+b.signer("team", "https://github.com/team/*")+"]\nbuilders: 2", "1 of 2", []string{good, b.sign(Workflow)})
}

// edit changes the JSON of a bundle.
func edit(t testing.TB, text string, change func(bundle, material, entry map[string]any)) string {
	t.Helper()
	var all map[string]any
	must(t, json.Unmarshal([]byte(text), &all))
	material := all["verificationMaterial"].(map[string]any)
	change(all, material, material["tlogEntries"].([]any)[0].(map[string]any))
	changed, err := json.Marshal(all)
	must(t, err)
	if string(changed) == text {
		t.Fatal("nothing was changed")
	}
	return string(changed)
}

// flip changes one letter of a text in base64.
func flip(in map[string]any, key string) {
	text := in[key].(string)
	at, other := len(text)/2, "A"
	if text[at] == 'A' {
		other = "B"
	}
	in[key] = text[:at] + other + text[at+1:]
}

func (b *bundles) addProofs() {
	good, second, strange := b.sign(Workflow), b.sign(Workflow), b.other.Sign(sigstoretest.Issuer, Workflow, b.statement)
	attack := func(name string, change func(bundle, material, entry map[string]any)) {
		b.add(name, b.ci(), "0 of 1", []string{edit(b.t, good, change)})
	}
	materialOf := func(text, key string) any {
		var all struct {
			Material map[string]any `json:"verificationMaterial"`
		}
		must(b.t, json.Unmarshal([]byte(text), &all))
		return all.Material[key]
	}
	b.add("bundle of another statement", b.ci(), "not valid", []string{b.server.Sign(sigstoretest.Issuer, Workflow, b.statement+" ")})
	attack("no log entry", func(_, material, _ map[string]any) { material["tlogEntries"] = []any{} })
	attack("log entry of another signature", func(_, material, _ map[string]any) { material["tlogEntries"] = materialOf(second, "tlogEntries") })
	attack("log entry of another log", func(_, material, _ map[string]any) { material["tlogEntries"] = materialOf(strange, "tlogEntries") })
	attack("no time of the log", func(_, _, entry map[string]any) { delete(entry, "inclusionPromise") })
	attack("no proof of inclusion", func(_, _, entry map[string]any) { delete(entry, "inclusionProof") })
	attack("another time of the log", func(_, _, entry map[string]any) { entry["integratedTime"] = "1700000000" })
	attack("edited promise", func(_, _, entry map[string]any) {
		flip(entry["inclusionPromise"].(map[string]any), "signedEntryTimestamp")
	})
	attack("edited proof", func(_, _, entry map[string]any) { flip(entry["inclusionProof"].(map[string]any), "rootHash") })
	attack("edited entry", func(_, _, entry map[string]any) { flip(entry, "canonicalizedBody") })
	attack("edited signature", func(all, _, _ map[string]any) { flip(all["messageSignature"].(map[string]any), "signature") })
	attack("edited digest", func(all, _, _ map[string]any) {
		flip(all["messageSignature"].(map[string]any)["messageDigest"].(map[string]any), "digest")
	})
	attack("edited certificate", func(_, material, _ map[string]any) { flip(material["certificate"].(map[string]any), "rawBytes") })
	attack("certificate of another bundle", func(_, material, _ map[string]any) { material["certificate"] = materialOf(second, "certificate") })
	attack("certificate of another authority", func(_, material, _ map[string]any) { material["certificate"] = materialOf(strange, "certificate") })
}

func (b *bundles) addForms() {
	good := b.sign(Workflow)
	form := func(name, text string) { b.add(name, b.ci(), "0 of 1", []string{text}) }
	form("an empty object", "{}")
	form("half a bundle", good[:len(good)/2])
	form("a deep bundle", strings.Repeat(`{"a":`, 10000))
	form("garbage after the bundle", good+"x")
	form("a bundle with an unknown key", strings.Replace(good, "{", `{"later": 1, `, 1))
	version := func(to string) string { return strings.Replace(good, "bundle.v0.3+json", to, 1) }
	form("a bundle of version 0.1", version("bundle+json;version=0.1"))
	form("a bundle of version 0.4", version("bundle.v0.4+json"))
	form("a key in place of a certificate", edit(b.t, good, func(_, material, _ map[string]any) {
		delete(material, "certificate")
		material["publicKey"] = map[string]any{"hint": "AAAA"}
	}))
	envelope := b.server.Envelop(sigstoretest.Issuer, Workflow, b.statement, inToto)
	form("an envelope around another statement", b.server.Envelop(sigstoretest.Issuer, Workflow, b.statement+" ", inToto))
	form("an envelope of another type", b.server.Envelop(sigstoretest.Issuer, Workflow, b.statement, "text/plain"))
	form("an edited envelope", edit(b.t, envelope, func(all, _, _ map[string]any) {
		flip(all["dsseEnvelope"].(map[string]any)["signatures"].([]any)[0].(map[string]any), "sig")
	}))
	form("an envelope of another statement with this payload", edit(b.t, b.server.Envelop(sigstoretest.Issuer, Workflow, b.statement+" ", inToto), func(all, _, _ map[string]any) {
		var mine map[string]any
		must(b.t, json.Unmarshal([]byte(envelope), &mine))
		all["dsseEnvelope"].(map[string]any)["payload"] = mine["dsseEnvelope"].(map[string]any)["payload"]
	}))
	renamed := strings.Replace(b.statement, b.wheel, "deepspeed-9.9.9-py3-none-any.whl", 1)
	b.addStatement("bundle of another wheel", b.ci(), "about another file", renamed, []string{b.server.Sign(sigstoretest.Issuer, Workflow, renamed)})
	b.addStatement("statement edited after the bundle", b.ci(), "not valid", strings.Replace(b.statement, "plan_digest", "plan_digesT", 1), []string{good})
}

func (b *bundles) addCertificates() {
	attack := func(name string, certify func(*x509.Certificate), clock time.Duration) {
		b.server.Certify, b.server.Clock = certify, func() time.Time { return time.Now().Add(clock) }
		b.add(name, b.ci(), "0 of 1", []string{b.sign(Workflow)})
		b.server.Certify, b.server.Clock = nil, time.Now
	}
	attack("logged after the certificate had expired", nil, 20*time.Minute)
	attack("logged before the certificate was valid", nil, -20*time.Minute)
	attack("certificate that signs no code", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }, 0)
	b.server.Secret = true
	b.add("no promise of the certificate log", b.ci(), "signed certificate timestamp", []string{b.sign(Workflow)})
	b.server.Secret = false
	attack("certificate without an issuer", func(c *x509.Certificate) { c.ExtraExtensions = nil }, 0)
}
