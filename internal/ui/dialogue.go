package ui

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/term"
)

// Dialogue asks questions and reads one line of its input, a terminal, a pipe or a file, as the
// answer to each.
type Dialogue struct {
	in       *lineReader
	out      io.Writer
	attended bool
}

// ErrNoAnswer means that the input ended before an answer to the question.
var ErrNoAnswer = errors.New("no answer")

// NewDialogue asks on out and reads from in.
func NewDialogue(in io.Reader, out io.Writer) *Dialogue {
	file, ok := in.(interface{ Fd() uintptr })
	return &Dialogue{in: newLineReader(in), out: out, attended: ok && term.IsTerminal(int(file.Fd()))}
}

// Say prints text that is not a question.
func (d *Dialogue) Say(text string) { fmt.Fprintln(d.out, Clean(text)) }

// Ask repeats a question until check accepts the answer. An empty answer means usual. Without a
// terminal Ask asks only once and returns check's error.
func (d *Dialogue) Ask(ctx context.Context, question, usual string, check func(answer string) error) (string, error) {
	for {
		text := Clean(question)
		if usual != "" {
			text += " [" + Clean(usual) + "]"
		}
		fmt.Fprint(d.out, text+": ")
		answer, err := d.nextLine(ctx)
		if !d.attended || err != nil {
			fmt.Fprintln(d.out, Clean(answer)) // as if it had been typed
		}
		if err != nil {
			return "", fmt.Errorf("%s: %w", question, err)
		}
		answer = cmp.Or(answer, usual)
		if err = check(answer); err == nil {
			return answer, nil
		}
		if !d.attended {
			return "", fmt.Errorf("%s: %q: %w", question, answer, err)
		}
		fmt.Fprintln(d.out, Clean(err.Error()))
	}
}

// nextLine returns the next line. If ctx ends, the read continues, and its line answers the next
// question.
func (d *Dialogue) nextLine(ctx context.Context) (string, error) {
	select {
	case l := <-d.in.next():
		d.in.reading = false
		if errors.Is(l.err, io.EOF) && l.text == "" {
			return "", ErrNoAnswer
		}
		if l.err != nil && !errors.Is(l.err, io.EOF) {
			return "", l.err
		}
		return strings.TrimSpace(l.text), nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}
