package python

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestTrust(t *testing.T) {
	there := filepath.Join(t.TempDir(), "bundle.crt")
	if err := os.WriteFile(there, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		environ map[string]string
		want    []string
	}{
		"the machine's":  {nil, []string{"SSL_CERT_FILE=" + there, "PIP_CERT=" + there}},
		"the user's own": {map[string]string{"SSL_CERT_FILE": "/my.pem"}, []string{"SSL_CERT_FILE=/my.pem", "PIP_CERT=/my.pem"}},
		"pip's own":      {map[string]string{"PIP_CERT": "/pip.pem"}, []string{"SSL_CERT_FILE=" + there}},
	} {
		got := certificateVariables(func(name string) string { return c.environ[name] }, []string{there + ".not", there})
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q", name, got)
		}
	}
	if got := certificateVariables(func(string) string { return "" }, []string{there + ".not"}); got != nil {
		t.Errorf("without a bundle: %q", got)
	}
}
