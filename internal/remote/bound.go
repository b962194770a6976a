package remote

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// ErrFlood means that a node sends more than any valid answer contains.
var ErrFlood = errors.New("too much output from the node")

// Limiter counts bytes. When the count exceeds Most, it calls Over, perhaps several times. Over ends
// the sender.
type Limiter struct {
	Most     int
	OnExceed func()

	counted int
}

// Count adds n bytes to the count.
func (b *Limiter) Count(n int) {
	if b.counted += min(n, b.Most+1); b.counted > b.Most {
		b.counted = b.Most + 1 // capped, so that a node that never stops cannot overflow the counter
		b.OnExceed()
	}
}

// Limits of a short answer: of its kept bytes, and of all bytes including the output of the login shell's startup
// files.
const (
	maxAnswer = 64 << 10
	maxNoise  = 16 << 20
)

// Answer is a Writer that keeps a program's short answer, the last bytes of its output. If the program sends far more,
// Answer calls the function that ends it.
type Answer struct {
	text  Tail
	bound Limiter
}

// NewAnswer returns an Answer. over ends the program.
func NewAnswer(over func()) *Answer {
	return &Answer{text: Tail{Most: maxAnswer}, bound: Limiter{Most: maxNoise, OnExceed: over}}
}

// Write implements io.Writer.
func (a *Answer) Write(b []byte) (int, error) {
	a.text.Write(b) //nolint:errcheck // never fails
	a.bound.Count(len(b))
	return len(b), nil
}

// String returns the kept bytes of the answer.
func (a *Answer) String() string { return a.text.String() }

// bounded returns a context that ends with ErrFlood when over is called. flooded then returns
// ErrFlood in place of its argument, and otherwise the argument.
func bounded(ctx context.Context) (limited context.Context, over func(), flooded func(err error) error, end func()) {
	limited, cancel := context.WithCancelCause(ctx)
	flooded = func(err error) error {
		if errors.Is(context.Cause(limited), ErrFlood) {
			return fault.WithHint(fmt.Errorf("running a command: %w", ErrFlood),
				"make the login files of this account on the node print nothing in non-interactive shells, "+
					"first in ~/.bashrc: [[ $- == *i* ]] || return")
		}
		return err
	}
	return limited, func() { cancel(ErrFlood) }, flooded, func() { cancel(nil) }
}

// RunForAnswer runs a command with a short answer and returns its stdout. It limits stderr too, and writes it to cmd.Stderr
// if that is set.
func RunForAnswer(ctx context.Context, on Runner, cmd Command) (string, error) {
	limited, over, flooded, end := bounded(ctx)
	defer end()
	out, errs := NewAnswer(over), io.Writer(NewAnswer(over))
	if cmd.Stderr != nil {
		errs = io.MultiWriter(errs, cmd.Stderr)
	}
	cmd.Stdout, cmd.Stderr = out, errs
	err := on.Run(limited, cmd)
	return out.String(), flooded(err)
}
