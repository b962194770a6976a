package pipeline

import (
	"cmp"
	"encoding/base64"
	"io"
	"net/url"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// hidden replaces a secret.
const hidden = "***"

// shortest is the least length of a secret that is replaced by itself: a shorter one would remove
// letters from every line. With its name before it, as in a URL, a secret is replaced whatever
// its length.
const shortest = 4

// Secrets returns the texts of the site that nobody may read, the longest first: user names and
// passwords in URLs, tokens, and the values in a query.
func (n Network) Secrets() []string {
	var found []string
	add := func(secret string, least int) {
		if len(secret) >= least {
			found = append(found, secret)
		}
	}
	for _, value := range n.variables {
		for _, spelling := range loginSpellings(value) { // of the whole value: a password may have spaces
			add(spelling, shortest)
		}
		for _, word := range strings.Fields(value) {
			address, attributes, _ := strings.Cut(word, "|") // as in CCACHE_REMOTE_STORAGE
			for attribute := range strings.SplitSeq(attributes, "|") {
				if name, v, ok := strings.Cut(attribute, "="); ok && slices.Contains([]string{"bearer-token", "header"}, name) {
					add(v, 1)
				}
			}
			for _, spelling := range loginSpellings(address) {
				add(spelling, shortest)
			}
			if u, err := url.Parse(address); err == nil && u.Host != "" {
				add(u.RawQuery, shortest)
			}
			add(rawUser(address), 1)
		}
		add(rawUser(value), 1)
	}
	slices.SortFunc(found, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	return slices.Compact(found)
}

// loginSpellings returns the ways in which a program may write the login of a URL without the URL: the
// password, or a token alone, as it is there, decoded and encoded anew.
func loginSpellings(address string) []string {
	raw := rawUser(address)
	name, password, both := strings.Cut(raw, ":")
	if !both {
		return []string{raw}
	}
	decoded, err := url.PathUnescape(password)
	if err != nil {
		decoded = password
	}
	user, err := url.PathUnescape(name)
	if err != nil {
		user = name
	}
	return []string{
		password, decoded,
		url.PathEscape(decoded), url.QueryEscape(decoded), strings.ReplaceAll(url.QueryEscape(decoded), "+", "%20"),
		url.UserPassword(user, decoded).String(),
		user + ":" + decoded, base64.StdEncoding.EncodeToString([]byte(user + ":" + decoded)),
	}
}

// rawUser returns the text before the @ of a URL, unchanged.
func rawUser(address string) string {
	_, rest, ok := strings.Cut(address, "://")
	if !ok {
		return ""
	}
	authority, _, _ := strings.Cut(rest, "/")
	i := strings.LastIndexByte(authority, '@')
	if i < 0 {
		return ""
	}
	return authority[:i]
}

// secretReplacer replaces the secrets in a text; nil if there are none.
func (n Network) secretReplacer() *strings.Replacer {
	var pairs []string
	for _, secret := range n.Secrets() {
		pairs = append(pairs, secret, hidden)
	}
	if len(pairs) == 0 {
		return nil
	}
	return strings.NewReplacer(pairs...)
}

// Reporter passes messages on to rep, without the secrets.
func (n Network) Reporter(rep ui.Reporter) ui.Reporter {
	if r := n.secretReplacer(); r != nil {
		return ui.WithRewrite(rep, r.Replace)
	}
	return rep
}

// Log passes lines on to w, without the secrets. The caller must write whole lines.
func (n Network) Log(w io.Writer) io.Writer {
	if r := n.secretReplacer(); r != nil {
		return redactedLog{w, r}
	}
	return w
}

type redactedLog struct {
	w io.Writer
	r *strings.Replacer
}

func (l redactedLog) Write(p []byte) (int, error) {
	if _, err := l.r.WriteString(l.w, string(p)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Error returns err without secrets in its text; its kind and exit code stay.
func (n Network) Error(err error) error {
	r := n.secretReplacer()
	if err == nil || r == nil {
		return err
	}
	text, advice := err.Error(), fault.Hint(err)
	if r.Replace(text) == text && r.Replace(advice) == advice {
		return err
	}
	return &redactedError{err, r.Replace(text), r.Replace(advice)}
}

type redactedError struct {
	err        error
	text, hint string
}

func (e *redactedError) Error() string { return e.text }
func (e *redactedError) Unwrap() error { return e.err }
func (e *redactedError) Hint() string  { return e.hint }
