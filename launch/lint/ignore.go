package lint

import (
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/diagnostic"
	"github.com/dsbuild/dsbuild/launch/lint/script"
)

// marker begins a comment that silences rules: "# dsbuild: ignore RULE".
const marker = "dsbuild: ignore"

// ignores holds the silenced rules by line.
type ignores struct {
	file  *document
	lines map[int][]string // by line, from 0
}

// newIgnores reads the comments of a script. A comment behind a command applies to that
// command; a comment on its own line applies to the next command.
func newIgnores(f *document, s *script.Script) *ignores {
	g := &ignores{file: f, lines: map[int][]string{}}
	for _, one := range withInnerScripts(s) {
		firstOf, lastOf := f.commandLines(one.Ranges)
		for _, c := range one.Comments {
			names := ignoredRules(c.Text)
			if len(names) == 0 {
				continue
			}
			target, own := f.lineNumber(c.At), f.ownLine(c.At)
			if own && !strings.HasPrefix(c.Text, "SBATCH") {
				target = f.nextLine(target)
			}
			first, last := target, target
			if line, found := lastOf[target]; found && own {
				last = line
			}
			if line, found := firstOf[target]; found && !own {
				first = line
			}
			for i := first; i <= last; i++ {
				g.lines[i] = append(g.lines[i], names...)
			}
		}
	}
	return g
}

// commandLines returns the first line of the longest command that ends in a line, and
// the last line of the longest that begins there.
func (f *document) commandLines(ranges []script.Range) (firstOf, lastOf map[int]int) {
	firstOf, lastOf = map[int]int{}, map[int]int{}
	for _, r := range ranges {
		first, last := f.lineNumber(r.At), f.lineNumber(max(r.End-1, r.At))
		if line, found := firstOf[last]; !found || first < line {
			firstOf[last] = first
		}
		lastOf[first] = max(lastOf[first], last)
	}
	return firstOf, lastOf
}

func (g *ignores) isIgnored(rule string, at int) bool {
	return slices.Contains(g.lines[g.file.lineNumber(at)], rule)
}

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

// ownLine reports whether only blanks precede a place on its line.
func (f *document) ownLine(at int) bool {
	return strings.TrimSpace(string(f.text[f.starts[f.lineNumber(at)]:at])) == ""
}

// nextLine returns the next line that is neither empty nor a comment.
func (f *document) nextLine(n int) int {
	for n++; n < len(f.lines); n++ {
		text := strings.TrimSpace(f.lines[n])
		if text != "" && (!strings.HasPrefix(text, "#") || strings.HasPrefix(text, "#SBATCH")) {
			return n
		}
	}
	return n
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
