package publish

import (
	"encoding/base64"
	"strings"
	"sync"
)

// shortestSecret is the length below which a word is not replaced in messages: it would occur in
// them by chance.
const shortestSecret = 4

// secrets are the words that no message may contain.
type secrets struct {
	mutex sync.Mutex
	words []string
}

// add keeps a password or token out of messages, and returns it.
func (s *secrets) add(word string) string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if len(word) >= shortestSecret {
		s.words = append(s.words, word)
	}
	return word
}

// login is a user name with a password.
type login struct{ user, password string }

// addLogin keeps a login out of messages, also as HTTP sends it.
func (s *secrets) addLogin(l login) login {
	s.add(l.password)
	s.add(base64.StdEncoding.EncodeToString([]byte(l.user + ":" + l.password)))
	return l
}

// hide replaces secrets in the text of an error.
func (s *secrets) hide(err error) error {
	if err == nil {
		return nil
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	text := err.Error()
	for _, word := range s.words {
		text = strings.ReplaceAll(text, word, "***")
	}
	if text == err.Error() {
		return err
	}
	return &hiddenError{err, text}
}

// hiddenError is an error with another text.
type hiddenError struct {
	err  error
	text string
}

func (e *hiddenError) Error() string { return e.text }
func (e *hiddenError) Unwrap() error { return e.err }
