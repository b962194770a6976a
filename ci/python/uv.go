package python

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/lockedfile"
)

// UV is a uv program and the folder whose cache it uses. The environments that
// it makes are hard links into that cache, where the file system allows it.
type UV struct {
	program string
	cache   string
}

// GetUV returns the uv on PATH, or one of our own, which py installs into
// cacheDir once. log gets a line before that.
func GetUV(ctx context.Context, cacheDir, py string, log func(line string)) (UV, error) {
	if err := os.MkdirAll(cacheDir, 0o755); err != nil {
		return UV{}, err
	}
	cache := filepath.Join(cacheDir, "uv")
	if p, err := exec.LookPath("uv"); err == nil {
		return UV{p, cache}, nil
	}
	unlock, err := lockedfile.MutexAt(filepath.Join(cacheDir, "tools.lock")).Lock()
	if err != nil {
		return UV{}, err
	}
	defer unlock()
	tools := filepath.Join(cacheDir, "tools")
	uv := UV{filepath.Join(tools, "bin", "uv"), cache}
	if Run(ctx, nil, uv.program, "--version") == nil {
		return uv, nil
	}
	log("installing uv …")
	return uv, installUV(ctx, py, tools)
}

func installUV(ctx context.Context, py, tools string) error {
	inside := filepath.Join(tools, "bin", "python")
	if err := Run(ctx, nil, py, "-m", "venv", "--clear", tools); err == nil {
		return Run(ctx, nil, inside, "-m", "pip", "install", "--quiet", "uv")
	}
	// Debian's python3 without python3-venv cannot put pip into an
	// environment, but a pip beside it can install from outside.
	if err := Run(ctx, nil, py, "-m", "venv", "--clear", "--without-pip", tools); err != nil {
		return err
	}
	if err := Run(ctx, nil, py, "-m", "pip", "--python", inside, "install", "--quiet", "uv"); err != nil {
		return fmt.Errorf("installing uv (install python3-venv, or uv itself): %w", err)
	}
	return nil
}

// Run runs a command of uv, deaf to configuration files.
func (u UV) Run(ctx context.Context, args ...string) error {
	return Run(ctx, []string{"UV_CACHE_DIR=" + u.cache, "UV_NO_CONFIG=1", "UV_LINK_MODE=hardlink"}, u.program, args...)
}

// Venv makes an empty environment of the interpreter py in dir.
func (u UV) Venv(ctx context.Context, py, dir string) error {
	return u.Run(ctx, "venv", "--quiet", "--no-project", "--python", py, dir)
}

// Install installs packages into the environment of the interpreter py, from
// the cache if all of them are there. log gets a line before a download, for
// torch with what it needs are 5 GB on disk.
func (u UV) Install(ctx context.Context, py string, log func(line string), packages ...string) error {
	install := append([]string{"pip", "install", "--quiet", "--python", py}, packages...)
	if u.Run(ctx, append(install, "--offline")...) == nil {
		return nil
	}
	log(fmt.Sprintf("downloading (once): %s …", strings.Join(packages, " ")))
	begin := time.Now()
	if err := u.Run(ctx, install...); err != nil {
		return err
	}
	log(fmt.Sprintf("downloaded in %.0f s", time.Since(begin).Seconds()))
	return nil
}
