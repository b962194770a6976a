package publish

import (
	"encoding/base64"
	"net/url"
	"strings"
	"sync"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// shortestSecret is the length below which a word is not replaced in messages: it would occur in
// them by chance.
const shortestSecret = 4

// secrets are the words that no message may contain.
type secrets struct {
	mutex sync.Mutex
	words []string
}

// add keeps passwords and tokens out of messages.
func (s *secrets) add(words ...string) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, word := range words {
		if len(word) >= shortestSecret {
			s.words = append(s.words, word, url.QueryEscape(word), url.PathEscape(word))
		}
	}
}

// login is a user name with a password.
type login struct{ user, password string }

// addLogin keeps a login out of messages, also as HTTP sends it.
func (s *secrets) addLogin(l login) login {
	s.add(l.password, base64.StdEncoding.EncodeToString([]byte(l.user+":"+l.password)))
	return l
}

// hideText replaces secrets in a text. A text is cut after it, and never before: a part of a secret
// would be left.
func (s *secrets) hideText(text string) string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, word := range s.words {
		text = strings.ReplaceAll(text, word, "***")
	}
	return text
}

// hide replaces secrets in the texts of an error.
func (s *secrets) hide(err error) error {
	if err == nil || s.hideText(err.Error()+fault.Hint(err)) == err.Error()+fault.Hint(err) {
		return err
	}
	return fault.New(fault.ExitCode(err), s.hideText(fault.Hint(err)), "%s", s.hideText(err.Error()))
}
