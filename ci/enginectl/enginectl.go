// Package enginectl asks ci/engine's program for a container engine. It builds the program
// first, because go run hides exit codes and signals.
package enginectl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/dsbuild/dsbuild/internal/testkit/child"
)

// own is the program's name for dsbuild's own engine.
const own = "dsbuild's own engine"

// exitNone is the program's exit code if there is no engine.
const exitNone = 3

// NoneError gives the reason why this machine has no container engine.
type NoneError struct{ Why string }

func (e *NoneError) Error() string { return e.Why }

// Engine is the engine that builds on this machine.
type Engine struct {
	Name    string
	started bool
	program string
}

// Prepare returns the engine that builds here, or a *NoneError. An engine in a container answers
// when Prepare returns. dsbuild's own engine may take minutes to compile, and Start starts it.
// The working folder is the checkout; Prepare writes the program into the folder bin.
func Prepare(ctx context.Context, bin string) (Engine, error) {
	program := filepath.Join(bin, "enginectl")
	absolute, err := filepath.Abs(program)
	if err != nil {
		return Engine{}, err
	}
	build := child.Command(ctx, "go", "build", "-C", "ci", "-trimpath", "-o", absolute, "./engine")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		return Engine{}, fmt.Errorf("compiling ci/engine: %w", err)
	}
	name, err := runProgram(ctx, program, "check")
	if err != nil || name == own {
		return Engine{Name: name, program: program}, err
	}
	name, err = runProgram(ctx, program, "ensure")
	return Engine{Name: name, program: program, started: true}, err
}

// Start starts the engine unless Prepare has done so, and returns its name, or a *NoneError.
func (e Engine) Start(ctx context.Context) (name string, err error) {
	if e.started {
		return e.Name, nil
	}
	return runProgram(ctx, e.program, "ensure")
}

// runProgram returns the program's output.
func runProgram(ctx context.Context, program, command string) (string, error) {
	var stdout bytes.Buffer
	cmd := child.Command(ctx, program, command)
	cmd.Stdout, cmd.Stderr = &stdout, os.Stderr
	err := cmd.Run()
	printed := strings.TrimSpace(stdout.String())
	var ended *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case errors.As(err, &ended) && ended.ExitCode() == exitNone:
		return "", &NoneError{printed}
	case err != nil:
		return "", fmt.Errorf("%s %s: %w", program, command, err)
	}
	return printed, nil
}
