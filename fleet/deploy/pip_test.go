package deploy_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/deploy"
)

// TestPipIsPinned has a python3 that downloads another pip, from a folder in which somebody has put a module pip.
func TestPipIsPinned(t *testing.T) {
	bin, here, cache := t.TempDir(), t.TempDir(), t.TempDir()
	for path, text := range map[string]string{
		filepath.Join(bin, "python3"): "#!/bin/sh\necho \"$PWD $*\" >" + bin + "/asked\ncat requirements.txt >>" + bin + "/asked\necho evil >pip-25.2-py3-none-any.whl\n",
		filepath.Join(here, "pip.py"): "raise SystemExit(7)\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Chdir(here)
	_, err := deploy.DownloadPip(cache)(t.Context(), "3.11")
	if err == nil || !strings.Contains(err.Error(), "sha256 mismatch: got ") {
		t.Errorf("another pip: %v", err)
	}
	asked, err := os.ReadFile(filepath.Join(bin, "asked"))
	if err != nil || !strings.HasPrefix(string(asked), cache) || !strings.Contains(string(asked), " -I -m pip ") ||
		!strings.Contains(string(asked), "pip==25.2 --hash=sha256:") {
		t.Errorf("asked: %v, %s", err, asked)
	}
	if left, err := os.ReadDir(cache); err != nil || len(left) > 0 {
		t.Errorf("left in the cache: %v, %v", left, err)
	}
	if _, err := deploy.DownloadPip(cache)(t.Context(), "2.7"); err == nil ||
		!strings.Contains(err.Error(), "no pinned pip for Python 2.7") {
		t.Errorf("an old Python: %v", err)
	}
}
