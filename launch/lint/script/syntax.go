package script

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// SyntaxError is the reason why a text is not a shell script.
type SyntaxError struct {
	At   int // the byte; -1: the text as a whole
	Err  error
	Bash bool // bash reports it in these words
}

func (e *SyntaxError) Error() string { return e.Err.Error() }

// Unwrap is the parser's error.
func (e *SyntaxError) Unwrap() error { return e.Err }

// unclosedQuote matches the parser's words for an open quote or expansion, with the character that closes it.
var unclosedQuote = regexp.MustCompile("without closing quote [`\"]\\$?([\"'`])|" +
	"without matching `(?:\\$\\{|\\$\\(|\\$?\\(\\(|[<>]\\()` with `(.)")

// newSyntaxError describes a parser's error in the words of bash.
func newSyntaxError(src *source, err error) *SyntaxError {
	pos, open := refusedAt(err)
	at, text := src.offset(pos), string(src.text)
	says, words := "syntax error: unexpected end of file", err.Error()
	closing := func(by string) string { return "unexpected EOF while looking for matching `" + by + "'" }
	switch m := unclosedQuote.FindStringSubmatch(words); {
	case m != nil:
		says = closing(m[1] + m[2])
	case open && strings.HasPrefix(text[at:], "(") && strings.HasSuffix(text[:at], "="): // an array
		says = closing(")")
	case strings.Contains(words, "parameter expansion"):
		if says = "bad substitution"; !strings.Contains(text[at:], "}") {
			says = closing("}")
		}
	case strings.Contains(words, "[[") || strings.Contains(words, "test operator") || strings.Contains(words, "complex expr"):
		says = "syntax error in conditional expression"
	case !open:
		var token string
		at, token = src.unexpectedToken(at)
		says = fmt.Sprintf("syntax error near unexpected token `%s'", token)
	}
	return &SyntaxError{At: src.placeOfByte(at), Err: errors.New(says), Bash: true}
}

// refusedAt returns the position of a parser's error, and whether more text could complete the script.
func refusedAt(err error) (pos syntax.Pos, open bool) {
	var parse syntax.ParseError
	var lang syntax.LangError // not of bash
	if errors.As(err, &lang) {
		return lang.Pos, false
	}
	errors.As(err, &parse)
	return parse.Pos, parse.Incomplete
}

// shellToken matches a token of the shell as bash names it.
var shellToken = regexp.MustCompile(`\A(?:\n|&&|\|\||;;&?|;&|<<-|<<<|<<|>>|>&|<&|&>>?|<>|>\||\|&|[;&|()<>]|` +
	`(?:\\(?s:.)|"(?:\\(?s:.)|[^"\\])*"|'[^']*'|[^\s;&|()<>"'\\])+)`)

// unexpectedToken returns the first token, from the line of a syntax error on, with which the text cannot be
// the beginning of a script.
func (s *source) unexpectedToken(from int) (at int, token string) {
	text := string(s.text)
	at = strings.LastIndexByte(text[:from], '\n') + 1
	var before, previous string
	for range 1000 { // each token costs a parse
		if token = shellToken.FindString(text[at:]); at == len(text) {
			break
		} else if token == "" {
			token = text[at : at+1] // a blank, or a quote without an end
		} else if at+len(token) > from {
			part := source{text: s.text[:at+len(token)]}
			if _, err := part.parseShell(); err != nil {
				if _, open := refusedAt(err); !open {
					break
				}
			}
		}
		if !isBlank(token[0]) || token == "\n" {
			before, previous = previous, token
		}
		at = min(at+len(token), len(text))
	}
	if previous == ";" && slices.Contains([]string{"if", "then", "else", "elif", "while", "until", "do"}, before) {
		token = previous // bash rejects the empty list in front of the word
	}
	if token == "\n" {
		token = "newline"
	}
	return min(at, max(len(text)-1, 0)), token
}
