package fleet

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode/utf16"

	"github.com/dsbuild/dsbuild/internal/hosts"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// secrets replaces the values that a log must not show by the names of their variables.
type secrets struct{ words *strings.Replacer }

var (
	// login matches a user name and password in a URL. The password may contain an @ that is not
	// escaped.
	login = regexp.MustCompile(`(://)[^/\s]+@`)
	// private matches names of variables whose values are never shown, however short.
	private = regexp.MustCompile(`(?i)token|secret|passw|key|credential|auth`)
)

// secrets collects the values of the variables that the inventory sets: a reader of the log does
// not need them.
func (l *Log) secrets() secrets {
	var values [][2]string // pairs of a hidden value and its placeholder
	hide := func(name, value string) {
		for part := range strings.SplitSeq(value, "\n") {
			if !hides(name, part) {
				continue
			}
			for _, spelling := range spellings(part) {
				values = append(values, [2]string{spelling, "[" + name + "]"})
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(l.host.Env)) {
		hide(name, l.host.Env[name])
	}
	for _, line := range append([]string{l.host.Setup}, l.host.ExecPrefix...) {
		for _, variable := range hosts.Assigned(line) {
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
	return secrets{strings.NewReplacer(pairs...)}
}

// spellings returns the ways in which a log may write a value: as it is, within a line, quoted for
// a shell, and in the JSON of dsbuild and of the Python programs on nodes.
func spellings(value string) []string {
	all := []string{value, ui.OneLine(value), strings.Trim(remote.Quote(value), "'")}
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

// hide replaces secrets in a text. Whoever cuts a text hides its secrets before: the part of a
// secret that a cut leaves would be readable.
func (l *Log) hide(text string) string {
	l.once.Do(func() { l.hidden = l.secrets() })
	return l.hidden.hide(text)
}

// hide replaces secrets in a text.
func (s secrets) hide(text string) string {
	if strings.Contains(text, "://") {
		text = login.ReplaceAllString(text, "${1}[login]@")
	}
	return s.words.Replace(text)
}
