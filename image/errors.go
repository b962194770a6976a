package image

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// usagef returns the error of a choice that only the user can make; advice may be "".
func usagef(advice, format string, args ...any) error {
	return fault.WithCode(fault.AddHint(fmt.Errorf(format, args...), advice), 2)
}

// registryError adds a hint to the error of a registry.
func registryError(err error, ref name.Reference) error {
	var answer *transport.Error
	if !errors.As(err, &answer) || ref == nil {
		return err
	}
	registry := ref.Context().RegistryStr()
	switch answer.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		return fault.WithHint(err, "log in first: docker login %s (or podman login); dsbuild uses the same file of credentials", registry)
	case http.StatusTooManyRequests:
		return fault.WithHint(err, "%s limits requests: log in for a higher limit, or try again later", registry)
	case http.StatusNotFound:
		return fault.WithHint(err, "%s has no such image, or does not show it to this user", registry)
	}
	return err
}
