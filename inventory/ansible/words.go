package ansible

import (
	"errors"
	"strings"
)

// SplitWords splits a line into words as Python's shlex.split does, which
// Ansible uses for the options of ssh: a part in quotes belongs to its word.
func SplitWords(line string) ([]string, error) {
	s := splitter{rest: line}
	for s.rest != "" {
		if err := s.next(); err != nil {
			return nil, err
		}
	}
	s.endWord()
	return s.words, nil
}

// splitter holds the state of SplitWords.
type splitter struct {
	rest   string
	words  []string
	word   strings.Builder
	inWord bool // a word has begun; true even for an empty one, after a quote
}

func (s *splitter) endWord() {
	if s.inWord {
		s.words = append(s.words, s.word.String())
		s.word.Reset()
		s.inWord = false
	}
}

// next reads a character, or a part in quotes.
func (s *splitter) next() error {
	c := s.rest[0]
	s.rest = s.rest[1:]
	if strings.IndexByte(" \t\r\n", c) >= 0 {
		s.endWord()
		return nil
	}
	s.inWord = true
	switch c {
	case '\'':
		inside, after, found := strings.Cut(s.rest, "'")
		if !found {
			return errors.New("a ' without its end")
		}
		s.word.WriteString(inside)
		s.rest = after
	case '"':
		return s.doubleQuoted()
	case '\\':
		if s.rest == "" {
			return errors.New(`nothing follows the \ at the end of the line`)
		}
		s.word.WriteByte(s.rest[0])
		s.rest = s.rest[1:]
	default:
		s.word.WriteByte(c)
	}
	return nil
}

// doubleQuoted reads up to the closing quote. A backslash there escapes only a
// backslash and a double quote.
func (s *splitter) doubleQuoted() error {
	for i := 0; i < len(s.rest); i++ {
		switch c := s.rest[i]; {
		case c == '"':
			s.rest = s.rest[i+1:]
			return nil
		case c == '\\' && i+1 < len(s.rest) && strings.IndexByte(`\"`, s.rest[i+1]) >= 0:
			i++
			s.word.WriteByte(s.rest[i])
		default:
			s.word.WriteByte(c)
		}
	}
	return errors.New(`a " without its end`)
}
