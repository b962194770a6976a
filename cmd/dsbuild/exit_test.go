package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/inventory"
)

type codedError int

func (c codedError) Error() string { return fmt.Sprintf("asks for %d", int(c)) }
func (c codedError) ExitCode() int { return int(c) }

func TestExitCode(t *testing.T) {
	foreign := exec.Command("sh", "-c", "exit 4").Run()
	if foreign == nil {
		t.Fatal("exit 4 succeeded")
	}
	plain := errors.New("plain")
	for name, c := range map[string]struct {
		err  error
		want int
	}{
		"none":                          {nil, 0},
		"plain":                         {plain, 1},
		"usage":                         {usagef("bad"), 2},
		"inventory":                     {&inventory.Error{}, 2},
		"nodes":                         {codedError(3), 3},
		"wheel":                         {codedError(4), 4},
		"wrapped":                       {fmt.Errorf("deploy: %w", fault.WithHint(codedError(3), "look")), 3},
		"joined":                        {errors.Join(plain, codedError(4)), 4},
		"several wrapped":               {fmt.Errorf("%w and %w", plain, codedError(2)), 2},
		"a code that is none of ours":   {codedError(77), 1},
		"zero with an error":            {codedError(0), 1},
		"another program's exit status": {fmt.Errorf("gcc: %w", foreign), 1},
		"cancelled, but by no signal":   {context.Canceled, 1},
	} {
		if got := exitCode(t.Context(), c.err); got != c.want {
			t.Errorf("%s: exit code %d, want %d", name, got, c.want)
		}
	}
}

func TestFirstInterruptCancels(t *testing.T) {
	var stderr strings.Builder
	console := ui.New(&stderr, ui.Options{})
	ctx, stop := withInterrupt(t.Context(), console, func() {})
	defer stop()
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	err := fmt.Errorf("compile: %w", ctx.Err())
	if got := exitCode(ctx, err); got != exitInterrupted {
		t.Errorf("exit code %d", got)
	}
	if got := exitCode(ctx, nil); got != exitOK {
		t.Errorf("exit code %d for what was done nevertheless", got)
	}
	if got := exitCode(ctx, codedError(3)); got != exitInterrupted {
		t.Errorf("exit code %d for a report cut short", got)
	}
	if got := plainInterrupt(ctx, err).Error(); got != "interrupted (SIGTERM)" {
		t.Errorf("said is %q", got)
	}
	if got := plainInterrupt(ctx, codedError(3)).Error(); got != "asks for 3" {
		t.Errorf("said is %q", got)
	}
}

func TestSecondInterruptExits(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Args[0] = "stubborn"
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	for _, want := range []string{"ready", "interrupted"} {
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("got %q, want %q", lines.Text(), want)
		}
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != exitInterrupted {
		t.Errorf("exit code %d", code)
	}
	if want := "warning: stopping (SIGINT); a second signal stops immediately\n"; stderr.String() != want {
		t.Errorf("stderr is %q", stderr.String())
	}
}

// Every command has what its help needs, and errors that reach the exit code.
func TestCommandsAreComplete(t *testing.T) {
	root := newRootCommand(&app{stdin: strings.NewReader(""), stdout: io.Discard, stderr: io.Discard})
	var check func(cmd *cobra.Command)
	check = func(cmd *cobra.Command) {
		path := cmd.CommandPath()
		if cmd.Name() == "help" {
			return
		}
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: its short text is %q", path, cmd.Short)
		}
		if cmd.RunE == nil || cmd.Run != nil {
			t.Errorf("%s: needs RunE, and no Run", path)
		}
		if cmd.Args == nil {
			t.Errorf("%s: says nothing about its arguments", path)
		}
		for _, sub := range cmd.Commands() {
			check(sub)
		}
	}
	check(root)
}
