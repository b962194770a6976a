package environment

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/dsbuild/dsbuild/internal/atomicfile"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/wheel"
)

// UV is the uv that dsbuild takes from an index and runs, on this machine and on nodes.
type UV struct {
	Version string
	Sums    []string // the sha256 of its wheels: no other file is run, whatever an index says
}

// FindUV returns a uv that is not older than this one: the one on PATH, or one from its wheel in the
// index, which is kept in dir.
func FindUV(ctx context.Context, uv UV, dir string, c *Collector) (string, error) {
	if p, err := exec.LookPath("uv"); err == nil {
		out, err := exec.CommandContext(ctx, p, "--version").Output()
		words := strings.Fields(string(out))
		if err == nil && len(words) > 1 && words[0] == "uv" && wheel.CompareVersions(words[1], uv.Version) >= 0 {
			return p, nil
		}
	}
	program := "uv"
	if runtime.GOOS == "windows" {
		program = "uv.exe"
	}
	place := filepath.Join(dir, "uv-"+uv.Version, program)
	if _, err := os.Stat(place); err == nil {
		return place, nil
	}
	if err := fetchUV(ctx, uv, place, c); err != nil {
		err = fmt.Errorf("no uv %s or newer on PATH, and none from the index: %w", uv.Version, err)
		return "", fault.WithHint(err, "install uv, or pass --index-url")
	}
	return place, nil
}

// fetchUV puts the program of uv's wheel at place.
func fetchUV(ctx context.Context, uv UV, place string, c *Collector) error {
	found, err := c.wheelsOf(ctx, "uv", uv.Version, uv.Sums)
	if err != nil {
		return err
	}
	here := slices.IndexFunc(found, func(f File) bool { return runsHere(f.File) })
	if here < 0 {
		return errors.New("no wheel for this machine")
	}
	path, _, err := c.fetch(ctx, found[here])
	if err != nil {
		return err
	}
	z, err := zip.OpenReader(path)
	if err != nil {
		return err
	}
	defer z.Close()
	for _, f := range z.File {
		if !strings.HasSuffix(f.Name, ".data/scripts/"+filepath.Base(place)) {
			continue
		}
		r, err := f.Open()
		if err != nil {
			return err
		}
		defer r.Close()
		if err := os.MkdirAll(filepath.Dir(place), 0o755); err != nil {
			return err
		}
		return atomicfile.Write(place, r, 0o755)
	}
	return errors.New(found[here].File + " has no uv executable")
}

// runsHere reports whether a wheel of uv is for this machine.
func runsHere(name string) bool {
	platform := map[string]string{"linux": "manylinux", "darwin": "macosx_", "windows": "win_"}[runtime.GOOS]
	machines := map[string][]string{"amd64": {"x86_64", "amd64"}, "arm64": {"aarch64", "arm64"}}[runtime.GOARCH]
	return platform != "" && strings.Contains(name, platform) && slices.ContainsFunc(machines, func(machine string) bool {
		return strings.HasSuffix(strings.TrimSuffix(name, ".whl"), "_"+machine)
	})
}
