package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/hint"
)

// A driver sends itself where it runs, the dsbuild for the node that lies beside it elsewhere, and
// nothing without one.
func TestVerifierForANode(t *testing.T) {
	t.Parallel()
	own := filepath.Join(t.TempDir(), "dsbuild")
	here := map[string]string{"amd64": "linux_x86_64", "arm64": "linux_aarch64"}[runtime.GOARCH]
	if got, err := dsbuildFor(here, own); runtime.GOOS == "linux" && (err != nil || got != own) {
		t.Errorf("%s: %q, %v", here, got, err)
	}
	other, name := "linux_aarch64", "dsbuild-linux-arm64"
	if here == other {
		other, name = "linux_x86_64", "dsbuild-linux-amd64"
	}
	for _, platform := range []string{other, "linux_riscv64", ""} {
		if got, err := dsbuildFor(platform, own); err == nil || !strings.Contains(err.Error(), "does not run there") || !strings.Contains(hint.Of(err), "beside this one") {
			t.Errorf("%q: %q, %v", platform, got, err)
		}
	}
	beside := filepath.Join(filepath.Dir(own), name)
	if err := os.WriteFile(beside, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := dsbuildFor(other, own); err != nil || got != beside {
		t.Errorf("%s: %q, %v", other, got, err)
	}
}
