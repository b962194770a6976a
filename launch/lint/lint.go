// Package lint finds problems in launch scripts that make a job hang, or succeed on
// only some of its nodes.
//
// Each of the [Rules] is a small function over the commands of a script (package
// script). Rules report only certain problems: they ignore values that are unknown
// until the script runs.
package lint

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/dsbuild/dsbuild/internal/lineerr"
	"github.com/dsbuild/dsbuild/launch/lint/script"
)

// Severity is the severity of a finding.
type Severity string

// The severities.
const (
	// Error means that the job hangs, or does not do what the user wants.
	Error Severity = "error"
	// Warning means that the job fails on some clusters, or occasionally.
	Warning Severity = "warning"
	// Note is a common habit that rarely affects a job.
	Note Severity = "note"
)

// Rule describes a known problem.
type Rule struct {
	// ID is the rule's name in findings, and in comments that silence the rule. It never
	// changes.
	ID       string   `json:"id"`
	Severity Severity `json:"severity"`
	// Title describes the problem in one line.
	Title string `json:"title"`
	// Why describes the consequence.
	Why string `json:"why"`
	// Fix describes how to correct the script.
	Fix string `json:"fix"`
}

// hit is a place where a rule found a problem.
type hit struct {
	at      int    // the byte
	message string // what is wrong, or "" for the rule's Title
	why     string // the consequence, or "" for the rule's Why
	fix     string // replaces the rule's Fix, if set
	// severity replaces the rule's, if set.
	severity Severity
}

// Finding is a problem in a file.
type Finding struct {
	Rule     string   `json:"rule"`
	Severity Severity `json:"severity"`
	lineerr.Position
	// Message describes the problem and the consequence.
	Message string `json:"message"`
	Fix     string `json:"fix"`
	// Excerpt is the line with a caret below the column.
	Excerpt string `json:"-"`
}

// syntaxError returns the error of text that is not a shell script, with its position.
func (f document) syntaxError(err error) error {
	var list lineerr.List
	position := lineerr.Position{File: f.file}
	hint := "use launch lint only for sh and bash scripts"
	if at := new(script.SyntaxError); errors.As(err, &at) && at.At >= 0 {
		list.Lines, position = f.lines, lineerr.PositionOf(f.file, f.text, at.At)
		if at.Bash {
			hint = "to check the syntax, run: bash -n FILE"
		}
	}
	list.Add(position, hint, "%s", err)
	return list.Err()
}

// Check returns the findings in a script, in the order of the file. launches reports
// whether the script contains commands to which the rules about jobs apply. The error for
// text that is not a shell script is a *lineerr.Error.
func Check(file string, r io.Reader) (all []Finding, launches bool, err error) {
	text, err := io.ReadAll(io.LimitReader(r, script.MaxSize+1))
	if err != nil {
		return nil, false, Unreadable(file, err)
	}
	// A byte order mark is not part of the script.
	text, marked := bytes.CutPrefix(text, []byte("\ufeff"))
	for i, size := 0, 0; i < len(text); i += size { // not UTF-8
		var r rune
		if r, size = utf8.DecodeRune(text[i:]); r == utf8.RuneError && size == 1 {
			text[i] = '?'
		}
	}
	f := document{file, text, strings.Split(string(text), "\n")}
	s, err := script.Read(text)
	if !bytes.HasPrefix(text, []byte("#!")) && otherLanguage.MatchString(file) {
		err = &script.SyntaxError{At: -1, Err: errors.New("not an sh or bash script: no #! line of a shell")}
	}
	if err != nil {
		return nil, false, f.syntaxError(err)
	}
	type place struct {
		rule string
		at   int
	}
	seen := map[place]bool{} // a variable's value may be used several times
	sub := &subject{Script: s, marked: marked, job: step{options: s.Batch}}
	if !s.Heterogeneous {
		sub.job = newStep(step{}, s.Batch, sub.isBatch())
	}

	for _, c := range s.Commands {
		if l := newLaunch(c); l != nil {
			sub.launches = append(sub.launches, l)
		}
	}
	check, ignored := checks(), ignoredRules(s)
	for _, rule := range Rules() {
		if ignored[rule.ID] {
			continue
		}
		for _, h := range check[rule.ID](sub) {
			if p := (place{rule.ID, h.at}); !seen[p] {
				seen[p] = true
				all = append(all, f.newFinding(rule, h))
			}
		}
	}
	launches = sub.isBatch() || len(sub.commandsNamed("srun", "sbatch", "salloc", "mpirun", "ssh")) > 0 ||
		slices.ContainsFunc(sub.Commands, startsTrainer)
	slices.SortStableFunc(all, func(a, b Finding) int {
		return cmp.Or(a.Position.Line-b.Position.Line, a.Position.Column-b.Position.Column, strings.Compare(a.Rule, b.Rule))
	})
	return all, launches, nil
}

// otherLanguage matches the names of files that are not sh or bash scripts, even if they parse as such.
var otherLanguage = regexp.MustCompile(
	`(?i)\.(ya?ml|json|toml|ini|md|py|ipynb|zsh|fish|t?csh)$|(^|/)(Dockerfile|Makefile)$`)

// Unreadable returns the error for a file that cannot be read.
func Unreadable(file string, err error) error {
	reason := err // without the file's name, which the position already has
	for inner := errors.Unwrap(reason); inner != nil; inner = errors.Unwrap(reason) {
		reason = inner
	}
	return &lineerr.Error{Cause: err, Problems: []lineerr.Problem{{
		Position: lineerr.Position{File: file},
		Message:  "cannot read the script: " + reason.Error(),
	}}}
}

// document is a file's text with its lines.
type document struct {
	file  string
	text  []byte
	lines []string
}

func (f document) newFinding(r Rule, h hit) Finding {
	says := cmp.Or(h.message, r.Title)
	found := Finding{
		Rule: r.ID, Severity: cmp.Or(h.severity, r.Severity), Position: lineerr.PositionOf(f.file, f.text, h.at),
		Message: says + ": " + cmp.Or(h.why, r.Why), Fix: cmp.Or(h.fix, r.Fix),
	}
	list := lineerr.List{Lines: f.lines}
	list.Add(found.Position, "", "%s", found.Message)
	found.Excerpt = list.Problems[0].Excerpt
	return found
}

// Summary counts the errors and warnings, "2 errors and 1 warning". It returns "" if there are none.
func Summary(all []Finding) string {
	count := map[Severity]int{}
	for _, f := range all {
		count[f.Severity]++
	}
	var parts []string
	for _, severity := range []Severity{Error, Warning} {
		if n := count[severity]; n > 0 {
			parts = append(parts, countOf(n, string(severity)))
		}
	}
	return strings.Join(parts, " and ")
}

func countOf(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	if strings.HasSuffix(what, "s") {
		what += "e" // processes
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// showWord formats a word of the script for a message.
func showWord(w script.Word) string { return lineerr.Clip(w.Text()) }
