package fleet

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode/utf16"

	"github.com/dsbuild/dsbuild/internal/connect"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
)

var (
	// login matches a user name and password in a URL. The password may contain an @ that is not
	// escaped.
	login = regexp.MustCompile(`(://)[^/\s]+@`)
	// private matches names of variables whose values are never shown, however short.
	private = regexp.MustCompile(`(?i)token|secret|passw|key|credential|auth`)
)

// secretsOf replaces the values of the variables that the inventory sets by the variables' names: a
// reader of the log does not need the values.
func secretsOf(h inventory.Host) *strings.Replacer {
	var values [][2]string // pairs of a hidden value and its placeholder
	hide := func(name, value string) {
		for _, part := range append(passwords(value), strings.Split(value, "\n")...) {
			if !hides(name, part) {
				continue
			}
			for _, spelling := range spellings(part) {
				values = append(values, [2]string{spelling, "[" + name + "]"})
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(h.Env)) {
		hide(name, h.Env[name])
	}
	for _, line := range append([]string{h.Setup}, h.ExecPrefix...) {
		for _, variable := range connect.Assigned(line) {
			hide(variable[0], variable[1])
		}
	}
	// The longest value first: otherwise a value that is the beginning of another would leave the
	// rest of it readable.
	slices.SortStableFunc(values, func(a, b [2]string) int { return cmp.Compare(len(b[0]), len(a[0])) })
	var pairs []string
	for _, v := range values {
		pairs = append(pairs, v[:]...)
	}
	return strings.NewReplacer(pairs...)
}

// passwords returns the password of a URL, as it is there and decoded: a program may show it without
// the URL.
func passwords(value string) []string {
	_, rest, _ := strings.Cut(value, "://")
	authority, _, _ := strings.Cut(rest, "/")
	at := strings.LastIndexByte(authority, '@')
	if at < 0 {
		return nil
	}
	user, password, both := strings.Cut(authority[:at], ":")
	if !both { // a token alone
		password = user
	}
	decoded, err := url.PathUnescape(password)
	if err != nil {
		decoded = password
	}
	return []string{password, decoded}
}

// spellings returns the ways in which a log may write a value: as it is, within a line, quoted for
// a shell, in a URL, and in the JSON of dsbuild and of the Python programs on nodes.
func spellings(value string) []string {
	all := []string{
		value, ui.Clean(value), ui.OneLine(value), strings.Trim(remote.Quote(value), "'"),
		url.PathEscape(value), url.QueryEscape(value), strings.ReplaceAll(url.QueryEscape(value), "+", "%20"),
	}
	var text strings.Builder
	enc := json.NewEncoder(&text)
	for _, escapeHTML := range []bool{true, false} {
		text.Reset()
		enc.SetEscapeHTML(escapeHTML)
		if err := enc.Encode(value); err == nil {
			inner := strings.TrimSuffix(text.String(), "\"\n")[1:]
			all = append(all, inner, asciiJSON(inner))
		}
	}
	return slices.DeleteFunc(all, func(s string) bool { return s == "" })
}

// asciiJSON escapes the characters of a JSON text that Python's json.dumps escapes beyond those that
// JSON demands.
func asciiJSON(text string) string {
	var out strings.Builder
	for _, r := range text {
		if r <= '~' {
			out.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&out, `\u%04x`, unit)
		}
	}
	return out.String()
}

// hides reports whether a value may be a secret. Paths and very short values stay: without them a
// log would be hard to read.
func hides(name, value string) bool {
	if private.MatchString(name) {
		return len(value) > 2
	}
	paths := true
	for part := range strings.SplitSeq(value, ":") {
		paths = paths && (part == "" || part[0] == '/')
	}
	return len(value) > 5 && !paths
}
