package rules_test

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "set the ceilings in language_test.go to the counts")

// A phrase is stilted English: text that matches re, unless what precedes the match ends in before, or what follows it
// begins with after. It is searched for only where one of keys occurs. The ceilings may only fall: the hits in comments,
// in strings of programs, and in pages.
type phrase struct {
	name                     string
	comments, strings, pages int
	keys, re                 string
	before, after            string
	write                    string // instead
}

// phrases are those that are almost always wrong here; those from refuse on are ordinary English, but overused.
// go test ./internal/rules -run TestLanguage -update sets the ceilings to the counts.
var phrases = []phrase{
	{"so-many", 3, 0, 0, "so ", `\bso (?:many|often|few)\b`, "", ` (?:as|that|other)`, "name the parameter"},
	{"so-many", 0, 0, 0, "so ", `\b(?:most|waits?|for|after|up to|within) so (?:long|much)\b`, "", ` as`, "name the parameter"},
	{"that-of", 10, 0, 0, "that of|those of", `\b(?:is|are|was|be|with|from|by|to|of|than|not|and|or|as|like|for|has|have|needs?|uses?|means|gets?) (?:that|those) of\b|(?:default:?|, |\(|: )(?:that|those) of\b`, "", "", "possessive, or repeat the noun"},
	{"the-one", 1, 0, 0, "one", `\bthe ones? (?:that|which|who|whose|for|of|with|before|beside|from|to)\b|\banother one\b|\bthe other one\b`, "", "", "repeat the noun"},
	{"rel-name", 0, 0, 0, "that the|which the", `\b(?:that|which) the (?:inventory|user|wheel|plan|caller|node|policy|table|file|configuration) (?:names|has|gives|lists|named|gave)\b`, `(?:means|proves|shows) `, "", "noun compound: the configured X"},
	{"beside", 22, 0, 0, "beside", `\bbeside\b`, "", "", "next to, alongside; besides, in addition to"},
	{"likewise", 0, 0, 0, "likewise", `\blikewise\b`, "", "", "also, same"},
	{"anew", 1, 0, 0, "anew", `\banew\b`, "", "", "again; re-"},
	{"lies-in", 6, 0, 0, "lie|lay|lying", `\b(?:lies|lie|lay|lying) (?:in|inside|outside|beside|next|below|above|there|within|where|on a|on the)\b`, "", "", "is in"},
	{"nobody", 0, 0, 0, "nobody|somebody|everybody|whoever", `\b(?:nobody|whoever|somebody|everybody)\b`, "", "", "passive; the user, the caller, another process"},
	{"tail-def", 14, 0, 0, "\"\"|nil|none|null|zero|0", `[;,] (?:""|nil|none|null|zero|\b0) (?:if|where|when|for|unless|means|is|accepts)\b|[;,] (?:""|nil|null|zero|0): `, "", "", `It returns "" if ...; zero means ...`},
	{"try-again", 1, 0, 0, "again|once more| try|tries up", `\b(?:tr(?:y|ies|ied)|ask(?:s|ed)?|dial(?:s|ed)?|probes?|sends?) (?:it |this |them |that |the \w+ )?(?:again|once more)\b|\bonce more\b|\b(?:earlier|next|first|another|second) try\b|\btries up to\b`, "", "", "retry, attempt"},
	{"passing", 0, 0, 0, "passing|pauses| of life", `\bpassing (?:error|reason|fault|failure)s?\b|\berror is passing\b|\bgrowing pauses\b|\bsigns? of life\b`, "", "", "transient; backoff; heartbeat"},
	{"go-on", 1, 0, 0, "goes on|go on|went on", `\b(?:goes|go|went) on\b`, "", ` (?:a|an|the|to|its|standard)\b`, "continue, resume"},
	{"vague-verb", 0, 0, 0, "says|tells|notes|gives|brings|knows", `^\s*[A-Za-z_.]+ (?:says|tells|notes|gives|brings|knows)\b`, "", "", "reports, records, returns, sends (first line of a Go comment)"},
	{"from-X-on", 0, 0, 0, " on", `\bfrom (?:[A-Z]\w+ )?[0-9][0-9.]* on\b`, "", "", "X or newer"},
	{"minor-of", 4, 0, 0, "minor|major", `\b(?:minor|major)s? of (?:torch|CUDA|Python|the)\b`, "", "", "torch minor version"},
	{"minor-of", 1, 0, 0, "minor|major", `\b(?:one|each|same|another|this) (?:minor|major)\b`, "", ` version| of (?:torch|CUDA|Python|the)\b`, "torch minor version"},
	{"judge", 0, 0, 0, "judg", `\bjudg(?:e|es|ed|ing|ement)\b`, "", "", "check against the policy"},
	{"bring", 6, 0, 0, "bring|brought", `\b(?:bring|brings|brought|bringing)\b`, "", "", "send, provide, include, ship"},
	{"put-back", 0, 0, 0, "put", `\bput(?:s|ting)? (?:it |them |\w+ )?back\b`, "", ` into the queue`, "roll back; restore"},
	{"put-back", 0, 0, 0, "back to", `\bgo(?:es|ing)? back to `, "", `Slurm`, "roll back; restore"},
	{"not-count", 0, 0, 0, "not count", `\b(?:do|does|did) not count\b`, "", ` (?:as|the|it|towards?)\b`, "is ignored; is treated as"},
	{"not-count", 1, 0, 0, "count", `\bcounts? as (?:none|such|met|invalid)\b`, "", "", "is ignored; is treated as"},
	{"ended-well", 0, 0, 0, "ended|end", `\bended well\b|\bended with status\b|\bcome to (?:its|an) end\b|\bruns? .{0,24}\bto (?:its|their) end\b`, "", "", "succeeded; exited with; completes"},
	{"no-noun", 2, 0, 0, "is no |are no ", `\b(?:is|are) no (?:file|folder|script|release|wheel|image|regular|plain|GPU|fault|mistake|lack|link|difference|error|address)\b`, `there `, "", "is not a"},
	{"there-already", 0, 0, 0, "there", `\b(?:is|are|was|were) there (?:already|before|too)\b|\bthat (?:is|was|are) there\b`, "", "", "already exists; existing"},
	{"control-node", 0, 0, 0, "runs dsbuild", `\bthe machine that runs dsbuild\b`, "", "", "control node"},
	{"side-by-side", 0, 0, 0, "side by side|one after", `\bside by side\b|\bone after the other\b`, "", "", "in parallel; one at a time"},
	{"headings", 0, 0, 0, "#", `^#+ (?:Do it|Read on|Every night|Look: |Prove: |By way of)`, "", "", "Usage, Documentation, Nightly builds ..."},
	{"refuse", 38, 12, 0, "refus", `\brefus(?:e|es|ed|al|als)\b`, "", "", "reject (input, node), deny (policy)"},
	{"leave-out", 4, 0, 0, " out", `\b(?:left|leaves?|leaving) (?:it |them |\w+ )?out\b`, "", "", "skip, exclude, omit"},
	{"own", 4, 2, 0, " own", `\bof (?:its|their|your|his) own\b`, "", "", "its own X"},
	{"whatever", 3, 0, 0, "whatever|however", `\bwhatever (?:the|it|its|they|reason|umask|else)\b|\bhowever (?:dsbuild|the|do|many|it)\b`, "", "", "regardless of"},
	{"dsbuild-verb", 4, 18, 2, "dsbuild ", `(?:^|[.;:,(] |\band |\bso |\bthen |\bif )dsbuild (?:[a-z]+s|does|has|is|can|may)\b`, "", "", "vary the subject: you, imperative, passive"},
}

// TestLanguage counts stilted phrases in comments, in strings with a space, and in the prose of pages.
func TestLanguage(t *testing.T) {
	var c counter
	for _, p := range phrases {
		c.re = append(c.re, regexp.MustCompile(p.re))
		c.unless = append(c.unless, [2]*regexp.Regexp{regexp.MustCompile(`(` + p.before + `)$`), regexp.MustCompile(`^(` + p.after + `)`)})
	}
	c.hits = make([][3][]string, len(phrases))
	if err := filepath.WalkDir("../..", c.readFile); err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("language_test.go")
	if err != nil {
		t.Fatal(err)
	}
	table := string(source)
	for i, p := range phrases {
		for column, most := range []int{p.comments, p.strings, p.pages} {
			switch found := c.hits[i][column]; {
			case len(found) > most && !*update:
				t.Errorf("%s: %d hits, allowed are %d; write: %s\n%s", p.name, len(found), most, p.write, strings.Join(found, "\n"))
			case len(found) < most && !*update:
				t.Errorf("%s: %d hits: lower the ceiling from %d (-update)", p.name, len(found), most)
			}
		}
		row := "\t{%q, %d, %d, %d, %q, "
		h := c.hits[i]
		table = strings.Replace(table, fmt.Sprintf(row, p.name, p.comments, p.strings, p.pages, p.keys),
			fmt.Sprintf(row, p.name, len(h[0]), len(h[1]), len(h[2]), p.keys), 1)
	}
	if *update {
		if err := os.WriteFile("language_test.go", []byte(table), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// The columns of a count.
const (
	comment = iota
	text
	page
)

// counter collects the hits of each phrase in each column.
type counter struct {
	re     []*regexp.Regexp
	unless [][2]*regexp.Regexp // before, after
	hits   [][3][]string
	at     string // file and line
}

// count counts the phrases in a text. first says that it begins a comment of whole lines in Go.
func (c *counter) count(column int, s string, first bool) {
	for i, p := range phrases {
		if p.name == "vague-verb" && !first || p.name == "headings" && column != page ||
			!slices.ContainsFunc(strings.Split(p.keys, "|"), func(key string) bool { return strings.Contains(s, key) }) {
			continue
		}
		for _, m := range c.re[i].FindAllStringIndex(s, -1) {
			if (p.before == "" || !c.unless[i][0].MatchString(s[:m[0]])) && (p.after == "" || !c.unless[i][1].MatchString(s[m[1]:])) {
				c.hits[i][column] = append(c.hits[i][column], c.at+": "+strings.TrimSpace(s))
			}
		}
	}
}

var (
	// unread are tests, generated pages, results and folders without prose.
	unread    = regexp.MustCompile(`(^|/)(testdata|\.git|\.test)/|_test\.go$|^internal/testkit/|^ci/results/|^docs/(commands|tables)\.md$|^(bin|dist)/`)
	goToken   = regexp.MustCompile("^(?:[^\"`']|'(?:\\\\.|[^'\\\\])+')*?(\"(?:\\\\.|[^\"\\\\])*\"|`[^`]*`|`|//.*)")
	token     = regexp.MustCompile(`^[^"'#]*("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|#.*)`)
	docstring = regexp.MustCompile(`^\s*(?:return )?("""|''')(.*)`)
	directive = regexp.MustCompile(`^//(?:go:|nolint)\S*(?: //)?`)
	notProse  = regexp.MustCompile(`^    \S|^\s*<!--`)
	code      = regexp.MustCompile("`[^`]*`")
	address   = regexp.MustCompile(`<!--.*?-->|\]\([^)]*\)`)
)

// readFile counts the phrases in a file, if it has prose.
func (c *counter) readFile(path string, d fs.DirEntry, err error) error {
	file, kind := filepath.ToSlash(strings.TrimPrefix(path, "../../")), filepath.Ext(path)
	switch {
	case err != nil:
		return err
	case d.IsDir() && unread.MatchString(file+"/"):
		return fs.SkipDir
	case d.IsDir() || unread.MatchString(file) || !slices.Contains([]string{".go", ".py", ".sh", ".md"}, kind):
		return nil
	}
	content, err := os.ReadFile(path)
	open, fenced, wasComment := "", false, false // open is what ends the raw string or docstring
	for i, s := range strings.Split(string(content), "\n") {
		c.at = fmt.Sprintf("%s:%d", file, i+1)
		full := strings.HasPrefix(strings.TrimSpace(s), "//")
		first := full && !wasComment
		wasComment = full
		if kind == ".md" {
			if strings.HasPrefix(strings.TrimSpace(s), "```") {
				fenced = !fenced
			} else if !fenced && !notProse.MatchString(s) {
				c.count(page, address.ReplaceAllString(code.ReplaceAllString(s, "X"), "]"), false)
			}
			continue
		}
		if m := docstring.FindStringSubmatch(s); open == "" && kind == ".py" && m != nil {
			open, s = m[1], m[2]
		}
		if open != "" {
			begin, rest, closed := strings.Cut(s, open)
			s = rest
			c.count(map[bool]int{true: text, false: comment}[kind == ".go"], begin, false)
			if closed {
				open = ""
			}
			if !closed || kind != ".go" {
				continue
			}
		}
		open = c.readLine(kind, s, first)
	}
	return err
}

// readLine counts the phrases in the strings and the comment of a line. It returns a backquote if a raw string of Go
// is open at the end.
func (c *counter) readLine(kind, s string, first bool) string {
	tokens := map[bool]*regexp.Regexp{true: goToken, false: token}[kind == ".go"]
	for m := tokens.FindStringSubmatch(s); m != nil; m = tokens.FindStringSubmatch(s) {
		s = s[len(m[0]):]
		switch found := m[1]; {
		case found == "`":
			c.count(text, s, false)
			return "`"
		case found[0] == '#':
			c.count(comment, found[1:], false)
		case found[0] == '/':
			if d := directive.FindString(found); d == "" {
				c.count(comment, found[2:], first)
			} else if strings.HasSuffix(d, " //") {
				c.count(comment, found[len(d):], false)
			}
		case kind != ".sh" && strings.Contains(found[1:len(found)-1], " "):
			c.count(text, found[1:len(found)-1], false)
		}
	}
	return ""
}
