package ansible

import (
	"errors"
	"strings"
)

// SplitWords splits a line into words as Python's shlex.split does, which Ansible uses for the options
// of ssh: a part in quotes belongs to its word. In double quotes, a backslash escapes only a backslash
// and a double quote.
func SplitWords(line string) ([]string, error) {
	var words []string
	var word strings.Builder
	inWord, quote := false, byte(0)
	for i := 0; i < len(line); i++ {
		c := line[i]
		next := line[min(i+1, len(line)-1)]
		switch {
		case quote == 0 && strings.IndexByte(" \t\r\n", c) >= 0:
			if inWord {
				words = append(words, word.String())
				word.Reset()
			}
			inWord = false
			continue
		case c == quote:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"'):
			quote = c
		case c == '\\' && (quote == 0 || quote == '"' && (next == '\\' || next == '"')):
			if i++; i == len(line) {
				return nil, errors.New(`trailing \`)
			}
			word.WriteByte(line[i])
		default:
			word.WriteByte(c)
		}
		inWord = true
	}
	if quote != 0 {
		return nil, errors.New("unterminated " + string(quote))
	}
	if inWord {
		words = append(words, word.String())
	}
	return words, nil
}
