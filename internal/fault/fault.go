// Package fault adds a hint and an exit code to an error. The hint is the next step to try, printed on
// a separate line. Every package may use it.
//
// A package defines its own error type only where a caller asks for that type. Hint and ExitCode
// also call such a type's Hint() string and ExitCode() int methods.
package fault

import (
	"errors"
	"fmt"
	"os/exec"
)

// dsbuild's exit codes. An error without a code exits with 1.
const (
	Usage = 2 // wrong usage, configuration or inventory, or no toolchain exists
	Nodes = 3 // some nodes failed, differ or are not ready
	Wheel = 4 // a wheel or package is damaged or not what was asked, or is incompatible with every node
)

type hinted struct {
	error
	hint string
}

func (h *hinted) Hint() string  { return h.hint }
func (h *hinted) Unwrap() error { return h.error }

type coded struct {
	error
	code int
}

func (c *coded) ExitCode() int { return c.code }
func (c *coded) Unwrap() error { return c.error }

// New returns an error with an exit code and a hint, which may be empty. The text is formatted as by
// fmt.Errorf.
func New(code int, hint, format string, args ...any) error {
	return WithCode(AddHint(fmt.Errorf(format, args...), hint), code)
}

// WithHint returns err with a hint. A nil err stays nil.
func WithHint(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return &hinted{err, fmt.Sprintf(format, args...)}
}

// AddHint is like WithHint, but an empty hint leaves err unchanged.
func AddHint(err error, text string) error {
	if text == "" {
		return err
	}
	return WithHint(err, "%s", text)
}

// WithCode returns err with an exit code. A nil err stays nil.
func WithCode(err error, code int) error {
	if err == nil {
		return nil
	}
	return &coded{err, code}
}

// Hint returns the outermost hint in err's chain, or "".
func Hint(err error) string {
	var h interface{ Hint() string }
	if errors.As(err, &h) {
		return h.Hint()
	}
	return ""
}

// ExitCode returns the exit code of the outermost error that has one, or 0. It ignores the exit
// status of a program that dsbuild ran (exec.ExitError).
func ExitCode(err error) int {
	if _, foreign := err.(*exec.ExitError); foreign { //nolint:errorlint // walks the tree itself
		return 0
	}
	if coded, ok := err.(interface{ ExitCode() int }); ok {
		return coded.ExitCode()
	}
	switch err := err.(type) { //nolint:errorlint // walks the tree itself
	case interface{ Unwrap() error }:
		if inner := err.Unwrap(); inner != nil {
			return ExitCode(inner)
		}
	case interface{ Unwrap() []error }:
		for _, inner := range err.Unwrap() {
			if code := ExitCode(inner); code != 0 {
				return code
			}
		}
	}
	return 0
}
