package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// The exit codes of dsbuild (docs/commands.md).
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = fault.Usage
	exitNodes       = fault.Nodes
	exitWheel       = fault.Wheel
	exitInterrupted = 130 // SIGINT or SIGTERM
)

// exitMeaning is a row of the contract.
type exitMeaning struct {
	code    int
	meaning string
}

// exitMeanings lists all codes for the help and docs/commands.md.
func exitMeanings() []exitMeaning {
	return []exitMeaning{
		{exitOK, "success"},
		{exitFailed, "failure, or lint findings"},
		{exitUsage, "invalid usage, configuration or inventory; no matching toolchain"},
		{exitNodes, "some nodes failed, drifted or are not ready"},
		{exitWheel, "a wheel or package is corrupt, fails its audit, or fits no node"},
		{exitInterrupted, "interrupted"},
	}
}

// exitCode is the one place that turns an error into an exit code. An error
// chooses its own by a method ExitCode() int; any other is a failed run.
func exitCode(ctx context.Context, err error) int {
	if err == nil {
		return exitOK
	}
	if wasInterrupted(ctx) {
		return exitInterrupted
	}
	switch code := fault.ExitCode(err); code {
	case exitUsage, exitNodes, exitWheel, exitInterrupted:
		return code
	default:
		return exitFailed
	}
}

// plainInterrupt replaces the echoes of a cancelled context by the plain fact.
func plainInterrupt(ctx context.Context, err error) error {
	if wasInterrupted(ctx) && errors.Is(err, context.Canceled) {
		return context.Cause(ctx)
	}
	return err
}

// usageError is wrong usage of a command: exit code 2, and its help is named.
type usageError struct {
	err     error
	hint    string // the value that may be meant, or ""
	command string // the full command, as in "dsbuild nodes"; executeCommand sets it
}

// usagef reports wrong flags and arguments that a command itself finds.
func usagef(format string, args ...any) error {
	return &usageError{err: fmt.Errorf(format, args...)}
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }
func (e *usageError) ExitCode() int { return exitUsage }

// Hint suggests the likely value, and the command's help.
func (e *usageError) Hint() string {
	help := "see '" + e.command + " --help'"
	switch {
	case e.hint == "":
		return help
	case strings.HasSuffix(e.hint, "?"):
		return e.hint + " " + help
	}
	return e.hint + "; " + help
}
