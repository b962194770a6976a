package remote

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// Prompter asks the user.
type Prompter interface {
	// Ask shows a question, whose last line is the prompt, and returns the line that the user
	// typed. If echo is false, the terminal does not show the input. Ask ends with ctx. The
	// question may contain unsanitized text from a node.
	Ask(ctx context.Context, question string, echo bool) (string, error)
}

// promptTimeout is the timeout of a prompt: sshd's default LoginGraceTime.
const promptTimeout = 2 * time.Minute

// Answers caches the user's answers during a run, so that the user is prompted once. Answers stay in
// memory, and each is used only for its own logins.
type Answers struct {
	prompter Prompter // may be nil

	one chan struct{} // held while a prompt is open

	mu     sync.Mutex
	absent error // why there are no answers, once known
	given  map[string]*secret
}

// NewAnswers returns Answers that prompt through p. If p is nil, every prompt fails.
func NewAnswers(p Prompter) *Answers {
	return &Answers{prompter: p, one: make(chan struct{}, 1), given: map[string]*secret{}}
}

// ask prompts the user. Only one prompt is open at a time. An empty answer to a prompt without echo is errNoAnswer.
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
	limited, cancel := context.WithTimeout(ctx, promptTimeout)
	defer cancel()
	text, err := a.prompter.Ask(limited, question, echo)
	switch {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case err != nil && limited.Err() != nil:
		return "", a.away(fault.WithHint(fmt.Errorf("no answer to the prompt within %s", promptTimeout),
			"answer at the terminal, or disable prompts with BatchMode yes in ~/.ssh/config"))
	case err != nil:
		return "", a.away(err)
	case text == "" && !echo:
		return "", errNoAnswer
	}
	return text, nil
}

// away records err as the reason why prompts are not answered. It returns the first such reason.
func (a *Answers) away(err error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.absent == nil {
		a.absent = err
	}
	return a.absent
}

// secret is an answer that several logins use: a passphrase or a password.
type secret struct {
	text    string
	key     ssh.Signer // the key that the passphrase opened
	state   trial
	wrong   error         // the error for later logins, if rejected
	settled chan struct{} // closed when the trial ends
}

type trial int

const (
	untried trial = iota // typed, but the login ended before the node checked it
	onTrial
	proven
	refused
)

// secretTrial is a secret in use by one login.
type secretTrial struct {
	answers *Answers
	key     string
	secret  *secret
	text    string
	first   bool // this login is the first to try the secret
}

// beginTrial returns the secret called key, prompting for it the first time. Until a login has
// succeeded with the secret, only one login uses it and the others wait. Otherwise a typing error
// would be a failed login on a thousand nodes.
func (a *Answers) beginTrial(ctx context.Context, key string, ask func() (string, error)) (*secretTrial, error) {
	for {
		a.mu.Lock()
		s := a.given[key]
		switch {
		case s == nil:
			s = &secret{state: onTrial, settled: make(chan struct{})}
			a.given[key] = s
			a.mu.Unlock()
			l := &secretTrial{answers: a, key: key, secret: s, first: true}
			var err error
			if l.text, err = ask(); err != nil {
				l.fail(ctx, err)
				return nil, err
			}
			return l, nil
		case s.state == untried:
			s.state, s.settled = onTrial, make(chan struct{})
			a.mu.Unlock()
			return &secretTrial{answers: a, key: key, secret: s, text: s.text, first: true}, nil
		case s.state == refused:
			defer a.mu.Unlock()
			return nil, s.wrong
		case s.state == proven:
			defer a.mu.Unlock()
			return &secretTrial{answers: a, key: key, secret: s, text: s.text}, nil
		}
		a.mu.Unlock()
		select {
		case <-s.settled:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// askSecret returns the shared secret called key: the answer to an earlier login, or the answer to
// ask. If trial is already set, its secret was wrong for this login, so askSecret calls ask.
func (a *Answers) askSecret(
	ctx context.Context, trial **secretTrial, key string, ask func() (string, error),
) (string, error) {
	var err error
	if *trial == nil {
		if *trial, err = a.beginTrial(ctx, key, ask); err != nil {
			return "", err
		}
		return (*trial).text, nil
	}
	text, err := ask()
	if err == nil && (*trial).first {
		(*trial).text = text
	}
	return text, err
}

// fail ends a trial without an answer. If ctx ended, only this login has ended, and the next one
// may prompt.
func (l *secretTrial) fail(ctx context.Context, err error) {
	if ctx.Err() == nil {
		l.settle(refused, err)
		return
	}
	l.answers.mu.Lock()
	defer l.answers.mu.Unlock()
	delete(l.answers.given, l.key)
	close(l.secret.settled)
}

// end ends the trial of a login that ended with err. If wrong is set, the secret was wrong: later logins get that
// error instead of the secret.
func (l *secretTrial) end(err, wrong error) {
	switch {
	case l == nil:
	case err == nil: // other logins may use it
		l.settle(proven, nil)
	case wrong != nil:
		l.settle(refused, wrong)
	default:
		l.settle(untried, nil)
	}
}

func (l *secretTrial) settle(state trial, wrong error) {
	if !l.first {
		return
	}
	l.first = false
	l.answers.mu.Lock()
	defer l.answers.mu.Unlock()
	l.secret.text, l.secret.state, l.secret.wrong = l.text, state, wrong
	close(l.secret.settled)
}

// errNoAnswer means that the user entered an empty line instead of a secret, to give up.
var errNoAnswer = errors.New("no answer entered")

// Limits on a node's text in a question, in bytes.
const (
	maxSaid   = 2000
	maxPrompt = 200
)

// question formats a prompt from a node or program. A node's message is indented on separate lines, so
// that it cannot imitate another prompt.
func question(from, said, prompt string) string {
	var b strings.Builder
	if said = clip(strings.TrimSpace(said), maxSaid); said != "" {
		b.WriteString("message from " + from + ":\n")
		for _, line := range strings.FieldsFunc(said, func(r rune) bool { return r == '\n' || r == '\r' }) {
			b.WriteString("  | " + line + "\n")
		}
	}
	prompt = strings.Join(strings.Fields(prompt), " ")
	b.WriteString(from + ": " + clip(prompt, maxPrompt) + " ")
	return b.String()
}

func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}
