package lint

import (
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/mistake"
	"github.com/dsbuild/dsbuild/launch/lint/script"
)

// marker begins a comment that silences rules: "# dsbuild: ignore RULE".
const marker = "dsbuild: ignore"

// ignores says where which rules are silent.
type ignores struct {
	file  *document
	lines map[int][]string // by line, from 0
}

// newIgnores reads the comments of a script. Behind a command a comment is
// about that command, on a line of its own about the next.
func newIgnores(f *document, s *script.Script) *ignores {
	g := &ignores{file: f, lines: map[int][]string{}}
	for _, one := range scripts(s) {
		for _, c := range one.Comments {
			names := ignored(c.Text)
			if len(names) == 0 {
				continue
			}
			target, own := f.line(c.At), f.ownLine(c.At)
			if own && !strings.HasPrefix(c.Text, "SBATCH") {
				target = f.nextLine(target)
			}
			g.add(target, target, names)
			for _, r := range one.Ranges {
				first, last := f.line(r.At), f.line(max(r.End-1, r.At))
				if own && first == target || !own && last == target {
					g.add(first, last, names)
				}
			}
		}
	}
	return g
}

func (g *ignores) add(first, last int, names []string) {
	for i := first; i <= last; i++ {
		g.lines[i] = append(g.lines[i], names...)
	}
}

func (g *ignores) covers(rule string, at int) bool {
	return slices.Contains(g.lines[g.file.line(at)], rule)
}

// ignored are the rules that a comment names.
func ignored(comment string) []string {
	_, names, found := strings.Cut(comment, marker)
	if !found {
		return nil
	}
	names, _, _ = strings.Cut(names, "#")
	// What is in brackets or behind a dash says why.
	names, _, _ = strings.Cut(names, "(")
	names, _, _ = strings.Cut(names, " -")
	return strings.FieldsFunc(names, func(r rune) bool { return r == ' ' || r == ',' || r == '\t' || r == '\r' })
}

// ownLine reports whether nothing but blanks stands before a place.
func (f *document) ownLine(at int) bool {
	return strings.TrimSpace(string(f.text[f.starts[f.line(at)]:at])) == ""
}

// nextLine is the next line that says something other than what is silent.
func (f *document) nextLine(n int) int {
	lines := f.lines()
	for n++; n < len(lines); n++ {
		text := strings.TrimSpace(lines[n])
		if text != "" && (!strings.HasPrefix(text, "#") || strings.HasPrefix(text, "#SBATCH")) {
			return n
		}
	}
	return n
}

func commentRules() []Rule {
	return []Rule{{
		ID: "unknown-ignore", Severity: Warning,
		Title: "a comment silences a rule that does not exist",
		Why:   "it has no effect",
		Fix:   "name a rule of `dsbuild launch lint --rules`.",
		check: unknownIgnores,
	}}
}

func unknownIgnores(s *subject) []hit {
	var known []string
	var hits []hit
	for _, c := range s.Comments {
		for _, name := range ignored(c.Text) {
			if known == nil {
				known = ruleIDs()
			}
			if slices.Contains(known, name) {
				continue
			}
			says := "no rule is called " + mistake.Clip(name)
			if near := mistake.Nearest(name, known); near != "" {
				says += " (did you mean " + near + "?)"
			}
			hits = append(hits, hit{at: c.At, says: says})
		}
	}
	return hits
}

func ruleIDs() []string {
	var ids []string
	for _, r := range Rules() {
		ids = append(ids, r.ID)
	}
	return ids
}
