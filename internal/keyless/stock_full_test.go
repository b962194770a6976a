//go:build full

package keyless_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/keyless"
	"github.com/dsbuild/dsbuild/internal/testkit/sigstoretest"
	"github.com/dsbuild/dsbuild/release/signing/sigstore"
)

// sigstore's program in Python, which shares no code with the library of dsbuild, verifies the bundles
// of dsbuild, and dsbuild verifies those of it.
func TestFullPublishBundles(t *testing.T) {
	s, folder := sigstoretest.New(t), t.TempDir()
	config, token := s.WriteFiles(folder), sigstoretest.Token(sigstoretest.Issuer, workflow)
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	trust := write("trust.json", `{"mediaType": "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json", "trustedRoot": `+s.TrustedRoot()+`, "signingConfig": `+s.Config()+`}`)
	statement := write("statement", "statement")
	bin := filepath.Join(t.TempDir(), "tools")
	run := func(program string, arguments ...string) (string, error) {
		out, err := exec.CommandContext(t.Context(), program, arguments...).CombinedOutput()
		return string(out), err
	}
	for _, command := range [][]string{{"python3", "-m", "venv", bin}, {bin + "/bin/pip", "install", "-q", "sigstore"}} {
		if out, err := run(command[0], command[1:]...); err != nil {
			t.Fatalf("%q: %v\n%s", command, err, out)
		}
	}

	key, err := keyless.Open(context.Background(), config, environment(map[string]string{"SIGSTORE_ID_TOKEN": token}))
	if err != nil {
		t.Fatal(err)
	}
	text, err := key.Sign([]byte("statement"), "")
	if err != nil {
		t.Fatal(err)
	}
	ours := write("ours.sigstore.json", string(text))
	for subject, want := range map[string]string{workflow: "OK", workflow + "2": "do not match"} {
		out, err := run(bin+"/bin/sigstore", "--trust-config", trust, "verify", "identity", "--bundle", ours, "--cert-identity", subject, "--cert-oidc-issuer", sigstoretest.Issuer, statement)
		if (err == nil) != (want == "OK") || !strings.Contains(out, want) {
			t.Errorf("%s: %v\n%s", subject, err, out)
		}
	}

	theirs := filepath.Join(folder, "theirs.sigstore.json")
	if out, err := run(bin+"/bin/sigstore", "--trust-config", trust, "sign", "--identity-token", token, "--bundle", theirs, statement); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	trusted, err := sigstore.ParseTrustedRoot([]byte(s.TrustedRoot()))
	if err != nil {
		t.Fatal(err)
	}
	if text, err = os.ReadFile(theirs); err != nil {
		t.Fatal(err)
	}
	if id, err := trusted.Verify(text, []byte("statement")); err != nil || id.Subject != workflow {
		t.Errorf("%v, %v\n%s", id, err, text)
	}
}
