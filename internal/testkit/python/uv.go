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

	"github.com/dsbuild/dsbuild/dockerfiles"
)

// UV is a uv program and the folder whose cache it uses. The environments that it makes are hard
// links into this cache, if the file system allows that.
type UV struct {
	program string
	cache   string
}

// Program is the path of uv.
func (u UV) Program() string { return u.program }

// Downloads is the folder of uv's cache. The host builder uses the same one, so that torch is
// downloaded once.
func Downloads() (string, error) {
	cache, err := CacheDir()
	return filepath.Join(cache, "host", "uv-cache"), err
}

// GetUV returns the uv on PATH, or a uv that py installs once into dsbuild's folder. log gets a
// line before that.
func GetUV(ctx context.Context, py string, log func(line string)) (UV, error) {
	cacheDir, err := CacheDir()
	if err != nil {
		return UV{}, err
	}
	if err := os.MkdirAll(cacheDir, 0o755); err != nil {
		return UV{}, err
	}
	cache, err := Downloads()
	if err != nil {
		return UV{}, err
	}
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
	// Another version stores its cache in another format, and would repeat the downloads of a
	// build.
	if out, err := exec.CommandContext(ctx, uv.program, "--version").Output(); err == nil && strings.HasPrefix(string(out)+" ", "uv "+dockerfiles.UVVersion()+" ") {
		return uv, nil
	}
	log("installing uv …")
	return uv, installUV(ctx, py, tools)
}

// UVWheel returns the published wheel of the uv that dsbuild gives to nodes of a machine type. It is downloaded once.
func UVWheel(ctx context.Context, machine string, log func(line string)) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	py, err := Find(ctx, "3.11")
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "uv-"+dockerfiles.UVVersion())
	find := func() (string, error) {
		found, err := filepath.Glob(filepath.Join(dir, "uv-*manylinux*_"+machine+"*.whl"))
		if err != nil || len(found) == 0 {
			return "", err
		}
		return found[0], nil
	}
	if path, err := find(); path != "" || err != nil {
		return path, err
	}
	log("downloading uv for " + machine + " …")
	if err := Run(ctx, nil, py, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--platform", "manylinux2014_"+machine,
		"--dest", dir, "uv=="+dockerfiles.UVVersion()); err != nil {
		return "", err
	}
	return find()
}

// installUV installs the version of uv that the host builder uses.
func installUV(ctx context.Context, py, tools string) error {
	uv := "uv==" + dockerfiles.UVVersion()
	inside := filepath.Join(tools, "bin", "python")
	if err := Run(ctx, nil, py, "-m", "venv", "--clear", tools); err == nil {
		return Run(ctx, nil, inside, "-m", "pip", "install", "--quiet", uv)
	}
	// Debian's python3 without python3-venv cannot put pip into an
	// environment, but a pip beside it can install from outside.
	if err := Run(ctx, nil, py, "-m", "venv", "--clear", "--without-pip", tools); err != nil {
		return err
	}
	if err := Run(ctx, nil, py, "-m", "pip", "--python", inside, "install", "--quiet", uv); err != nil {
		return fmt.Errorf("installing uv (install python3-venv, or uv itself): %w", err)
	}
	return nil
}

// Run runs a command of uv without configuration files.
func (u UV) Run(ctx context.Context, args ...string) error {
	return Run(ctx, u.env(), u.program, args...)
}

func (u UV) env() []string {
	return []string{"UV_CACHE_DIR=" + u.cache, "UV_NO_CONFIG=1", "UV_LINK_MODE=hardlink"}
}

// Venv makes an empty environment of the interpreter py in dir.
func (u UV) Venv(ctx context.Context, py, dir string) error {
	return u.Run(ctx, "venv", "--quiet", "--no-project", "--python", py, dir)
}

// Install installs packages into the environment of the interpreter py, from
// the cache if all of them are there. log gets uv's lines about each long download: torch and its
// dependencies take 5 GB on disk.
func (u UV) Install(ctx context.Context, py string, log func(line string), packages ...string) error {
	install := append([]string{"pip", "install", "--python", py}, packages...)
	if u.Run(ctx, append(install, "--offline")...) == nil {
		return nil
	}
	log(fmt.Sprintf("downloading %s and %d packages more (once) …", packages[len(packages)-1], len(packages)-1))
	began := time.Now()
	err := runWithLines(ctx, u.env(), func(line string) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "Download") {
			log(line)
		}
	}, u.program, install...)
	if err != nil {
		return err
	}
	log(fmt.Sprintf("downloaded in %.0f s", time.Since(began).Seconds()))
	return nil
}
