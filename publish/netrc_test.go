package publish

import (
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
	s.addLogin(login{"ci", "pass-word"})
	s.add("no") // too short: it would occur in any text
	err := s.hide(&statusError{where: "GET x", status: "401", detail: "no pass-word, no Y2k6cGFzcy13b3Jk"})
	if got := err.Error(); got != "GET x: it answers 401: no ***, no ***" {
		t.Error(got)
	}
	if s.hide(nil) != nil {
		t.Error("nothing became an error")
	}
}

func TestUploadURL(t *testing.T) {
	for url, ok := range map[string]bool{
		"https://uploads.github.com/repos/a/b/releases/1/assets{?name,label}": true,
		"https://api.github.com/upload":                                       true,
		"http://uploads.github.com/":                                          false,
		"https://uploads.example.com/":                                        false,
		"https://github.com/":                                                 false,
		"":                                                                    false,
	} {
		p := &github{}
		p.release.UploadURL = url
		if err := p.checkUploadURL("https://api.github.com"); (err == nil) != ok {
			t.Errorf("%s: %v", url, err)
		}
	}
	if sameDomain("company.com", "evil.com") || sameDomain("ghes", "evil") {
		t.Error("two companies share a domain")
	}
}
