package ui

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/rivo/uniseg"
)

// escapes are the control sequences of terminals, 7-bit and 8-bit: strings
// (OSC, DCS, APC, PM, SOS, up to BEL or ST, or cut off at the end of a line),
// CSI, and everything shorter.
var escapes = regexp.MustCompile(
	"(?:\x1b[\\]PX^_]|[\u0090\u0098\u009d\u009e\u009f])[^\x07\x1b\u009c\n]*(?:\x07|\x1b\\\\|\u009c)?" +
		"|(?:\x1b\\[|\u009b)[0-?]*[ -/]*[@-~]?" +
		"|\x1b[ -/]*[0-~]?")

// Clean makes the output of a node or a build safe to print. It drops escape sequences, control
// characters, and characters that reorder or hide text, but keeps newlines and tabs. A carriage
// return becomes a newline, so that it overwrites nothing.
func Clean(s string) string {
	if !needsCleaning(s) {
		return s
	}
	s = strings.ToValidUTF8(s, string(utf8.RuneError))
	s = escapes.ReplaceAllString(s, "")
	s = strings.ReplaceAll(s, "\r\n", "\n")
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\r':
			return '\n'
		case r == '\n' || r == '\t':
			return r
		case isControl(r):
			return -1
		}
		return r
	}, s)
}

// OneLine is Clean for a node's output within one of dsbuild's lines. The output must not look like
// separate lines.
func OneLine(s string) string { return strings.Join(strings.Fields(Clean(s)), " ") }

// Shorten cuts a text to at most most bytes and marks the cut.
func Shorten(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// ShortenMiddle cuts the middle out of a text of more than most bytes. The end of a long error
// reports the state of the node.
func ShortenMiddle(s string, most int) string {
	if len(s) <= most {
		return s
	}
	head, tail := s[:most*2/3], s[len(s)-most/3:]
	return strings.ToValidUTF8(head, "") + " […] " + strings.ToValidUTF8(tail, "")
}

// needsCleaning reports whether Clean has anything to do. Most text is plain ASCII.
func needsCleaning(s string) bool {
	for s != "" && (s[0] >= ' ' && s[0] < 0x7f || s[0] == '\n' || s[0] == '\t') {
		s = s[1:]
	}
	return !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool {
		return r != '\n' && r != '\t' && isControl(r)
	})
}

// isControl reports whether r controls the terminal or the layout instead of showing something:
// C0, C1, the invisible format characters (bidirectional overrides, zero-width marks, tags), the
// line separators, and blank letters. Many blank letters would push the following text to the
// start of the next line.
func isControl(r rune) bool {
	return unicode.IsControl(r) || r == '\u2800' ||
		unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Other_Default_Ignorable_Code_Point)
}

// cleanLine cleans text that must stay on one line.
func cleanLine(s string) string {
	s = Clean(s)
	if !strings.ContainsAny(s, "\n\t") {
		return s
	}
	return strings.NewReplacer("\n", " ", "\t", " ").Replace(strings.TrimRight(s, "\n"))
}

// truncateColumns cuts s to at most width columns of a terminal.
func truncateColumns(s string, width int) string {
	if uniseg.StringWidth(s) <= width {
		return s
	}
	var out strings.Builder
	used := 0
	for g := uniseg.NewGraphemes(s); g.Next(); {
		if used += g.Width(); used > width-3 {
			break
		}
		out.WriteString(g.Str())
	}
	return out.String() + "..."
}
