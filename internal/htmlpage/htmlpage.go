// Package htmlpage has the common style and the security policy of the HTML pages
// that dsbuild writes: each is a single file, loads nothing, and runs nothing but
// its one script.
package htmlpage

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

// Page holds the policy, style and script of a page, for its template.
type Page struct {
	Policy string       // its Content-Security-Policy
	Style  template.CSS // the common style, then that of the page
	Script template.JS  // "" for a page without
}

// New returns a page with a style and a script (nil for none). Both must be
// dsbuild's own text.
func New(style, script []byte) Page {
	all := base + "\n" + string(style)
	return Page{policy([]byte(all), script), template.CSS(all), template.JS(script)} //nolint:gosec // our own
}

// policy returns the Content-Security-Policy of a page. It allows the style and the
// script by their hashes, and nothing else: no other script, no request.
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
		"require-trusted-types-for 'script'", // no text becomes markup, even after a mistake in the script
		"trusted-types 'none'",
	}, "; ")
}

// source names a text of the page by its hash.
func source(text []byte) string {
	sum := sha256.Sum256(text)
	return fmt.Sprintf("'sha256-%s'", base64.StdEncoding.EncodeToString(sum[:]))
}
