// Package enginectl asks ci/engine's program for a container engine. The
// program is built first: go run hides exit codes and signals.
package enginectl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/dsbuild/dsbuild/ci/child"
)

const program = "bin/enginectl"

// exitNone is the program's exit code where no engine can be had.
const exitNone = 3

// NoneError says why no container engine can be had on this machine.
type NoneError struct{ Why string }

func (e *NoneError) Error() string { return e.Why }

// Check returns which engine Ensure would use, or a *NoneError. It starts and
// installs nothing. The working folder is the checkout.
func Check(ctx context.Context) (how string, err error) {
	if err := exe(ctx, os.Stderr, "go", "build", "-trimpath", "-o", program, "./ci/engine"); err != nil {
		return "", err
	}
	var stdout, stderr bytes.Buffer
	cmd := child.Command(ctx, program, "check")
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	said := strings.TrimSpace(stdout.String())
	var ended *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case errors.As(err, &ended) && ended.ExitCode() == exitNone:
		return "", &NoneError{said}
	case err != nil:
		return "", fmt.Errorf("looking for a container engine: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return said, nil
}

// Ensure brings the engine up that Check has found, and prints which it is.
func Ensure(ctx context.Context, stdout io.Writer) error {
	return exe(ctx, stdout, program, "ensure")
}

func exe(ctx context.Context, stdout io.Writer, name string, args ...string) error {
	cmd := child.Command(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = stdout, os.Stderr
	err := cmd.Run()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return nil
}
