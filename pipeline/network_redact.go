package pipeline

import (
	"cmp"
	"io"
	"net/url"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/secrets"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// hidden replaces a secret.
const hidden = "***"

// Secrets returns the site's secrets, longest first: user names and passwords in URLs, tokens, and
// the values in a query.
func (n Network) Secrets() []string {
	var found []string
	add := func(secret string, least int) {
		if len(secret) >= least {
			found = append(found, secret)
		}
	}
	for _, value := range n.variables {
		for _, spelling := range loginSpellings(value) { // of the whole value: a password may have spaces
			add(spelling, secrets.Shortest)
		}
		for _, word := range strings.Fields(value) {
			address, attributes, _ := strings.Cut(word, "|") // as in CCACHE_REMOTE_STORAGE
			for attribute := range strings.SplitSeq(attributes, "|") {
				if name, v, ok := strings.Cut(attribute, "="); ok && slices.Contains([]string{"bearer-token", "header"}, name) {
					add(v, secrets.Shortest)
				}
			}
			for _, spelling := range loginSpellings(address) {
				add(spelling, secrets.Shortest)
			}
			if u, err := url.Parse(address); err == nil && u.Host != "" {
				add(u.RawQuery, secrets.Shortest)
			}
			add(secrets.Login(address), leastLogin(address))
		}
		add(secrets.Login(value), leastLogin(value))
	}
	slices.SortFunc(found, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	return slices.Compact(found)
}

// loginSpellings returns what a program may write of the login of a URL without the URL: the password, or a token
// alone, as it is there and decoded, and both as for a header.
func loginSpellings(address string) []string {
	spellings := secrets.Passwords(address)
	if user, password, both := strings.Cut(secrets.Login(address), ":"); both {
		spellings = append(spellings, secrets.Decoded(user)+":"+secrets.Decoded(password))
	}
	return spellings
}

// leastLogin is the minimum length of a URL's login to be hidden. With a colon it is 1, because such a text is part of no
// other word.
func leastLogin(address string) int {
	if strings.Contains(secrets.Login(address), ":") {
		return 1
	}
	return secrets.Shortest
}

// hider returns a replacer of the secrets in a text, or nil if there are none.
func (n Network) hider() *secrets.Hider {
	var h *secrets.Hider
	for _, secret := range n.Secrets() {
		if h == nil {
			h = &secrets.Hider{}
		}
		h.Add(secret, hidden)
	}
	return h
}

// Reporter forwards messages to rep, without the secrets.
func (n Network) Reporter(rep ui.Reporter) ui.Reporter {
	if h := n.hider(); h != nil {
		return ui.WithRewrite(rep, h.Hide)
	}
	return rep
}

// Log forwards lines to w, without the secrets. The caller must write complete lines.
func (n Network) Log(w io.Writer) io.Writer {
	if h := n.hider(); h != nil {
		return redactedLog{w, h}
	}
	return w
}

type redactedLog struct {
	w io.Writer
	h *secrets.Hider
}

func (l redactedLog) Write(p []byte) (int, error) {
	if _, err := io.WriteString(l.w, l.h.Hide(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Error returns err without secrets in its text; its kind and exit code stay.
func (n Network) Error(err error) error {
	h := n.hider()
	if err == nil || h == nil {
		return err
	}
	text, advice := err.Error(), fault.Hint(err)
	if h.Hide(text) == text && h.Hide(advice) == advice {
		return err
	}
	return &redactedError{err, h.Hide(text), h.Hide(advice)}
}

type redactedError struct {
	err        error
	text, hint string
}

func (e *redactedError) Error() string { return e.text }
func (e *redactedError) Unwrap() error { return e.err }
func (e *redactedError) Hint() string  { return e.hint }
