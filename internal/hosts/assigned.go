package hosts

import (
	"regexp"
	"strings"
)

// assignment matches a variable set by a shell line or by an argument of a command.
var assignment = regexp.MustCompile(`([A-Za-z_][A-Za-z0-9_]*)=("[^"]*"|'[^']*'|[^\s"';&|]+)`)

// HideValues returns a shell line, or an argument of a command, without the values of the variables
// that it sets: any of them may be a secret.
func HideValues(text string) string { return assignment.ReplaceAllString(text, "$1=[…]") }

// Assigned returns the variables that a shell line, or an argument of a command, sets: pairs of a
// name and a value.
func Assigned(text string) [][2]string {
	var all [][2]string
	for _, m := range assignment.FindAllStringSubmatch(text, -1) {
		name, value := m[1], strings.Trim(m[2], `"'`)
		all = append(all, [2]string{name, value})
		if inner, rest, ok := strings.Cut(value, "="); ok { // --env=NAME=value
			all = append(all, [2]string{inner, rest})
		}
	}
	return all
}
