// Package needs skips tests whose real parts this machine does not have.
package needs

import (
	"os"
	"testing"
)

// Missing skips a test that lacks a part, but fails it if the variable CI is true.
func Missing(tb testing.TB, format string, args ...any) {
	tb.Helper()
	if os.Getenv("CI") == "true" {
		tb.Fatalf(format, args...)
	}
	tb.Skipf(format, args...)
}
