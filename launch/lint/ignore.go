package lint

import (
	"strings"

	"github.com/dsbuild/dsbuild/launch/lint/script"
)

// marker begins a comment that silences a rule in its file: "# dsbuild: ignore RULE".
const marker = "dsbuild: ignore"

// ignoredRules returns the rules silenced by a script's comments.
func ignoredRules(s *script.Script) map[string]bool {
	all := map[string]bool{}
	for _, c := range s.Comments {
		_, names, _ := strings.Cut(c.Text, marker)
		names, _, _ = strings.Cut(names, "#")
		// Text in parentheses or after a dash is a reason.
		names, _, _ = strings.Cut(names, "(")
		names, _, _ = strings.Cut(names, " -")
		between := func(r rune) bool { return r == ' ' || r == ',' || r == '\t' || r == '\r' }
		for _, name := range strings.FieldsFunc(names, between) {
			all[name] = true
		}
	}
	return all
}
