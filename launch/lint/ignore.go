package lint

import (
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/diagnostic"
	"github.com/dsbuild/dsbuild/launch/lint/script"
)

// marker begins a comment that silences a rule in its file: "# dsbuild: ignore RULE".
const marker = "dsbuild: ignore"

// ignoredRules are the rules that a comment names.
func ignoredRules(comment string) []string {
	_, names, found := strings.Cut(comment, marker)
	if !found {
		return nil
	}
	names, _, _ = strings.Cut(names, "#")
	// Text in brackets or behind a dash is a reason.
	names, _, _ = strings.Cut(names, "(")
	names, _, _ = strings.Cut(names, " -")
	return strings.FieldsFunc(names, func(r rune) bool { return r == ' ' || r == ',' || r == '\t' || r == '\r' })
}

// allIgnored are the rules that the comments of a script silence.
func allIgnored(scripts []*script.Script) map[string]bool {
	all := map[string]bool{}
	for _, s := range scripts {
		for _, c := range s.Comments {
			for _, rule := range ignoredRules(c.Text) {
				all[rule] = true
			}
		}
	}
	return all
}

func unknownIgnores(s *subject) []hit {
	var known []string
	for _, r := range Rules() {
		known = append(known, r.ID)
	}
	var hits []hit
	for _, c := range s.Comments {
		for _, name := range ignoredRules(c.Text) {
			if slices.Contains(known, name) {
				continue
			}
			says := "no rule is called " + diagnostic.Clip(name)
			if near := diagnostic.Nearest(name, known); near != "" {
				says += " (did you mean " + near + "?)"
			}
			hits = append(hits, hit{at: c.At, says: says})
			break
		}
	}
	return hits
}
