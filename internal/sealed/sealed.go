// Package sealed says what a browser may do with a page of ours: a file by
// itself, which asks for nothing and runs nothing but its one script.
package sealed

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strings"
)

// Policy is the Content-Security-Policy of a page with one style and one script,
// which it allows by their hashes, and nothing else: no other script, no request. A
// page without a script may run none.
func Policy(style, script []byte) string {
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
