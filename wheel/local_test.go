package wheel_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/wheel"
)

// Projects that build for each torch put it into the local version of the file's name, some of them there alone.
func TestLocalVersionOfTheFileName(t *testing.T) {
	for local, want := range map[string][2]string{
		"cu12torch2.6cxx11abiFALSE": {"2.6", "12"},
		"pt270cu126":                {"2.7", "12.6"},
		"torch280cu128":             {"2.8", "12.8"},
		"cu130torch29":              {"2.9", "13.0"},
		"pt26cu124":                 {"2.6", "12.4"},
		"cu128torch210":             {"2.10", "12.8"},
		"cu121torch210":             {"2.1", "12.1"},
		"torch210":                  {"", ""},
		"pt2100cu130":               {"2.10", "13.0"},
	} {
		c, err := inspectNamed(t, "1.0+"+local, "1.0")
		if err != nil || c.Torch != want[0] || c.CUDA != want[1] {
			t.Errorf("+%s: torch %q, CUDA %q, %v; want %q and %q", local, c.Torch, c.CUDA, err, want[0], want[1])
		}
	}
	for file, inside := range map[string]string{"1.0+cu128": "1.0+cu126", "1.1+cu128": "1.0", "1.0": "1.0+cu128"} {
		if _, err := inspectNamed(t, file, inside); err == nil || !strings.Contains(err.Error(), "the file name is of another distribution") {
			t.Errorf("file of %s with metadata of %s: %v, want it refused", file, inside, err)
		}
	}
}

// inspectNamed reads a wheel whose name has one version, and whose metadata another.
func inspectNamed(t *testing.T, file, inside string) (wheel.Contents, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pkg-"+file+"-cp311-cp311-linux_x86_64.whl")
	info := "pkg-" + inside + ".dist-info/"
	wheeltest.Write(t, path, map[string]string{
		info + "METADATA": "Metadata-Version: 2.1\nName: pkg\nVersion: " + inside + "\n",
		info + "WHEEL":    "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: cp311-cp311-linux_x86_64\n",
	})
	return wheel.Inspect(t.Context(), path)
}
