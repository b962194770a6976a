package fleet

import (
	"cmp"
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/remote"
)

// secrets replaces the values that a log must not show by the names of their variables.
type secrets struct{ words *strings.Replacer }

var (
	// assignment matches a variable set by a shell line or by an argument of a command.
	assignment = regexp.MustCompile(`([A-Za-z_][A-Za-z0-9_]*)=("[^"]*"|'[^']*'|[^\s"';&|]+)`)
	// login matches a user name and password in a URL.
	login = regexp.MustCompile(`(://)[^/\s@]+@`)
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
			sign := "[" + name + "]"
			values = append(values, [2]string{part, sign}, [2]string{strings.Trim(remote.Quote(part), "'"), sign})
			if text, err := json.Marshal(part); err == nil {
				values = append(values, [2]string{string(text[1 : len(text)-1]), sign})
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(l.host.Env)) {
		hide(name, l.host.Env[name])
	}
	for _, line := range append([]string{l.host.Setup}, l.host.ExecPrefix...) {
		for _, m := range assignment.FindAllStringSubmatch(line, -1) {
			hide(m[1], strings.Trim(m[2], `"'`))
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

// hide replaces secrets in a text.
func (s secrets) hide(text string) string {
	if strings.Contains(text, "://") {
		text = login.ReplaceAllString(text, "${1}[login]@")
	}
	return s.words.Replace(text)
}
