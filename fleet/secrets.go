package fleet

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/connect"
	"github.com/dsbuild/dsbuild/internal/secrets"
	"github.com/dsbuild/dsbuild/inventory"
)

var (
	// login matches a user name and password in a URL. The password may contain an @ that is not
	// escaped.
	login = regexp.MustCompile(`(://)[^/\s]+@`)
	// private matches names of variables whose values are never shown, however short.
	private = regexp.MustCompile(`(?i)token|secret|passw|key|credential|auth`)
)

// secretsOf hides the values of the variables that the inventory sets behind the variables' names: a reader of the log
// does not need the values. With onlyPrivate it hides those that their names call secret, and passwords in URLs.
func secretsOf(h inventory.Host, onlyPrivate bool) *secrets.Hider {
	hider := &secrets.Hider{}
	hide := func(name, value string) {
		parts := secrets.Passwords(value)
		if !onlyPrivate || private.MatchString(name) {
			parts = append(parts, strings.Split(value, "\n")...)
		}
		for _, part := range parts {
			if hides(name, part) {
				hider.Add(part, "["+name+"]")
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
	return hider
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
