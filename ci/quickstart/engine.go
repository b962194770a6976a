package main

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

// noneError is why this machine has no container engine.
type noneError struct{ Why string }

func (e *noneError) Error() string { return e.Why }

// containerEngine is the engine that builds on this machine.
type containerEngine struct {
	name    string
	started bool
	program string
}

// prepareEngine returns the engine that builds here, or a *noneError. An engine in a container answers
// when prepareEngine returns. dsbuild's own engine may take minutes to compile, and start starts it.
// The working directory is the checkout. prepareEngine compiles ci/engine into bin, because go run
// would hide its exit codes and signals.
func prepareEngine(ctx context.Context, bin string) (containerEngine, error) {
	program := filepath.Join(bin, "ci", "engine")
	build := child.Command(ctx, "go", "build", "-C", "ci", "-o", program, "./engine")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		return containerEngine{}, fmt.Errorf("compiling ci/engine: %w", err)
	}
	name, err := runProgram(ctx, program, "check")
	if err != nil || name == own {
		return containerEngine{name: name, program: program}, err
	}
	name, err = runProgram(ctx, program, "ensure")
	return containerEngine{name: name, program: program, started: true}, err
}

// start starts the engine unless prepareEngine has done so, and returns its name, or a *noneError.
func (e containerEngine) start(ctx context.Context) (name string, err error) {
	if e.started {
		return e.name, nil
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
		return "", &noneError{printed}
	case err != nil:
		return "", fmt.Errorf("%s %s: %w", program, command, err)
	}
	return printed, nil
}
