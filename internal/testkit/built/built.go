// Package built gives tests the engine and the wheel that make test prepares while other tests run.
package built

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/testkit/child"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
)

// logLines is the number of lines of a failed build's log that a test shows.
const logLines = 30

// Engine waits until make test has started its engine, or has found that this machine cannot run one. Without make test it does nothing.
func Engine(tb testing.TB) {
	tb.Helper()
	if dir := os.Getenv("DSBUILD_TEST_DIR"); dir != "" {
		wait(tb, dir, "engine")
	}
}

// Wheel waits for the wheel of make test: the default wheel of this checkout, for every GPU and torch 2.10 or newer. Without make
// test it skips the test, or fails it if the variable CI is true.
func Wheel(tb testing.TB) string {
	tb.Helper()
	files, err := filepath.Glob(filepath.Join(Dir(tb), "dist", "*.whl"))
	if err != nil || len(files) != 1 {
		tb.Fatalf("wheels of make test: %q, %v; want one", files, err)
	}
	return files[0]
}

// Dir waits for the wheel and returns the directory of make test: dist has the wheel and its sidecar files, wheel.json what dsbuild wheel printed.
func Dir(tb testing.TB) string {
	tb.Helper()
	dir := os.Getenv("DSBUILD_TEST_DIR")
	if dir == "" {
		needs.Missing(tb, "needs a wheel: run make test")
	}
	wait(tb, dir, "wheel")
	return dir
}

// wait waits for the file PART.status, which ci/built.sh writes when it has built a part, and fails the test if the build failed.
func wait(tb testing.TB, dir, part string) {
	tb.Helper()
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		status, err := os.ReadFile(filepath.Join(dir, part+".status"))
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			tb.Fatal(err)
		}
		if waited := time.Since(began); waited > time.Second {
			tb.Logf("waited %.0f s for the %s of make test", waited.Seconds(), part)
		}
		if text := strings.TrimSpace(string(status)); text != "0" {
			log := filepath.Join(dir, part+".log")
			output, _ := os.ReadFile(log) //nolint:errcheck // only for this message
			tb.Fatalf("make test has no %s: exit status %s; the end of %s:\n%s", part, text, log, child.LastLines(output, logLines))
		}
		return
	}
}
