package remote

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/dsbuild/dsbuild/internal/hint"
)

// Prompter asks the person who runs dsbuild.
type Prompter interface {
	// Ask shows a question, whose last line is the prompt, and returns the line
	// that was typed; without echo that is not to be seen. It ends with ctx.
	// Foreign words in a question are not clean.
	Ask(ctx context.Context, question string, echo bool) (string, error)
}

// patience is how long a question stays open: as long as sshd waits for a login.
const patience = 2 * time.Minute

// Answers are what a person was asked in a run, so that nothing is asked twice.
// They are held in memory, and shown to nobody but whom they are for.
type Answers struct {
	prompter Prompter // nil: nobody is there

	one chan struct{} // held while a question is open

	mu     sync.Mutex
	absent error // nobody answers
	given  map[string]*secret
}

// NewAnswers returns the answers of whom p asks; nil is nobody.
func NewAnswers(p Prompter) *Answers {
	return &Answers{prompter: p, one: make(chan struct{}, 1), given: map[string]*secret{}}
}

// ask puts a question; one at a time, so that a person can follow.
func (a *Answers) ask(ctx context.Context, question string, echo bool) (string, error) {
	select {
	case a.one <- struct{}{}:
		defer func() { <-a.one }()
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	if err := a.away(nil); err != nil {
		return "", err
	}
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	text, err := a.prompter.Ask(limited, question, echo)
	switch {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case err != nil && limited.Err() != nil:
		return "", a.away(hint.With(fmt.Errorf("nobody answered within %s", patience), "stay at the terminal, or put BatchMode yes into ~/.ssh/config to be asked nothing"))
	case err != nil:
		return "", a.away(err)
	}
	return text, nil
}

// away remembers that nobody answers, and tells why.
func (a *Answers) away(err error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.absent == nil {
		a.absent = err
	}
	return a.absent
}

// secret is an answer that holds in several places: a passphrase, a password.
type secret struct {
	text    string
	key     ssh.Signer // what a passphrase has opened
	state   trial
	wrong   error         // why it is not tried again
	settled chan struct{} // closed when it is no longer on trial
}

type trial int

const (
	untried trial = iota // asked for, but the place it was for has gone
	onTrial
	proven
	refused
)

// loan is a secret in somebody's hands.
type loan struct {
	answers *Answers
	key     string
	secret  *secret
	text    string
	first   bool // nobody knows yet whether it is right
}

// borrow returns the secret called key, asking for it if nobody has. Until it
// has been proven one alone has it, and the others wait: a slip of the finger
// is not to be told to a thousand nodes, of which each counts it.
func (a *Answers) borrow(ctx context.Context, key string, ask func() (string, error)) (*loan, error) {
	for {
		a.mu.Lock()
		s := a.given[key]
		switch {
		case s == nil:
			s = &secret{state: onTrial, settled: make(chan struct{})}
			a.given[key] = s
			a.mu.Unlock()
			l := &loan{answers: a, key: key, secret: s, first: true}
			var err error
			if l.text, err = ask(); err != nil {
				l.fail(ctx, err)
				return nil, err
			}
			return l, nil
		case s.state == untried:
			s.state, s.settled = onTrial, make(chan struct{})
			a.mu.Unlock()
			return &loan{answers: a, key: key, secret: s, text: s.text, first: true}, nil
		case s.state == refused:
			defer a.mu.Unlock()
			return nil, s.wrong
		case s.state == proven:
			defer a.mu.Unlock()
			return &loan{answers: a, key: key, secret: s, text: s.text}, nil
		}
		a.mu.Unlock()
		select {
		case <-s.settled:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// fail is a loan that nobody answered. Where only the one who asked is gone, the
// next may ask again.
func (l *loan) fail(ctx context.Context, err error) {
	if ctx.Err() == nil {
		l.refuse(err)
		return
	}
	l.answers.mu.Lock()
	defer l.answers.mu.Unlock()
	delete(l.answers.given, l.key)
	close(l.secret.settled)
}

// prove says that the text was right: others may have it.
func (l *loan) prove() { l.settle(proven, nil) }

// refuse says that it was not, and why nobody gets it.
func (l *loan) refuse(why error) { l.settle(refused, why) }

// giveBack says that nobody knows.
func (l *loan) giveBack() { l.settle(untried, nil) }

func (l *loan) settle(state trial, wrong error) {
	if !l.first {
		return
	}
	l.first = false
	l.answers.mu.Lock()
	defer l.answers.mu.Unlock()
	l.secret.text, l.secret.state, l.secret.wrong = l.text, state, wrong
	close(l.secret.settled)
}

// errNoAnswer is an empty line where a secret was wanted: the person gives up.
var errNoAnswer = errors.New("nothing was typed")

// bounds of what a node may say in a question.
const (
	mostSaid   = 2000
	mostPrompt = 200
)

// question is how a prompt of somebody's is put. What a node says stands apart,
// so that it cannot pass for a question of another.
func question(from, said, prompt string) string {
	var b strings.Builder
	if said = clip(strings.TrimSpace(said), mostSaid); said != "" {
		b.WriteString(from + " says:\n")
		for _, line := range strings.FieldsFunc(said, func(r rune) bool { return r == '\n' || r == '\r' }) {
			b.WriteString("  | " + line + "\n")
		}
	}
	prompt = strings.Join(strings.Fields(prompt), " ")
	b.WriteString(from + ": " + clip(prompt, mostPrompt) + " ")
	return b.String()
}

func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}
