package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// tailLines is how much of a failed command's output its error shows.
const tailLines = 15

// command is a program to run to its end, with its output in a log.
type command struct {
	args    []string
	dir     string
	env     []string     // added to the program's own environment
	log     string       // file that receives the output
	line    func(string) // called with each line of output; may be nil
	private bool         // a mount namespace of its own: no mount outlives it
}

// commandError is a command that failed, with the end of its output.
type commandError struct {
	name string
	err  error
	tail []string
	log  string
}

func (e *commandError) Error() string {
	s := fmt.Sprintf("%s: %v", e.name, e.err)
	if len(e.tail) > 0 {
		s += "; its last lines:\n    " + strings.Join(e.tail, "\n    ")
	}
	return s + "\n    (all of it: " + e.log + ")"
}

func (e *commandError) Unwrap() error { return e.err }

// runCommand runs the command. A cancelled ctx ends it with SIGTERM; so does the
// death of this program, which is why the thread that starts it is kept.
func (c command) runCommand(ctx context.Context) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		done <- c.runHere(ctx)
	}()
	return <-done
}

func (c command) runHere(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Dir(c.log), 0o755); err != nil {
		return err
	}
	log, err := os.Create(c.log)
	if err != nil {
		return err
	}
	defer log.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	cmd := exec.CommandContext(ctx, c.args[0], c.args[1:]...)
	cmd.Dir, cmd.Env = c.dir, append(os.Environ(), c.env...)
	cmd.Stdout, cmd.Stderr = w, w
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if c.private {
		cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	err = cmd.Start()
	w.Close()
	if err != nil {
		return fmt.Errorf("%s: %w", c.args[0], err)
	}
	tail := c.followOutput(r, log)
	err = cmd.Wait()
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", c.args[0], ctx.Err())
	}
	if err != nil {
		return &commandError{filepath.Base(c.args[0]), err, tail, c.log}
	}
	return nil
}

// followOutput copies the output into the log, hands each line on and returns the
// last ones.
func (c command) followOutput(r io.Reader, log io.Writer) (tail []string) {
	in := bufio.NewReader(r)
	for {
		s, err := in.ReadString('\n')
		if s != "" {
			_, _ = io.WriteString(log, s)
		}
		if s = strings.TrimSpace(s); s != "" {
			if tail = append(tail, s); len(tail) > tailLines {
				tail = tail[1:]
			}
			if c.line != nil {
				c.line(s)
			}
		}
		if err != nil {
			return tail
		}
	}
}

// tailOf returns the last lines of a file, or nil.
func tailOf(path string, n int) []string {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return lines[max(0, len(lines)-n):]
}

// waitUntil calls ok until it is true or the time is over.
func waitUntil(ctx context.Context, limit time.Duration, ok func() bool) error {
	end := time.Now().Add(limit)
	for !ok() {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(end):
			return errors.New("timed out")
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil
}
