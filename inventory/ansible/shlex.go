package ansible

import (
	"fmt"
	"strings"
)

// Word is a word of a line, and at which rune of the line it begins.
type Word struct {
	Text string
	At   int
}

// SplitError is a line that has no end.
type SplitError struct {
	At      int // the rune at which what is open began
	Message string
}

func (e *SplitError) Error() string { return e.Message }

// Split takes a line apart as Python's shlex.split does, which Ansible uses for
// hosts and for options of ssh: a part in quotes belongs to its word, and with
// comments a # ends the line wherever it stands outside of quotes.
func Split(line string, comments bool) ([]Word, error) {
	s := splitter{runes: []rune(line), comments: comments}
	for s.at < len(s.runes) {
		if err := s.step(); err != nil {
			return nil, err
		}
	}
	s.end()
	return s.words, nil
}

// splitter is on its way through a line.
type splitter struct {
	runes    []rune
	comments bool
	at       int
	words    []Word
	word     strings.Builder
	begin    int
	open     bool // a word has begun, if only with quotes
}

func (s *splitter) end() {
	if s.open {
		s.words = append(s.words, Word{s.word.String(), s.begin})
		s.word.Reset()
		s.open = false
	}
}

// start begins a word here unless one has begun.
func (s *splitter) start() {
	if !s.open {
		s.open, s.begin = true, s.at
	}
}

func (s *splitter) step() error {
	switch c := s.runes[s.at]; {
	case strings.ContainsRune(" \t\r\n", c):
		s.end()
		s.at++
	case c == '#' && s.comments:
		s.end()
		s.at = len(s.runes)
	case c == '\'' || c == '"':
		s.start()
		return s.quoted(c)
	case c == '\\':
		s.start()
		if s.at+1 == len(s.runes) {
			return &SplitError{s.at, `nothing follows the \ at the end of the line`}
		}
		s.word.WriteRune(s.runes[s.at+1])
		s.at += 2
	default:
		s.start()
		s.word.WriteRune(c)
		s.at++
	}
	return nil
}

// quoted reads a part in quotes. Within double quotes a \ stands for itself
// unless it is before a \ or a double quote.
func (s *splitter) quoted(quote rune) error {
	begin := s.at
	for s.at++; s.at < len(s.runes); s.at++ {
		c := s.runes[s.at]
		switch {
		case c == quote:
			s.at++
			return nil
		case c == '\\' && quote == '"' && s.at+1 < len(s.runes) && strings.ContainsRune(`\"`, s.runes[s.at+1]):
			s.at++
			c = s.runes[s.at]
		}
		s.word.WriteRune(c)
	}
	return &SplitError{begin, fmt.Sprintf("a %c without its end", quote)}
}
