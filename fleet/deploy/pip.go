package deploy

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/adrg/xdg"

	"github.com/dsbuild/dsbuild/dockerfiles"
	"github.com/dsbuild/dsbuild/wheel"
)

// DefaultPip is DownloadPip with the user's cache directory.
func DefaultPip() func(ctx context.Context, python string) (string, error) {
	return DownloadPip(filepath.Join(xdg.CacheHome, "dsbuild", "pip"))
}

// DownloadPip returns a function that returns the pinned pip wheel for a Python X.Y from dir, or downloads it with the
// pip of the local python3. Because nodes run it, its SHA-256 is always checked.
func DownloadPip(dir string) func(ctx context.Context, python string) (string, error) {
	return func(ctx context.Context, python string) (string, error) {
		pip, ok := dockerfiles.PinnedPip(python)
		if !ok {
			return "", fmt.Errorf("no pinned pip for Python %s", python)
		}
		name := fmt.Sprintf("pip-%s-py3-none-any.whl", pip.Version)
		file := filepath.Join(dir, name)
		if sum, _, err := wheel.HashFile(file); err == nil && sum == pip.SHA256 {
			return file, nil
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return "", err
		}
		fresh, err := os.MkdirTemp(dir, "fresh-*")
		if err != nil {
			return "", err
		}
		defer os.RemoveAll(fresh)
		pinned := fmt.Sprintf("%s --hash=sha256:%s\n", pip, pip.SHA256)
		if err := os.WriteFile(filepath.Join(fresh, "requirements.txt"), []byte(pinned), 0o644); err != nil {
			return "", err
		}
		// Isolated and in a new folder, because Python would run a folder named pip in the current one.
		cmd := exec.CommandContext(ctx, "python3", "-I", "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
			"--no-deps", "--only-binary", ":all:", "--python-version", python,
			"--require-hashes", "--requirement", "requirements.txt", "--dest", ".")
		cmd.Dir = fresh
		if out, err := cmd.CombinedOutput(); err != nil {
			lines := strings.Split(string(bytes.TrimSpace(out)), "\n")
			return "", fmt.Errorf("python3 -m pip download %s: %w: %s", pip, err, lines[len(lines)-1])
		}
		sum, _, err := wheel.HashFile(filepath.Join(fresh, name))
		if err != nil {
			return "", fmt.Errorf("python3 -m pip download %s: %w", pip, err)
		}
		if sum != pip.SHA256 {
			return "", fmt.Errorf("python3 -m pip download %s: sha256 mismatch: got %s, want %s", pip, sum, pip.SHA256)
		}
		return file, os.Rename(filepath.Join(fresh, name), file)
	}
}
