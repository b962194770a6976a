// Package needs decides how a test ends if this machine lacks the real parts that it needs.
package needs

import (
	"os"
	"testing"
)

// Missing skips a test for want of a part, but fails it where the variable CI is true.
func Missing(tb testing.TB, format string, args ...any) {
	tb.Helper()
	if os.Getenv("CI") == "true" {
		tb.Fatalf(format, args...)
	}
	tb.Skipf(format, args...)
}
