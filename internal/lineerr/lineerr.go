// Package lineerr collects the errors in a file and prints them together, each
// with its line and a caret below the column. Secrets in the lines are hidden.
package lineerr

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Position is a place in a file. Line and Column count from 1. If Line is 0, it
// is the file as a whole. If File is empty, there is no file.
type Position struct {
	File   string `json:"file"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
}

// PositionOf returns the position of a byte of a file's text. Columns count characters.
func PositionOf(file string, text []byte, offset int) Position {
	before := text[:min(max(offset, 0), len(text))]
	line := bytes.LastIndexByte(before, '\n') + 1
	return Position{File: file, Line: bytes.Count(before, []byte("\n")) + 1, Column: utf8.RuneCount(before[line:]) + 1}
}

// String returns file:line:column, without the unknown parts.
func (p Position) String() string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

// Problem is one error in a file.
type Problem struct {
	Position Position
	Message  string
	// Hint suggests the next step. It may be empty.
	Hint string
	// Excerpt is the line of the file with a caret below the place, or "".
	Excerpt string
}

// Error holds all errors in a file, in the order of the file.
type Error struct {
	Problems []Problem
	Cause    error // why the file could not be read, if so

	dropped int // problems beyond maxProblems
}

// Shown limits the printed problems. Problems holds all.
const Shown = 20

// Error lists the problems, each with its place in the file.
func (e *Error) Error() string {
	var out strings.Builder
	for i, p := range e.Problems {
		if i == Shown {
			fmt.Fprintf(&out, "and %d more problems\n", len(e.Problems)-i+e.dropped)
			break
		}
		if at := p.Position.String(); at != "" {
			out.WriteString(at + ": ")
		}
		out.WriteString(p.Message + "\n")
		if p.Excerpt != "" {
			out.WriteString(p.Excerpt + "\n")
		}
		// The program that prints the error also prints a single hint.
		if p.Hint != "" && len(e.Problems) > 1 {
			out.WriteString("  hint: " + p.Hint + "\n")
		}
	}
	return strings.TrimSuffix(out.String(), "\n")
}

// Hint returns the hint of the only problem. With several problems, the text of the error holds
// their hints.
func (e *Error) Hint() string {
	if len(e.Problems) == 1 {
		return e.Problems[0].Hint
	}
	return ""
}

// ExitCode returns the exit code of a wrong configuration.
func (e *Error) ExitCode() int { return 2 }

// Unwrap returns the reason why the file could not be read, if so.
func (e *Error) Unwrap() error { return e.Cause }

// List collects the errors in a file.
type List struct {
	Lines    []string // of the file, for the excerpts
	Problems []Problem

	dropped int
	shown   map[int]string // lines without their secrets, by number
}

// Limits on the cost of a file with many errors.
const (
	maxProblems = 10_000
	maxLine     = 10_000 // bytes of a line that is shown in part
)

// Add records an error at a place. It removes credentials from URLs in the message.
func (l *List) Add(at Position, hint, format string, args ...any) {
	if len(l.Problems) == maxProblems {
		l.dropped++
		return
	}
	p := Problem{Position: at, Message: HideCredentials(fmt.Sprintf(format, args...)), Hint: hint}
	if at.Line > 0 && at.Line <= len(l.Lines) && len(l.Lines[at.Line-1]) <= maxLine &&
		strings.TrimSpace(l.Lines[at.Line-1]) != "" {
		// A line without its secrets.
		line, known := l.shown[at.Line]
		if !known {
			if l.shown == nil {
				l.shown = map[int]string{}
			}
			line = hideSecrets(l.Lines[at.Line-1])
			l.shown[at.Line] = line
		}
		p.Excerpt = excerpt(line, at.Line, at.Column)
	}
	l.Problems = append(l.Problems, p)
}

// Err returns the recorded errors as an *Error, in the order of the file, or nil.
func (l *List) Err() error {
	if len(l.Problems) == 0 {
		return nil
	}
	slices.SortStableFunc(l.Problems, func(a, b Problem) int {
		if a.Position.Line != b.Position.Line {
			return a.Position.Line - b.Position.Line
		}
		return a.Position.Column - b.Position.Column
	})
	return &Error{Problems: l.Problems, dropped: l.dropped}
}

// excerptWidth bounds the part of a long line that is shown, in characters.
const excerptWidth = 100

// excerpt shows a line of the source with a caret below the column (in runes).
func excerpt(line string, number, column int) string {
	runes := []rune(strings.TrimRight(line, "\r\n"))
	at := min(max(column-1, 0), len(runes))
	lead, tail := "", ""
	if at > excerptWidth*3/4 {
		cut := at - excerptWidth/2
		runes, at, lead = runes[cut:], at-cut, "..."
	}
	if len(runes) > excerptWidth {
		runes, tail = runes[:excerptWidth], "..."
	}
	text := strings.ReplaceAll(string(runes), "\t", " ")
	margin := fmt.Sprintf("%5d | ", number)
	return margin + lead + text + tail + "\n" +
		strings.Repeat(" ", len(margin)-2) + "| " + strings.Repeat(" ", len(lead)+at) + "^"
}

// Clip shortens foreign text for a message.
func Clip(s string) string {
	const most = 60
	if runes := []rune(s); len(runes) > most {
		return string(runes[:most]) + "..."
	}
	return s
}
