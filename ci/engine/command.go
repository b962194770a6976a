package main

import (
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

	"github.com/dsbuild/dsbuild/internal/testkit/child"
)

// tailLines is the number of lines of a failed command's output that its error shows.
const tailLines = 15

// command is a program to run, with its output in a log.
type command struct {
	args  []string
	dir   string
	env   []string     // added to the program's own environment
	log   string       // file that receives the output
	line  func(string) // called with each line of output; may be nil
	aside bool         // low priority, and its own mount namespace: no mount outlives it
}

// runCommand runs the command. When ctx ends, or this program dies, the command gets SIGTERM.
// The latter is tied to the thread that started the command, so runCommand keeps that thread.
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
	last := child.Tail{Most: tailLines}
	out := io.MultiWriter(log, child.NewLines(func(line string) {
		if line = strings.TrimSpace(line); line == "" {
			return
		}
		last.Add("    " + line)
		if c.line != nil {
			c.line(line)
		}
	}))
	cmd := exec.CommandContext(ctx, c.args[0], c.args[1:]...)
	cmd.Dir, cmd.Env = c.dir, append(os.Environ(), c.env...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if c.aside {
		cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
		if err := syscall.Setpriority(syscall.PRIO_PROCESS, 0, 10); err != nil { // of this thread: the command inherits it
			return err
		}
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	err = cmd.Run()
	switch name := filepath.Base(c.args[0]); {
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", name, ctx.Err())
	case err != nil:
		return fmt.Errorf("%s: %w; its last lines:\n%s\n    (all of it: %s)", name, err, &last, c.log)
	}
	return nil
}

// tailOf returns the last n lines of a file, or nothing.
func tailOf(path string, n int) string {
	text, _ := os.ReadFile(path) //nolint:errcheck // only for a message
	return strings.ReplaceAll(child.LastLines(text, n), "\n", "\n    ")
}

// waitUntil calls ok until it returns true or a timeout.
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
