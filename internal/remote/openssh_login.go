package remote

import (
	"context"
	"os"
	"regexp"
	"strings"
	"sync"
)

// opensshLogin answers ssh's prompts during a login.
type opensshLogin struct {
	login
	log  string                  // the master's log file
	tell func(text string)       // shows the user a message
	stop context.CancelCauseFunc // ends the attempt
	read int                     // number of bytes of log already shown
	mu   sync.Mutex              // held while a question is answered
	by   map[string]*secretTrial // the secrets that this login tries
}

// The prompts of OpenSSH. A prompt of the node, from keyboard-interactive, begins with the login in
// parentheses.
var (
	promptPassword   = regexp.MustCompile(`^.*@.*'s password: *$`)
	promptNode       = regexp.MustCompile(`^\([^()]*@[^()]*\) `)
	promptPassphrase = regexp.MustCompile(`^Enter passphrase for (?:key )?'?(.*?)'?: *$`)
	promptPIN        = regexp.MustCompile(`^Enter PIN for (.*?):? *$`)
)

// opensshOwn matches log lines that do not come from the node.
var opensshOwn = regexp.MustCompile(`^debug\d|^Authenticated (to|using) |` +
	`Permission denied(, please| \(.*\)\.$)|^no such identity: |` +
	`^(\*\* |@ *)?W(arning|ARNING): |^\*\* |^@|` +
	`^Permissions \d+ for |^It is required that your private key|^This private key will be ignored|` +
	`^(ssh|kex_exchange_identification|sign_and_send_pubkey|Load key .*|Received disconnect from .*): |` +
	`^(Connection|Disconnected|Transferred|Bytes per second|client_loop)\b`)

// answer answers a prompt of ssh. Without an answer it ends the attempt, because ssh would send an
// empty password instead.
func (l *opensshLogin) answer(prompt string, tell bool) (string, bool) {
	if tell {
		l.tell(l.who() + ": " + strings.TrimSpace(prompt))
		return "", true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	text, err := l.find(strings.TrimRight(prompt, "\r\n"))
	if err != nil {
		l.gaveUp = err
		l.stop(err)
	}
	return text, err == nil
}

func (l *opensshLogin) find(prompt string) (string, error) {
	if m := promptPassphrase.FindStringSubmatch(prompt); m != nil {
		// The passphrase of an identity file. If dsbuild can read the file itself, it tests the
		// passphrase right here, as in its own logins.
		file := m[1]
		defer l.clock.hold()()
		if b, err := os.ReadFile(file); err == nil && !securityKey(file) {
			text, _, err := l.answers.unlock(l.ctx, file, b)
			return text, err
		}
		return l.secret("passphrase of "+file, "passphrase for "+file+":")
	}
	if m := promptPIN.FindStringSubmatch(prompt); m != nil {
		return l.secret("PIN for "+m[1], "PIN for "+m[1]+":")
	}
	if promptPassword.MatchString(prompt) {
		prompt = "password:"
	}
	l.said = l.news()
	return l.login.answer(promptNode.ReplaceAllString(prompt, ""), false)
}

// news returns the node's messages that ssh logged since its last question.
func (l *opensshLogin) news() string {
	text, err := os.ReadFile(l.log)
	if err != nil {
		return ""
	}
	said := string(text[min(l.read, len(text)):])
	l.read = len(text)
	return nodeLines(said)
}

// nodeLines returns the lines of a text that ssh did not write itself.
func nodeLines(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line != "" && !opensshOwn.MatchString(line) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n")
}

// secret prompts for a secret that is valid for all nodes. Other logins get it only after one login
// has succeeded with it.
func (l *opensshLogin) secret(key, prompt string) (string, error) {
	defer l.clock.hold()()
	ask := func() (string, error) { return l.answers.ask(l.ctx, question(l.who(), "", prompt), false) }
	trial := l.by[key]
	text, err := l.answers.askSecret(l.ctx, &trial, key, ask)
	if trial != nil {
		l.by[key] = trial
	}
	return text, err
}

// settle settles all trials of the login. err is the error of the login.
func (l *opensshLogin) settle(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end(l.trial, err)
	for _, trial := range l.by {
		l.end(trial, err)
	}
}
