package connect

import (
	"regexp"
	"strings"

	"github.com/dsbuild/dsbuild/inventory/ansible"
)

// assignment matches a variable set by a shell line or by an argument of a command. A value may have
// several parts, quoted or not; a quote without an end reaches to the end of the text.
var assignment = regexp.MustCompile(`(?s)([A-Za-z_][A-Za-z0-9_]*)=` +
	`((?:"(?:[^"\\]|\\.)*(?:"|\\?$)|'[^']*(?:'|$)|\\.|[^\s"';&|\\])+)`)

// HideValues returns a shell line, or an argument of a command, without the values of the variables
// that it sets, because any may be a secret.
func HideValues(text string) string { return assignment.ReplaceAllString(text, "$1=[…]") }

// Assigned returns the name and the value of each variable that a shell line, or an argument of a
// command, sets.
func Assigned(text string) [][2]string {
	var all [][2]string
	for _, m := range assignment.FindAllStringSubmatch(text, -1) {
		name, value := m[1], strings.Trim(m[2], `"'`)
		if words, err := ansible.SplitWords(m[2]); err == nil && len(words) == 1 {
			value = words[0]
		}
		all = append(all, [2]string{name, value})
		if inner, rest, ok := strings.Cut(value, "="); ok { // --env=NAME=value
			all = append(all, [2]string{inner, rest})
		}
	}
	return all
}
