//go:build full

package rules_test

import (
	"os/exec"
	"testing"
)

// TestFullLint compiles golangci-lint, which takes longer than reading the sources with it.
func TestFullLint(t *testing.T) { runMake(t, "lint") }

// TestFullFuzz fuzzes each target, which proves that all can be: to look for faults, make fuzz takes as long as one likes.
func TestFullFuzz(t *testing.T) { runMake(t, "fuzz", "FUZZTIME=5s") }

func runMake(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "make", append([]string{"--no-print-directory"}, args...)...)
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("make %q: %v\n%s", args, err, out)
	}
}
