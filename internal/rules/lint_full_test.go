//go:build full

package rules_test

import (
	"os/exec"
	"testing"
)

// TestFullLint compiles golangci-lint, which takes longer than reading the sources with it.
func TestFullLint(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "make", "--no-print-directory", "lint")
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("make lint: %v\n%s", err, out)
	}
}
