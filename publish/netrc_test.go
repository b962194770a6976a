package publish

import (
	"errors"
	"strings"
	"testing"
)

func FuzzNetrc(f *testing.F) {
	for _, seed := range []string{"machine a login b password c", "default login b password c", "machine a\nmacdef x\nmachine a login d password e\n\n", "machine", "machine a password", "# machine a login b"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got := parseNetrc(text, "a")
		if !strings.Contains(text, got.user) || !strings.Contains(text, got.password) {
			t.Errorf("%q gives %q", text, got)
		}
	})
}

func TestSecretsAreHidden(t *testing.T) {
	var s secrets
	s.addLogin(login{"ci", "pass  word"})
	s.add("no") // too short: it would occur in any text
	const text = "no pass  word, pass++word, pass%20%20word, Y2k6cGFzcyAgd29yZA=="
	if got := s.hide(errors.New(text)).Error(); got != "no ***, ***, ***, ***" {
		t.Errorf("%q became %q", text, got)
	}
	if s.hide(nil) != nil {
		t.Error("nothing became an error")
	}
}
