package signing

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dsbuild/dsbuild/internal/lineerr"
	"github.com/dsbuild/dsbuild/internal/yamldoc"
)

// The syntax of values. Names appear in allowed_signers, where patterns and commas are special.
var (
	nameForm        = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@+-]{0,127}$`)
	versionForm     = regexp.MustCompile(`^\d{1,6}(\.\d{1,6}){0,4}$`)
	ageForm         = regexp.MustCompile(`^(\d{1,5})([hdw])$`)
	fingerprintForm = regexp.MustCompile(`^SHA256:[A-Za-z0-9+/]{43}$`)
)

const (
	maxSigners  = 200
	maxBuilders = 100

	maxAgeHours = 200 * 366 * 24 // a time.Duration counts 292 years
)

// reader parses a policy file and collects its errors.
type reader struct {
	*yamldoc.Reader
	seen map[string]lineerr.Position // names and keys of signers
}

// ReadPolicy reads the policy at path, or from in if path is "-". It reports all errors together, with their
// positions. A policy without a valid signer at the time now is an error, too.
func ReadPolicy(path string, in io.Reader, now time.Time) (*Policy, error) {
	r := &reader{&yamldoc.Reader{
		File:  path,
		Kind:  "policy",
		Least: `add at least "signers: [{name: ci, key: ssh-ed25519 AAAA…}]"`,
		Share: "write the values out",
	}, map[string]lineerr.Position{}}
	body, err := r.Load(path, in)
	if err != nil {
		return nil, err
	}
	p := &Policy{Builders: 1}
	if body != nil {
		r.readPolicy(p, body)
		if r.Err() == nil {
			// Check the keys against each other.
			for _, s := range p.Signers {
				if slices.Contains(p.Revoked, s.fingerprint()) {
					r.Add(r.seen["key "+s.Key], "remove the signer, or its key from revoked",
						"the key of signer %s is revoked", s.Name)
				}
			}
			if err := p.Trusts(now); err != nil && r.Err() == nil {
				r.Add(r.Place(body), "give each builder its own signer", "%s", fmt.Sprint(err))
			}
		}
	}
	if err := r.Err(); err != nil {
		return nil, err
	}
	return p, nil
}

// readPolicy reads the whole file.
func (r *reader) readPolicy(p *Policy, body yamldoc.Node) {
	given := map[string]bool{}
	known := []string{"signers", "revoked", "builders", "minimum", "sources", "max_age", "companions"}
	for _, pair := range r.Pairs(body, "the policy", known) {
		if given[pair.Key] {
			r.Add(pair.At, "", "duplicate %s", pair.Key)
		}
		given[pair.Key] = true
		switch pair.Key {
		case "signers":
			for _, n := range r.RequiredItems(pair.Node, "signers") {
				p.Signers = append(p.Signers, r.readSigner(n))
			}
			if len(p.Signers) > maxSigners {
				r.Add(pair.At, "let a CA sign certificates", "more than %d signers", maxSigners)
			}
		case "revoked":
			p.Revoked = r.readRevoked(pair.Node)
		case "builders":
			n, err := strconv.Atoi(r.text(pair.Node, "builders", nil, ""))
			if err != nil || n < 1 || n > maxBuilders {
				r.Add(r.Place(pair.Node), "", "builders must be a number from 1 to %d", maxBuilders)
			}
			p.Builders = n
		case "minimum":
			p.Minimum = r.text(pair.Node, "minimum", versionForm, "a version of DeepSpeed such as 0.19.8")
		case "sources":
			p.Sources = r.texts(pair.Node, "sources", regexp.MustCompile(`^[!-~]{1,300}$`), "a pattern without spaces such as pkg:pypi/deepspeed@*")
		case "max_age":
			p.MaxAge = r.readAge(pair.Node)
		case "companions":
			word := r.text(pair.Node, "companions", nil, "")
			if word != "refuse" && word != "accept" {
				r.Add(r.Place(pair.Node), "", "companions must be refuse or accept")
			}
			p.Companions = word == "accept"
		}
	}
	if !given["signers"] {
		r.Add(r.Place(body), r.Least, "the policy has no signers")
	}
}

// readSigner reads one trusted key.
func (r *reader) readSigner(n yamldoc.Node) Signer {
	var s Signer
	kinds, named := 0, false
	for _, p := range r.Pairs(n, "a signer", []string{"name", "key", "ca", "principals", "from", "until"}) {
		switch p.Key {
		case "name":
			named = true
			s.Name = r.text(p.Node, "name", nameForm, "letters, digits and . _ @ + -")
			r.once("name "+s.Name, "the name "+s.Name, p)
		case "key", "ca":
			kinds++
			s.CA = p.Key == "ca"
			if err := s.parseKey(r.text(p.Node, p.Key, nil, "")); err != nil {
				r.Add(r.Place(p.Node), "ssh-keygen writes one to a file with the suffix .pub", "%s %v", p.Key, err)
				continue
			}
			r.once("key "+s.Key, "this key", p)
		case "principals":
			s.Principals = r.texts(p.Node, "principals", nameForm, "a name of letters, digits and . _ @ + -")
		case "from":
			s.From = r.readTime(p)
		case "until":
			s.Until = r.readTime(p)
		}
	}
	switch { // mistakes that no single key has
	case !named:
		r.Add(r.Place(n), "", "missing signer name")
	case kinds != 1:
		r.Add(r.Place(n), "", "signer %s requires either key or ca", s.Name)
	case s.CA && len(s.Principals) == 0:
		r.Add(r.Place(n), "a CA may also sign certificates for logins; list the names that sign wheels",
			"signer %s is a CA without principals", s.Name)
	case !s.CA && len(s.Principals) > 0:
		r.Add(r.Place(n), "", "signer %s has principals, which only a ca has", s.Name)
	case !s.From.IsZero() && !s.Until.IsZero() && !s.From.Before(s.Until):
		r.Add(r.Place(n), "", "signer %s is never valid: until is not after from", s.Name)
	}
	return s
}

// once rejects a second signer with the same name or key, which would count twice.
func (r *reader) once(key, what string, p yamldoc.Pair) {
	if first, twice := r.seen[key]; twice {
		r.Add(r.Place(p.Node), "", "another signer has %s; first at %s", what, first)
		return
	}
	r.seen[key] = r.Place(p.Node)
}

// readRevoked reads keys or fingerprints.
func (r *reader) readRevoked(n yamldoc.Node) []string {
	var all []string
	for _, n := range r.Entries(n, "revoked") {
		text := r.text(n, "a revoked key", nil, "")
		var s Signer
		switch {
		case fingerprintForm.MatchString(text):
			all = append(all, text)
		case s.parseKey(text) == nil:
			all = append(all, s.fingerprint())
		default:
			r.Add(r.Place(n), "ssh-keygen -l prints the fingerprint of a key",
				"a revoked key must be a public key or its fingerprint (SHA256:…)")
		}
	}
	return all
}

// readTime reads a day (its beginning, UTC) or a point in time.
func (r *reader) readTime(p yamldoc.Pair) time.Time {
	text := r.text(p.Node, p.Key, nil, "")
	for _, form := range []string{time.DateOnly, time.RFC3339} {
		if t, err := time.Parse(form, text); err == nil && t.Unix() > 0 {
			return t
		}
	}
	r.Add(r.Place(p.Node), "", "%s must be a day (2026-12-31, from 0:00 UTC) or a time (2026-12-31T18:00:00Z)", p.Key)
	return time.Time{}
}

// readAge reads a duration such as 30d.
func (r *reader) readAge(n yamldoc.Node) time.Duration {
	m := ageForm.FindStringSubmatch(r.text(n, "max_age", nil, ""))
	if m != nil {
		hours, _ := strconv.Atoi(m[1]) // at most five digits
		hours *= map[string]int{"h": 1, "d": 24, "w": 168}[m[2]]
		if hours > 0 && hours <= maxAgeHours {
			return time.Duration(hours) * time.Hour
		}
	}
	r.Add(r.Place(n), "", "max_age must be hours, days or weeks, such as 12h, 30d or 8w")
	return 0
}

// texts reads a non-empty list of values.
func (r *reader) texts(n yamldoc.Node, what string, form *regexp.Regexp, want string) []string {
	var all []string
	for _, item := range r.Items(n, what) {
		text := r.text(item, "an entry of "+what, form, want)
		if slices.Contains(all, text) {
			r.Add(r.Place(item), "", "duplicate %s", lineerr.Clip(text))
		}
		all = append(all, text)
	}
	return all
}

// text reads a single-line value that matches form, if set. want describes form.
func (r *reader) text(n yamldoc.Node, what string, form *regexp.Regexp, want string) string {
	word, ok := r.Text(n, what)
	word = strings.TrimSpace(word)
	switch {
	case !ok:
	case word == "" || strings.ContainsAny(word, "\n\r\x00"):
		r.Add(r.Place(n), "", "%s must be one line of text", what)
	case form != nil && !form.MatchString(word):
		r.Add(r.Place(n), "", "%s must be %s", what, want)
	default:
		return word
	}
	return ""
}
