package lineerr

import (
	"regexp"
	"slices"
	"strings"
)

var (
	// userinfo matches the user name and the password of a URL. A password may contain an unescaped
	// slash.
	userinfo = regexp.MustCompile(`://([^\s@/]*:\S*|[^\s@/]*)@`)
	// query matches the query of a URL, which may hold a token.
	query = regexp.MustCompile(`(://[^\s'"?]*)\?[^\s'"]*`)
	// secret matches a setting with its value if its name shows that the value is secret.
	secret = regexp.MustCompile(`(?i)(\w*(?:pass|secret|token|credential|api_?key|access_?key|private_key)\w*` +
		`(?:\\?["'])?\s*[=:]\s*)(\\?"[^"]*"?|'[^']*'?|\S+)`)
)

// HideCredentials removes user names, passwords and queries from the URLs in a text.
func HideCredentials(text string) string {
	return query.ReplaceAllString(userinfo.ReplaceAllString(text, "://"), "$1")
}

// hideSecrets returns a line with stars in place of secrets: the credentials in URLs, and the
// values of settings with such a name. The columns stay.
func hideSecrets(line string) string {
	for _, m := range slices.Backward(secret.FindAllStringSubmatchIndex(line, -1)) {
		if !strings.Contains(strings.ToLower(line[m[2]:m[3]]), "_file") {
			line = withStars(line, m[4], m[5])
		}
	}
	for _, m := range slices.Backward(userinfo.FindAllStringSubmatchIndex(line, -1)) {
		line = withStars(line, m[2], m[3])
	}
	return line
}

// withStars replaces the characters of line[from:to].
func withStars(line string, from, to int) string {
	return line[:from] + strings.Repeat("*", len([]rune(line[from:to]))) + line[to:]
}
