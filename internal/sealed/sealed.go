// Package sealed is what the HTML pages of ours have in common: each is a file by
// itself, which asks for nothing and runs nothing but its one script; and they look alike.
package sealed

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"strings"
)

//go:embed base.css
var base string

// Page is what a page carries, for its template.
type Page struct {
	Policy string       // its Content-Security-Policy
	Style  template.CSS // what all pages have in common, and its own
	Script template.JS  // "" for a page without
}

// New seals a page with a style and a script, nil for none, which are ours.
func New(style, script []byte) Page {
	all := base + "\n" + string(style)
	return Page{policy([]byte(all), script), template.CSS(all), template.JS(script)} //nolint:gosec // our own
}

// policy is the Content-Security-Policy of a page with one style and one script,
// which it allows by their hashes, and nothing else: no other script, no request. A
// page without a script may run none.
func policy(style, script []byte) string {
	scripts := "script-src 'none'"
	if script != nil {
		scripts = "script-src " + source(script)
	}
	return strings.Join([]string{
		"default-src 'none'",
		"style-src " + source(style),
		scripts,
		"base-uri 'none'",
		"form-action 'none'",
		"require-trusted-types-for 'script'", // no text becomes markup, by no mistake of the script's
		"trusted-types 'none'",
	}, "; ")
}

// source names a text of the page by its hash.
func source(text []byte) string {
	sum := sha256.Sum256(text)
	return fmt.Sprintf("'sha256-%s'", base64.StdEncoding.EncodeToString(sum[:]))
}
