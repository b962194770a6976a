// Package needs skips tests whose real parts this machine does not have.
package needs

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// Missing skips a test that lacks a part, but fails it if the variable CI is true. For the list
// that make test prints, it writes the reason into the file skipped of DSBUILD_TEST_DIR.
func Missing(tb testing.TB, format string, args ...any) {
	tb.Helper()
	if os.Getenv("CI") == "true" {
		tb.Fatalf(format, args...)
	}
	if dir := os.Getenv("DSBUILD_TEST_DIR"); dir != "" {
		list, err := os.OpenFile(filepath.Join(dir, "skipped"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			tb.Fatal(err)
		}
		defer list.Close()
		fmt.Fprintf(list, "%s: %.150q\n", tb.Name(), fmt.Sprintf(format, args...))
	}
	tb.Skipf(format, args...)
}
