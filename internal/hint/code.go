package hint

import "os/exec"

type withCode struct {
	error
	code int
}

func (c *withCode) ExitCode() int { return c.code }
func (c *withCode) Unwrap() error { return c.error }

// Coded returns err asking for an exit code. A nil err stays nil.
func Coded(err error, code int) error {
	if err == nil {
		return nil
	}
	return &withCode{err, code}
}

// ExitCode returns the exit code that the outermost error with one asks for, by a method
// ExitCode() int; 0 if none does. The exit status of a program that dsbuild ran (exec.ExitError) is
// not dsbuild's own.
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
