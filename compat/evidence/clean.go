package evidence

import (
	"errors"
	"fmt"
	"strings"
)

// newline replaces a line break in a raw string, so that each line of a cleaned text is one line of tokens.
const newline = "\x00"

// clean replaces each comment of a text by a space, and joins lines that end with a backslash.
func clean(text string) (string, error) {
	if len(text) > maxFile {
		return "", errors.New("too large")
	}
	if strings.Contains(text, newline) {
		return "", errors.New("not a text")
	}
	text = strings.ReplaceAll(text, "\r\n", "\n")
	var out strings.Builder
	for i := 0; i < len(text); {
		rest := text[i:]
		switch {
		case rest[0] == '\\' && spliced(rest) > 0:
			i += spliced(rest)
		case strings.HasPrefix(rest, "//"):
			for i < len(text) && text[i] != '\n' {
				i += max(1, spliced(text[i:]))
			}
		case strings.HasPrefix(rest, "/*"):
			end := strings.Index(rest[2:], "*/")
			if end < 0 {
				return "", fmt.Errorf("unterminated comment in line %d", lineAt(text, i))
			}
			out.WriteByte(' ')
			i += end + 4
		case rest[0] == '"' && isRaw(text[:i]):
			n := rawLength(rest)
			if n == 0 {
				return "", fmt.Errorf("unterminated raw string in line %d", lineAt(text, i))
			}
			out.WriteString(strings.ReplaceAll(rest[:n], "\n", newline))
			i += n
		case rest[0] == '"' || rest[0] == '\'' && !isSeparator(text[:i]):
			n := quotedLength(rest)
			if n == 0 && rest[0] == '"' {
				return "", fmt.Errorf("unterminated string in line %d", lineAt(text, i))
			}
			n = max(n, 1) // an apostrophe, as in #error don't
			for part := rest[:n]; part != ""; {
				if skip := spliced(part); skip > 0 {
					part = part[skip:]
					continue
				}
				out.WriteByte(part[0])
				part = part[1:]
			}
			i += n
		default:
			out.WriteByte(rest[0])
			i++
		}
	}
	return out.String(), nil
}

func lineAt(text string, i int) int { return 1 + strings.Count(text[:i], "\n") }

// spliced returns the length of a line continuation: a backslash, the spaces that gcc allows, and the line break. It
// returns 0 for other text.
func spliced(text string) int {
	if text[0] != '\\' {
		return 0
	}
	n := 1
	for n < len(text) && (text[n] == ' ' || text[n] == '\t') {
		n++
	}
	if n < len(text) && text[n] == '\n' {
		return n + 1
	}
	return 0
}

// lastWord returns the identifier or number at the end of a text.
func lastWord(text string) string {
	i := len(text)
	for i > 0 && isWord(text[i-1]) {
		i--
	}
	return text[i:]
}

// isRaw reports whether a quotation mark after the text begins a raw string.
func isRaw(before string) bool {
	switch lastWord(before) {
	case "R", "LR", "uR", "UR", "u8R":
		return true
	}
	return false
}

// isSeparator reports whether an apostrophe after the text is part of a number: 1'000.
func isSeparator(before string) bool {
	word := lastWord(before)
	return word != "" && word[0] >= '0' && word[0] <= '9'
}

// rawLength returns the length of a raw string, from its quotation mark. It returns 0 if the string does not end.
func rawLength(text string) int {
	open := strings.IndexByte(text, '(')
	if open < 1 || open > 17 || strings.ContainsAny(text[1:open], " \t\n\\)\""+newline) {
		return 0
	}
	end := ")" + text[1:open] + `"`
	at := strings.Index(text[open:], end)
	if at < 0 {
		return 0
	}
	return open + at + len(end)
}

// quotedLength returns the length of a string or a character, with its quotation marks. It returns 0 if
// that does not end in its line.
func quotedLength(text string) int {
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case text[0]:
			return i + 1
		case '\n':
			return 0
		case '\\':
			i += max(1, spliced(text[i:])-1)
		}
	}
	return 0
}

func isWord(c byte) bool {
	return c == '_' || c == '$' || c >= 0x80 || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// lex splits a line of a cleaned text into tokens.
func lex(line string) []string {
	var out []string
	for i := 0; i < len(line); {
		if strings.IndexByte(" \t\r\v\f", line[i]) >= 0 {
			i++
			continue
		}
		n := tokenLength(line[i:])
		out = append(out, line[i:i+n])
		i += n
	}
	return out
}

// tokenLength returns the length of the first token of a text.
func tokenLength(text string) int {
	digit := func(c byte) bool { return c >= '0' && c <= '9' }
	n := 0
	switch {
	case digit(text[0]), text[0] == '.' && len(text) > 1 && digit(text[1]):
		for n++; n < len(text); n++ {
			exponent := strings.IndexByte("eEpP", text[n-1]) >= 0 && (text[n] == '+' || text[n] == '-')
			if !isWord(text[n]) && text[n] != '.' && text[n] != '\'' && !exponent {
				break
			}
		}
		return n
	case isWord(text[0]):
		for n < len(text) && isWord(text[n]) {
			n++
		}
		if n == len(text) || text[n] != '"' && text[n] != '\'' || strings.Trim(text[:n], "LuUR8") != "" {
			return n
		}
	}
	if text[n] == '"' || text[n] == '\'' {
		length := 0
		if text[n] == '"' && isRaw(text[:n]) {
			length = rawLength(text[n:])
		} else {
			length = quotedLength(text[n:])
		}
		for n += max(1, length); n < len(text) && length > 0 && isWord(text[n]); n++ { // the suffix of a literal
		}
		return n
	}
	for _, operator := range []string{
		"<<<", ">>>", "<<=", ">>=", "<=>", "...", "->*", "::", "->", "++", "--", "<<", ">>", "<=", ">=", "==", "!=", "&&", "||",
		"+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "##", ".*",
	} {
		if strings.HasPrefix(text, operator) {
			return len(operator)
		}
	}
	return 1
}
