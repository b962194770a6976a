package main

import (
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// withoutBrokenPipe returns a writer that goes on where its reader has gone, as
// head does when it has enough: a deploy is not cut off by the end of its
// output, and the exit code is that of the run. Other errors remain errors.
func withoutBrokenPipe(w io.Writer) io.Writer {
	// By default Go ends the process; programs that dsbuild starts keep that.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return brokenPipe{w}
}

type brokenPipe struct{ io.Writer }

func (b brokenPipe) Write(p []byte) (int, error) {
	n, err := b.Writer.Write(p)
	if errors.Is(err, syscall.EPIPE) {
		return len(p), nil
	}
	return n, err
}
