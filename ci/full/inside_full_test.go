//go:build full

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// fullTool runs one of the tools that make test-full has installed.
func fullTool(t *testing.T, name string, args ...string) string {
	t.Helper()
	dir := os.Getenv("DSBUILD_FULL_DIR")
	if dir == "" {
		t.Fatal("DSBUILD_FULL_DIR is not set: run make test-full PART=inside")
	}
	out, err := exec.Command(filepath.Join(dir, "tools", "bin", name), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

func TestFullInsideTwine(t *testing.T) {
	out := fullTool(t, "twine", "--no-color", "check", "--strict", os.Getenv("DSBUILD_TEST_WHEEL"))
	if !strings.Contains(out, "PASSED") {
		t.Error(out)
	}
}

func TestFullInsideAuditwheel(t *testing.T) {
	out := strings.Join(strings.Fields(fullTool(t, "auditwheel", "show", os.Getenv("DSBUILD_TEST_WHEEL"))), " ")
	t.Log(out)
	_, tag, found := strings.Cut(out, `constrains the platform tag to "`)
	tag, _, closed := strings.Cut(tag, `"`)
	if !found || !closed {
		t.Fatal("auditwheel names no platform tag")
	}
	t.Logf("result: auditwheel's platform tag: %s", tag)
}
