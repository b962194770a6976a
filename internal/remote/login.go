package remote

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/crypto/ssh"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/nodeerr"
)

// rounds limits the prompts of one login.
const rounds = 3

// login is one authentication. It tries the keys first and then prompts the user, using only methods
// that the node offers.
type login struct {
	target  Target
	keys    *keySet
	answers *Answers
	ctx     context.Context // ends with the connection
	clock   *deadline       // stopped while a prompt is open

	offered atomic.Pointer[[]string]

	said   string       // the node's message, not shown yet
	asked  int          // rounds with a prompt
	asks   bool         // this round had a prompt
	mute   bool         // keyboard-interactive has no prompts on this node
	last   string       // the current method
	trial  *secretTrial // of a password that is valid on other nodes too
	gaveUp error
}

// Names of the methods in RFC 4252 and 4256.
const (
	byKey         = "publickey"
	interactively = "keyboard-interactive"
	byPassword    = "password"
)

// next chooses the method to try next. It is an ssh.ClientAuthCallback.
func (l *login) next(c *ssh.ClientAuthContext) (ssh.AuthMethod, error) {
	l.offered.Store(&c.AllowedMethods)
	if l.gaveUp != nil {
		return nil, l.gaveUp
	}
	if l.last == interactively && !l.asks {
		l.mute = true
	}
	l.asks, l.last = false, ""
	attended := l.answers.attended(l.target) && l.asked < rounds
	for _, method := range l.target.methods {
		if !slices.Contains(c.AllowedMethods, method) || !l.target.allows(method) {
			continue
		}
		l.last = method
		switch {
		case method == byKey && len(l.keys.signers) > 0 && !slices.Contains(c.TriedMethods, byKey):
			return ssh.PublicKeys(l.keys.signers...), nil
		case method == interactively && attended && !l.mute:
			return ssh.KeyboardInteractive(l.challenge), nil
		case method == byPassword && attended:
			return ssh.PasswordCallback(l.password), nil
		}
	}
	l.last = ""
	return nil, nil // nothing is left
}

// attended reports whether the user can be prompted about t.
func (a *Answers) attended(t Target) bool { return a.prompter != nil && !t.BatchMode }

// challenge answers one round of keyboard-interactive. A round has any number of questions, and
// none if the node only shows a message.
func (l *login) challenge(name, instruction string, prompts []string, echos []bool) ([]string, error) {
	l.said = strings.TrimSpace(l.said + "\n" + name + "\n" + instruction)
	answers := make([]string, len(prompts))
	for i, prompt := range prompts {
		var err error
		if answers[i], err = l.answer(prompt, echos[i]); err != nil {
			l.gaveUp = err
			return nil, err
		}
	}
	return answers, nil
}

// password answers the method "password".
func (l *login) password() (string, error) {
	text, err := l.answer("password:", false)
	if err != nil {
		l.gaveUp = err
	}
	return text, err
}

// banner keeps the message that the node sends before its questions.
func (l *login) banner(message string) error {
	l.said = message
	return nil
}

// unlock opens an identity file that the node accepts.
func (l *login) unlock(file string, text []byte) (ssh.Signer, error) {
	defer l.clock.hold()()
	_, s, err := l.answers.unlock(l.ctx, file, text)
	if err != nil {
		l.gaveUp = err
	}
	return s, err
}

// passwordPrompt matches a prompt for a user's password, which is the same on every node. Any other
// prompt, such as for a one-time password or a new password, is shown for each node.
var passwordPrompt = regexp.MustCompile(`^(?i:((ssh|unix|ldap|login|kerberos) )?password( for \S+)?) ?:?$`)

// answer answers a question of the node. A password that another node of this user accepted is
// offered once. A jump host's password is used for that host only.
func (l *login) answer(prompt string, echo bool) (string, error) {
	defer l.clock.hold()()
	if !l.asks {
		l.asks = true
		l.asked++
	}
	said := l.said
	l.said = ""
	ask := func() (string, error) { return l.answers.ask(l.ctx, question(l.who(), said, prompt), echo) }
	if echo || !passwordPrompt.MatchString(strings.TrimSpace(prompt)) {
		return ask()
	}
	key := "password of " + l.target.User
	if l.target.jump {
		key += " at " + hostPort(l.target)
	}
	return l.answers.askSecret(l.ctx, &l.trial, key, ask)
}

// who returns the node's name for prompts.
func (l *login) who() string {
	t := l.target
	at := t.User + "@" + t.Address
	if t.Port != 22 {
		at = loginName(t)
	}
	switch {
	case t.jump:
		return "jump host " + at
	case t.Name != "" && t.Name != t.Address:
		return fmt.Sprintf("%s (%s)", t.Name, at)
	}
	return at
}

// end ends the trial of a secret. err is the error of the login.
func (l *login) end(trial *secretTrial, err error) {
	var wrong error
	if errors.Is(err, ErrAuth) {
		wrong = fmt.Errorf("password rejected by %s; not tried on other nodes", l.who())
	}
	trial.end(err, wrong)
}

// refused returns the error of a login that the node rejected. It must not be retried, because sshd
// bans addresses with too many failures.
func (l *login) refused(text string) error {
	t, k := l.target, l.keys
	accepts := ""
	if offered := l.offered.Load(); offered != nil && len(*offered) > 0 {
		accepts = "; the node accepts " + joinNames(*offered)
	}
	if l.gaveUp != nil {
		return nodeerr.Errorf("%w for %s: %w%s%s", ErrAuth, nodeerr.Own(loginName(t)), l.gaveUp, k.details(), accepts)
	}
	if strings.Contains(strings.ToLower(text), "too many") {
		err := nodeerr.Errorf("%w for %s: too many keys tried (%d available)%s",
			ErrAuth, nodeerr.Own(loginName(t)), len(k.signers), k.details())
		return fault.WithHint(err, "%s", fault.Set("identity_file", "the key to try first"))
	}
	if !strings.HasPrefix(text, "ssh: unable") {
		k.notes = append(k.notes, strings.TrimPrefix(text, "ssh: "))
	}
	tried := slices.Clone(k.labels)
	if l.asked > 0 {
		tried = append(tried, "a password or code")
	}
	if len(tried) == 0 {
		tried = []string{"no key"}
	}
	err := nodeerr.Errorf("%w for %s: tried %s%s%s",
		ErrAuth, nodeerr.Own(loginName(t)), strings.Join(tried, ", "), k.details(), accepts)
	hint := k.hint()
	if l.answers.prompter == nil && (l.takes(byPassword) || l.takes(interactively)) {
		hint += "; or run dsbuild from a terminal to answer the node's prompts"
	}
	return fault.WithHint(err, "%s", hint)
}

// noJob matches the messages of Slurm's PAM modules. Any other text may have the word job, such as the banner of a login node.
var noJob = regexp.MustCompile(`(?i)pam_slurm|no (active|running) jobs? on this node`)

// withMessage adds the node's message to the error of a login. PAM modules send their reason that way,
// such as the text of /run/nologin, or the message of Slurm's module, which admits only users with a job.
func (l *login) withMessage(err error) error {
	if strings.TrimSpace(l.said) == "" {
		return err
	}
	said := reported(l.said)
	err = nodeerr.Errorf("%w; %s", err, said)
	if noJob.MatchString(said) {
		return fault.WithHint(err,
			"connect within a Slurm job: --via slurm; the node admits only users who have a job there")
	}
	return err
}

// takes reports whether the node accepts a method.
func (l *login) takes(method string) bool {
	offered := l.offered.Load()
	return offered != nil && slices.Contains(*offered, method)
}
