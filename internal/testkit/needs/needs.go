// Package needs skips tests whose real parts this machine does not have, and long ones where time is short.
package needs

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// Program returns the path of dsbuild in the checkout at root, which make build compiles. Without it the test lacks a part.
func Program(tb testing.TB, root string) string {
	tb.Helper()
	program := filepath.Join(root, "bin", "dsbuild")
	if _, err := os.Stat(program); err != nil {
		Missing(tb, "no program: %v; make build makes it", err)
	}
	return program
}

// Time skips a test that takes seconds of a processor in make check (go test -short). make test runs it.
func Time(tb testing.TB) {
	tb.Helper()
	if testing.Short() {
		tb.Skip("make test runs it")
	}
}

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
