// Package enginectl asks ci/engine's program for a container engine. The
// program is built first: go run hides exit codes and signals.
package enginectl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/dsbuild/dsbuild/ci/child"
)

const program = "bin/enginectl"

// own is what the program prints for dsbuild's own engine.
const own = "dsbuild's own engine"

// exitNone is the program's exit code where no engine can be had.
const exitNone = 3

// NoneError says why no container engine can be had on this machine.
type NoneError struct{ Why string }

func (e *NoneError) Error() string { return e.Why }

// Prepare returns which engine builds here, or a *NoneError. An engine in a
// container answers when it returns; dsbuild's own, which can take minutes, is
// left to Ensure. The working folder is the checkout.
func Prepare(ctx context.Context) (how string, err error) {
	build := child.Command(ctx, "go", "build", "-trimpath", "-o", program, "./ci/engine")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		return "", fmt.Errorf("compiling ci/engine: %w", err)
	}
	how, err = run(ctx, "check")
	if err == nil && how != own {
		how, err = run(ctx, "ensure")
	}
	return how, err
}

// Ensure brings the engine up that Prepare has found, and returns which it is,
// or a *NoneError.
func Ensure(ctx context.Context) (how string, err error) { return run(ctx, "ensure") }

// run returns what the program prints.
func run(ctx context.Context, command string) (string, error) {
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
