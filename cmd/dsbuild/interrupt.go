package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/dsbuild/dsbuild/internal/ui"
)

// interruptError is the cause of a context that a signal cancelled.
type interruptError struct{ signal os.Signal }

func (e *interruptError) Error() string { return "interrupted (" + e.name() + ")" }

// name is the signal as in kill -l; Go's own names are "interrupt" and "terminated".
func (e *interruptError) name() string {
	if e.signal == syscall.SIGTERM {
		return "SIGTERM"
	}
	return "SIGINT"
}

// withInterrupt returns a context that the first SIGINT or SIGTERM cancels, so
// that commands can tidy up. The second ends the process at once, after last.
func withInterrupt(parent context.Context, reporter ui.Reporter, last func()) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		select {
		case s := <-signals:
			cause := &interruptError{s}
			cancel(cause)
			reporter.Warn("stopping (%s); a second signal stops immediately", cause.name())
		case <-done:
			return
		}
		select {
		case <-signals:
			last()
			os.Exit(exitInterrupted)
		case <-done:
		}
	}()
	// The signals stay caught until the process has ended: one that comes when all has
	// been said must not take the exit code's place.
	return ctx, func() {
		close(done)
		cancel(nil)
	}
}

// wasInterrupted reports whether a signal cancelled ctx.
func wasInterrupted(ctx context.Context) bool {
	var cause *interruptError
	return errors.As(context.Cause(ctx), &cause)
}

// withoutBrokenPipe returns a writer that ignores a closed reader, such as head: the deploy continues,
// and its result determines the exit code. Other errors remain errors.
func withoutBrokenPipe(w io.Writer) io.Writer {
	// By default Go ends the process; programs that dsbuild starts keep that.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return brokenPipe{w}
}

type brokenPipe struct{ io.Writer }

// Fd is the descriptor of the file below, so that tables know its terminal's width.
func (b brokenPipe) Fd() uintptr {
	if file, ok := b.Writer.(interface{ Fd() uintptr }); ok {
		return file.Fd()
	}
	return ^uintptr(0) // none
}

func (b brokenPipe) Write(p []byte) (int, error) {
	n, err := b.Writer.Write(p)
	if errors.Is(err, syscall.EPIPE) {
		return len(p), nil
	}
	return n, err
}
