package deploy

import "strings"

// FileLabel turns a node's name into a part of a file name.
func FileLabel(name string) string {
	s := strings.Map(func(r rune) rune {
		if r == '-' || r == '.' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '_'
	}, name)
	return s[:min(len(s), 64)]
}
