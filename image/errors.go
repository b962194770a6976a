package image

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/dsbuild/dsbuild/internal/hint"
)

// UsageError reports a choice that only the user can make: exit code 2.
type UsageError struct {
	err  error
	hint string
}

func (e *UsageError) Error() string { return e.err.Error() }
func (e *UsageError) Unwrap() error { return e.err }

// Hint returns the hint.
func (e *UsageError) Hint() string { return e.hint }

// ExitCode is the code for wrong usage.
func (e *UsageError) ExitCode() int { return 2 }

// usagef returns a *UsageError; hint may be "".
func usagef(hint, format string, args ...any) error {
	return &UsageError{fmt.Errorf(format, args...), hint}
}

// UnfitError reports a wheel that does not run on the base: exit code 4.
type UnfitError struct {
	Wheel, Base string
	Reasons     []string
	hint        string
}

func (e *UnfitError) Error() string {
	return fmt.Sprintf("%s does not fit %s: %s", e.Wheel, e.Base, strings.Join(e.Reasons, "; "))
}

// Hint returns the hint.
func (e *UnfitError) Hint() string { return e.hint }

// ExitCode is the code for a wheel that every node refuses.
func (e *UnfitError) ExitCode() int { return 4 }

// registryError adds a hint to the error of a registry.
func registryError(err error, registry string) error {
	var answer *transport.Error
	if !errors.As(err, &answer) {
		return err
	}
	switch answer.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		return hint.With(err, "log in first: docker login %s (or podman login); dsbuild uses the same file of credentials", registry)
	case http.StatusTooManyRequests:
		return hint.With(err, "%s limits requests: log in for a higher limit, or try again later", registry)
	case http.StatusNotFound:
		return hint.With(err, "%s has no such image, or does not show it to this user", registry)
	}
	return err
}
