package keyless_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/keyless"
	"github.com/dsbuild/dsbuild/internal/testkit/sigstoretest"
	"github.com/dsbuild/dsbuild/release/signing/sigstore"
)

const workflow = "https://github.com/team/wheels/.github/workflows/build.yml@refs/heads/main"

// environment reads variables from a map.
func environment(variables map[string]string) func(string) string {
	return func(name string) string { return variables[name] }
}

func TestSign(t *testing.T) {
	t.Parallel()
	s := sigstoretest.New(t)
	config := s.WriteFiles(t.TempDir())
	trusted, err := sigstore.ParseTrustedRoot([]byte(s.TrustedRoot()))
	if err != nil {
		t.Fatal(err)
	}
	token := sigstoretest.Token(sigstoretest.Issuer, workflow)
	for name, env := range map[string]map[string]string{
		"SIGSTORE_ID_TOKEN": {"SIGSTORE_ID_TOKEN": token},
		"GitHub Actions":    {"ACTIONS_ID_TOKEN_REQUEST_URL": sigstoretest.Actions(t, "secret", token), "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "secret"},
	} {
		key, err := keyless.Open(context.Background(), config, environment(env))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		text, err := key.Sign([]byte("statement"), "")
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		id, err := trusted.Verify(text, []byte("statement"))
		if err != nil || id != (sigstore.Identity{Issuer: sigstoretest.Issuer, Subject: workflow}) {
			t.Errorf("%s: %v, %v", name, id, err)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	s := sigstoretest.New(t)
	if _, err := keyless.Open(context.Background(), s.WriteFiles(t.TempDir()), environment(nil)); err == nil || !strings.Contains(err.Error(), "no identity token") {
		t.Errorf("%v", err)
	}
	some := environment(map[string]string{"SIGSTORE_ID_TOKEN": "header.e30."})
	for name, c := range map[string]struct{ config, want string }{
		"plain text":   {strings.ReplaceAll(s.Config(), s.URL, "http://fulcio.example.org"), "must begin with https"},
		"no authority": {strings.Replace(s.Config(), `"caUrls"`, `"oidcUrls"`, 1), "no certificate authority"},
		"no log": {strings.Replace(s.Config(), `"2020-01-01T00:00:00Z"}, "operator": "test"}],
  "rekorTlogConfig"`, `"2090-01-01T00:00:00Z"}, "operator": "test"}],
  "rekorTlogConfig"`, 1), "no transparency log"},
		"garbage": {`{"mediaType": 1}`, "not a signing config"},
	} {
		file := filepath.Join(t.TempDir(), "signing_config.json")
		if err := os.WriteFile(file, []byte(c.config), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := keyless.Open(context.Background(), file, some); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A bundle that the trusted root beside the signing config does not accept is not returned.
func TestSignVerifiesTheBundle(t *testing.T) {
	t.Parallel()
	s, other := sigstoretest.New(t), sigstoretest.New(t)
	folder := t.TempDir()
	config := s.WriteFiles(folder)
	if err := os.WriteFile(filepath.Join(folder, "trusted_root.json"), []byte(other.TrustedRoot()), 0o600); err != nil {
		t.Fatal(err)
	}
	key, err := keyless.Open(context.Background(), config, environment(map[string]string{"SIGSTORE_ID_TOKEN": sigstoretest.Token(sigstoretest.Issuer, workflow)}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := key.Sign([]byte("statement"), ""); err == nil || !strings.Contains(err.Error(), "trusted_root.json does not accept") {
		t.Errorf("%v", err)
	}
}
