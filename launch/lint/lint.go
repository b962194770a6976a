// Package lint finds the mistakes in launch scripts that make a job hang, or
// succeed on a part of its nodes.
//
// [Rules] are what it knows; each is a small function over what a script does
// (package script). A rule speaks only where it is sure: what depends on the
// run is passed over in silence.
package lint

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/dsbuild/dsbuild/internal/mistake"
	"github.com/dsbuild/dsbuild/launch/lint/script"
)

// Severity says how bad a finding is.
type Severity string

// The severities.
const (
	// Error is for what hangs, or does something else than what was asked.
	Error Severity = "error"
	// Warning is for what goes wrong on some clusters, or some day.
	Warning Severity = "warning"
)

// Rule is a mistake that is looked for.
type Rule struct {
	// ID is its name in findings and in comments that silence it. It is never
	// changed.
	ID       string   `json:"id"`
	Severity Severity `json:"severity"`
	// Title is what is wrong, in one line.
	Title string `json:"title"`
	// Why is what happens.
	Why string `json:"why"`
	// Fix is what to write instead.
	Fix string `json:"fix"`

	check func(*subject) []hit
}

// Rules are all rules, by family.
func Rules() []Rule {
	return slices.Concat(rankRules(), startRules(), masterRules(), rendezvousRules(), variableRules(), slurmRules(), networkRules(), containerRules(), jaxRules(), buildRules(), commentRules())
}

// hit is where a rule has found its mistake.
type hit struct {
	at   int    // the byte
	says string // what is there, "" for the rule's title
	why  string // what happens, "" for the rule's
	// severity is set where this one is less than the rule's.
	severity Severity
}

// Finding is a mistake in a file.
type Finding struct {
	Rule     string
	Severity Severity
	Position mistake.Position
	// Message is what is wrong there, and what happens.
	Message string
	Fix     string
	// Excerpt is the line with a caret below the place.
	Excerpt string
}

// Check reads a script and returns what is wrong with it, in the order of the
// file. Where it is no shell script the error is a *mistake.Error.
func Check(file string, r io.Reader) ([]Finding, error) {
	text, err := io.ReadAll(io.LimitReader(r, script.MaxSize+1))
	if err != nil {
		return nil, unreadable(file, err)
	}
	// A mark of the byte order is none of the shell's.
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	f := &document{file: file, text: text, starts: lineStarts(text)}
	s, err := script.Read(text)
	if err != nil {
		return nil, f.syntax(err)
	}
	var all []Finding
	silenced := newIgnores(f, s)
	for _, one := range scripts(s) {
		sub := newSubject(one)
		for _, rule := range Rules() {
			for _, h := range rule.check(sub) {
				if !silenced.covers(rule.ID, h.at) {
					all = append(all, f.finding(rule, h))
				}
			}
		}
	}
	return ordered(all), nil
}

// Unreadable is the error for a file that cannot be opened.
func Unreadable(file string, err error) error { return unreadable(file, err) }

func unreadable(file string, err error) error {
	return &mistake.Error{Cause: err, Problems: []mistake.Problem{{
		Position: mistake.Position{File: file},
		Message:  "cannot read the script: " + reason(err),
	}}}
}

// reason leaves out the file's name, which stands in front already.
func reason(err error) string {
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(inner) {
		err = inner
	}
	return err.Error()
}

// scripts are a script and those in its here-documents.
func scripts(s *script.Script) []*script.Script {
	all := []*script.Script{s}
	for _, inner := range s.Inner {
		all = append(all, scripts(inner)...)
	}
	return all
}

// ordered sorts findings by place and drops those made twice: a function may
// be called from several places.
func ordered(all []Finding) []Finding {
	slices.SortStableFunc(all, func(a, b Finding) int {
		return cmp.Or(a.Position.Line-b.Position.Line, a.Position.Column-b.Position.Column, strings.Compare(a.Rule, b.Rule))
	})
	return slices.CompactFunc(all, func(a, b Finding) bool { return a.Rule == b.Rule && a.Position == b.Position })
}

// document is a file's text with its lines.
type document struct {
	file   string
	text   []byte
	starts []int // of the lines
}

func lineStarts(text []byte) []int {
	starts := []int{0}
	for i, b := range text {
		if b == '\n' {
			starts = append(starts, i+1)
		}
	}
	return starts
}

// line is the number of the line with a byte, from 0.
func (f *document) line(at int) int {
	i, found := slices.BinarySearch(f.starts, at)
	if !found {
		i--
	}
	return max(i, 0)
}

// position is that of a byte; columns are counted in characters.
func (f *document) position(at int) mistake.Position {
	at = min(max(at, 0), len(f.text))
	n := f.line(at)
	return mistake.Position{File: f.file, Line: n + 1, Column: utf8.RuneCount(f.text[f.starts[n]:at]) + 1}
}

// lines is for excerpts.
func (f *document) lines() []string { return strings.Split(string(f.text), "\n") }

func (f *document) finding(r Rule, h hit) Finding {
	says := cmp.Or(h.says, r.Title)
	found := Finding{Rule: r.ID, Severity: cmp.Or(h.severity, r.Severity), Position: f.position(h.at), Message: says + ": " + cmp.Or(h.why, r.Why), Fix: r.Fix}
	list := mistake.List{Lines: f.lines()}
	list.Add(found.Position, "", "%s", found.Message)
	found.Excerpt = list.Problems[0].Excerpt
	return found
}

// syntax is the error for what is no shell script.
func (f *document) syntax(err error) error {
	var at *script.SyntaxError
	list := mistake.List{Lines: f.lines()}
	position := mistake.Position{File: f.file}
	if errors.As(err, &at) {
		position = f.position(at.At)
	}
	list.Add(position, "only scripts of sh and bash are read", "%s", err)
	return list.Err()
}

// Summary counts findings: "2 errors and 1 warning".
func Summary(all []Finding) string {
	errs, warnings := 0, 0
	for _, f := range all {
		if f.Severity == Error {
			errs++
		} else {
			warnings++
		}
	}
	var parts []string
	if errs > 0 {
		parts = append(parts, count(errs, "error"))
	}
	if warnings > 0 {
		parts = append(parts, count(warnings, "warning"))
	}
	return strings.Join(parts, " and ")
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// shown is a word of the script as a message shows it.
func shown(w script.Word) string { return mistake.Clip(w.Text()) }
