package signing_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/testkit/signingtest"
	"github.com/dsbuild/dsbuild/internal/testkit/sigstoretest"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/release/signing"
	"github.com/dsbuild/dsbuild/wheel"
)

func TestBundles(t *testing.T) {
	t.Parallel()
	file, m, statement := wheeltest.Built(t, t.TempDir(), wheeltest.Options{})
	good, bad := signingtest.Bundles(t, signingtest.NewKeys(t), filepath.Base(file), string(statement))
	judgeAll(t, good, bad, m.SHA256)
}

// identitySigner makes bundles for Sign.
type identitySigner struct {
	server  *sigstoretest.Server
	subject string
}

func (s identitySigner) Sign(message []byte, _ string) ([]byte, error) {
	return []byte(s.server.Sign(sigstoretest.Issuer, s.subject, string(message))), nil
}

func TestSignWithAnIdentity(t *testing.T) {
	t.Parallel()
	file, m, statement := wheeltest.Built(t, t.TempDir(), wheeltest.Options{})
	s := sigstoretest.New(t)
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(file+wheel.ProvenanceSuffix, string(statement))
	var paths []string
	for _, subject := range []string{signingtest.Workflow, "someone@example.org", signingtest.Workflow} {
		path, err := signing.Sign(file, identitySigner{s, subject})
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	if files, err := wheel.SignatureFiles(file); err != nil || len(files) != 2 || paths[0] != paths[2] || !strings.HasSuffix(paths[0], ".sigstore.json") {
		t.Errorf("%q, %v", files, err)
	}
	// The bundle of another program, which has no id, counts too.
	if err := os.Remove(paths[0]); err != nil {
		t.Fatal(err)
	}
	write(file+wheel.ProvenanceSuffix+".sigstore.json", s.Envelop(sigstoretest.Issuer, signingtest.Workflow, string(statement), "application/vnd.in-toto+json"))
	root := t.TempDir()
	s.WriteFiles(root)
	policy := "signers: [{name: ci, " + signingtest.Identity(signingtest.Workflow, root+"/trusted_root.json") + "}, {name: someone, " + signingtest.Identity("someone@example.org", root+"/trusted_root.json") + "}]\nbuilders: 2"
	if _, err := (signingtest.Keys{}).Policy(t, policy).Accept(file, m.SHA256, time.Now()); err != nil {
		t.Error(err)
	}
	write(file+wheel.ProvenanceSuffix+".ab.sigstore.json", "{"+strings.Repeat(" ", 65<<10)+"}")
	if _, err := (signingtest.Keys{}).Policy(t, policy).Accept(file, m.SHA256, time.Now()); err == nil || !strings.Contains(err.Error(), "larger than 64 KiB") {
		t.Errorf("a huge bundle: %v", err)
	}
}

func TestPolicyRefusesIdentities(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	s := sigstoretest.New(t)
	s.WriteFiles(folder)
	for name, text := range map[string]string{"huge.json": strings.Repeat(" ", 200<<10), "garbage.json": "{", "empty.json": "{}", "config.json": s.Config()} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const good = "issuer: https://token.example.org, subject: someone@example.org, trusted_root: trusted_root.json"
	for signers, want := range map[string]string{
		"{name: a, sigstore: {" + good + "}}":                                                          "",
		"{name: a, sigstore: {" + good + "}}, {name: b, sigstore: {" + good + "}}":                     "a second signer with this identity; first at",
		"{name: a, sigstore: {" + good + "}, namespaces: [x]}":                                         "unknown key",
		"{name: a, sigstore: {" + good + "}, principals: [x]}":                                         "has principals, which only a ca has",
		"{name: a, sigstore: {" + good + "}, key: ssh-ed25519}":                                        "needs one of key, ca and sigstore",
		"{name: a, sigstore: {issuer: https://token.example.org}}":                                     "sigstore needs issuer, subject and trusted_root",
		"{name: a, sigstore: {" + good + ", key: x}}":                                                  "unknown key \"key\" in sigstore",
		"{name: a, sigstore: [x]}":                                                                     "sigstore must be a mapping",
		"{name: a, sigstore: {" + strings.Replace(good, "someone@example.org", "'*'", 1) + "}}":        "is everybody whom the issuer knows",
		"{name: a, sigstore: {" + strings.Replace(good, "https:", "file:", 1) + "}}":                   "issuer must be the address",
		"{name: a, sigstore: {" + strings.Replace(good, "trusted_root.json", "none.json", 1) + "}}":    "cannot read the trusted root",
		"{name: a, sigstore: {" + strings.Replace(good, "trusted_root.json", "/dev/zero", 1) + "}}":    "is not a file of at most",
		"{name: a, sigstore: {" + strings.Replace(good, "trusted_root.json", "huge.json", 1) + "}}":    "is not a file of at most",
		"{name: a, sigstore: {" + strings.Replace(good, "trusted_root.json", "garbage.json", 1) + "}}": "cannot be used",
		"{name: a, sigstore: {" + strings.Replace(good, "trusted_root.json", "empty.json", 1) + "}}":   "cannot be used",
		"{name: a, sigstore: {" + strings.Replace(good, "trusted_root.json", "config.json", 1) + "}}":  "cannot be used",
	} {
		_, err := signing.ParsePolicy(filepath.Join(folder, "policy.yaml"), []byte("signers: ["+signers+"]\n"), time.Now())
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", signers, err, want)
		}
	}
}
