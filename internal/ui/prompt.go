package ui

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// Prompt asks questions on the process's controlling terminal, because standard input may be an
// inventory. It asks one question at a time, and hides a console's live lines meanwhile.
//
// As with ssh, the program in SSH_ASKPASS asks instead if there is no terminal, and always if
// SSH_ASKPASS_REQUIRE is force or prefer.
type Prompt struct {
	console *Console
	askpass string // "": the terminal

	asking chan struct{}   // held while a question is open
	life   context.Context // ends with Close
	end    context.CancelFunc

	tty *terminal // opened with the first question
	in  *lineReader
}

// FindPrompt returns a Prompt, or nil if there is no way to ask the user.
func FindPrompt(c *Console) *Prompt {
	p := &Prompt{console: c, asking: make(chan struct{}, 1)}
	p.life, p.end = context.WithCancel(context.Background())
	program, require := os.Getenv("SSH_ASKPASS"), os.Getenv("SSH_ASKPASS_REQUIRE")
	t, err := openTerminal()
	if err == nil {
		t.Close()
	}
	preferred := require == "force" || require == "prefer"
	switch {
	case program != "" && (preferred || err != nil && require != "never"):
		p.askpass = program
	case err != nil:
		return nil
	}
	return p
}

// Close ends an open question, waits briefly for the terminal to be restored, and disables further
// questions.
func (p *Prompt) Close() {
	if p == nil || p.life.Err() != nil {
		return
	}
	p.end()
	select {
	case p.asking <- struct{}{}:
	case <-time.After(time.Second):
	}
}

// errClosed is the error of a question after Close.
var errClosed = errors.New("dsbuild is stopping")

// Ask shows a question, whose last line is the prompt, and returns the typed line. Without echo
// the terminal hides the typed text. Ask ends with ctx.
func (p *Prompt) Ask(ctx context.Context, question string, echo bool) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.life, cancel)()
	if p.life.Err() != nil {
		return "", errClosed
	}
	select {
	case p.asking <- struct{}{}:
		defer func() { <-p.asking }()
	case <-ctx.Done():
		return "", p.ended(ctx)
	}
	question = Clean(question)
	if p.askpass != "" {
		return p.askProgram(ctx, question)
	}
	defer p.console.Pause()()
	return p.askTerminal(ctx, question, echo)
}

// ended returns why a question ended without an answer.
func (p *Prompt) ended(ctx context.Context) error {
	if p.life.Err() != nil {
		return errClosed
	}
	return ctx.Err()
}

func (p *Prompt) askTerminal(ctx context.Context, question string, echo bool) (string, error) {
	if p.tty == nil {
		t, err := openTerminal()
		if err != nil {
			return "", err
		}
		p.tty, p.in = t, newLineReader(t)
	}
	restore, err := p.tty.prepareQuestion(echo)
	if err != nil {
		return "", fmt.Errorf("terminal: %w", err)
	}
	defer restore()
	fmt.Fprint(p.tty, question)
	select {
	case l := <-p.in.next():
		p.in.reading = false
		if !echo || l.err != nil {
			fmt.Fprintln(p.tty)
		}
		if errors.Is(l.err, io.EOF) {
			l.err = errors.New("no answer at the terminal")
		}
		return strings.TrimRight(l.text, "\r\n"), l.err
	case <-ctx.Done():
		fmt.Fprintln(p.tty) // a line that is typed from now on answers the next question, or none
		return "", p.ended(ctx)
	}
}

// askProgram prompts through the program in SSH_ASKPASS.
func (p *Prompt) askProgram(ctx context.Context, question string) (string, error) {
	cmd := exec.CommandContext(ctx, p.askpass, question)
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return "", p.ended(ctx)
	}
	if err != nil {
		return "", fmt.Errorf("no answer from %s: %w", p.askpass, err)
	}
	first, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimRight(first, "\r"), nil
}
