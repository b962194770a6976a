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

	"github.com/dsbuild/dsbuild/deploy/wheels"
	"github.com/dsbuild/dsbuild/wheel"
)

// DefaultPip is DownloadPip with this user's cache folder.
func DefaultPip() func(ctx context.Context, python string) (string, error) {
	return DownloadPip(filepath.Join(xdg.CacheHome, "dsbuild", "pip"))
}

// DownloadPip returns a function that finds a pip wheel for a Python X.Y in dir. If dir has none,
// the function downloads one with the pip of the local python3.
func DownloadPip(dir string) func(ctx context.Context, python string) (string, error) {
	return func(ctx context.Context, python string) (string, error) {
		place := filepath.Join(dir, python)
		if found := pipIn(place); found != "" {
			return found, nil
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return "", err
		}
		fresh, err := os.MkdirTemp(dir, python+"-*")
		if err != nil {
			return "", err
		}
		defer os.RemoveAll(fresh)
		cmd := exec.CommandContext(ctx, "python3", "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
			"--only-binary", ":all:", "--python-version", python, "--dest", fresh, "pip")
		if out, err := cmd.CombinedOutput(); err != nil {
			lines := strings.Split(string(bytes.TrimSpace(out)), "\n")
			return "", fmt.Errorf("python3 -m pip download pip: %w: %s", err, lines[len(lines)-1])
		}
		// Another run may have been faster; its wheel is just as good.
		if err := os.Rename(fresh, place); err != nil && pipIn(place) == "" {
			return "", err
		}
		if found := pipIn(place); found != "" {
			return found, nil
		}
		return "", fmt.Errorf("python3 -m pip download pip left no wheel")
	}
}

func pipIn(dir string) string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return ""
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "pip-") && strings.HasSuffix(e.Name(), ".whl") {
			return filepath.Join(dir, e.Name())
		}
	}
	return ""
}

// fetchPips gets the pip wheels for nodes without any pip, one for each Python. It returns the
// errors for the Pythons without one.
func (d *Deployment) fetchPips(ctx context.Context) map[string]error {
	none := map[string]error{}
	for _, u := range d.nodes {
		if u.facts == nil || u.facts.Pip != "" || u.facts.PipWheel != "" || u.facts.Dists == nil || d.opt.PipWheel == nil {
			continue
		}
		python := wheel.Minor(u.facts.Python)
		if _, done := d.pips[python]; done || none[python] != nil {
			continue
		}
		file, err := d.opt.PipWheel(ctx, python)
		if err != nil {
			none[python] = err
			continue
		}
		sum, size, err := wheel.HashFile(file)
		if err != nil {
			none[python] = err
			continue
		}
		d.pips[python] = wheels.File{Path: file, SHA256: sum, Size: size}
	}
	return none
}
