package environment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/scratch"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// lockedPackage is a package in uv's output, a lockfile of PEP 751.
type lockedPackage struct {
	Name    string        `toml:"name"`
	Version string        `toml:"version"`
	Wheels  []lockedWheel `toml:"wheels"`
}

type lockedWheel struct {
	Name   string            `toml:"name"`
	URL    string            `toml:"url"`
	Path   string            `toml:"path"`
	Size   int64             `toml:"size"`
	Hashes map[string]string `toml:"hashes"`
}

// fileName returns the wheel's name, which PEP 751 omits if the URL ends with it.
func (w lockedWheel) fileName() string {
	if w.Name != "" {
		return w.Name
	}
	if u, err := url.Parse(w.URL); err == nil && w.URL != "" {
		return path.Base(u.Path)
	}
	return path.Base(filepath.ToSlash(w.Path))
}

// runUV resolves the requirements of a Spec for one node type. The versions in known are preferred.
func (r Resolver) runUV(ctx context.Context, s *Spec, k Platform, locals, known []File) ([]lockedPackage, error) {
	tmp, err := scratch.New("")
	if err != nil {
		return nil, err
	}
	defer tmp.Close()
	project, err := r.project(s, locals)
	if err != nil {
		return nil, err
	}
	pins := filepath.Join(tmp.Path, "pins.txt")
	var pinned strings.Builder // as uv writes its own output
	for _, f := range known {
		if f.Path == "" {
			fmt.Fprintf(&pinned, "%s==%s\n", f.Name, f.Version)
		}
	}
	files := map[string]string{
		"pyproject.toml": project,
		"pins.txt":       pinned.String(),
		"overrides.txt":  strings.Join(s.Overrides, "\n"),
	}
	for name, text := range files { // private, because an index URL may have a password
		if err := os.WriteFile(filepath.Join(tmp.Path, name), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	platform, err := uvPlatform(k)
	if err != nil {
		return nil, err
	}
	common := []string{
		"pip", "compile", "pyproject.toml",
		"--quiet", "--no-header", "--no-annotate", "--no-progress", "--color", "never", "--only-binary", ":all:",
		"--python-version", s.Python, "--python-platform", platform, "--overrides", "overrides.txt",
	}
	// The first run lets uv prefer the versions that it finds in its own output, the second writes
	// the same versions in the form that names files.
	if err := r.run(ctx, tmp.Path, append(common, "--output-file", pins)...); err != nil {
		return nil, err
	}
	answer := filepath.Join(tmp.Path, "pylock.toml")
	err = r.run(ctx, tmp.Path,
		append(common, "--constraints", pins, "--format", "pylock.toml", "--output-file", answer)...)
	if err != nil {
		return nil, err
	}
	var got struct {
		Packages []lockedPackage `toml:"packages"`
	}
	if _, err := toml.DecodeFile(answer, &got); err != nil {
		return nil, fmt.Errorf("cannot parse uv's output: %w", err)
	}
	return got.Packages, nil
}

// torchLocal finds the name of torch's own index in a version: cu132 of 2.15.0+cu132.
var torchLocal = regexp.MustCompile(`\+(cu\d+|cpu)$`)

// project returns the pyproject.toml of the environment for uv. Only a torch with a local version,
// for a CUDA that the package index lacks, comes from torch's own index.
func (r Resolver) project(s *Spec, locals []File) (string, error) {
	type table = map[string]any
	wanted := []string{}
	for _, l := range locals {
		abs, err := filepath.Abs(l.Path)
		if err != nil {
			return "", err
		}
		wanted = append(wanted, l.Name+" @ "+(&url.URL{Scheme: "file", Path: filepath.ToSlash(abs)}).String())
	}
	if s.Torch != "" {
		wanted = append(wanted, "torch=="+s.Torch)
	}
	for _, w := range s.Wanted {
		wanted = append(wanted, w.Text)
	}
	doc := table{"project": table{
		"name": "dsbuild-environment", "version": "0",
		"requires-python": ">=" + s.Python, "dependencies": wanted,
	}}
	if m := torchLocal.FindStringSubmatch(s.Torch); m != nil {
		doc["tool"] = table{"uv": table{
			"sources": table{"torch": table{"index": "torch"}},
			"index":   []table{{"name": "torch", "url": r.TorchIndex + "/" + m[1], "explicit": true}},
		}}
	}
	var out bytes.Buffer
	err := toml.NewEncoder(&out).Encode(doc)
	return out.String(), err
}

// uvPlatform returns uv's name for a node type. uv knows only some versions of glibc, so it is the
// newest that is not newer than the nodes'.
func uvPlatform(k Platform) (string, error) {
	minor, err := strconv.Atoi(strings.TrimPrefix(k.Glibc, "2."))
	if err != nil || minor < 17 {
		return "", fault.WithHint(resolveErrorf("glibc %s is too old for uv", k.Glibc),
			"use nodes with glibc 2.17 or newer")
	}
	switch {
	case minor < 28:
		minor = 17
	case minor < 31:
		minor = 28
	case minor > 40:
		minor = 40
	}
	return fmt.Sprintf("%s-manylinux_2_%d", k.Machine, minor), nil
}

// noSolution is uv's exit code if no set of packages meets the requirements. For an index that does not answer,
// the code differs.
const noSolution = 1

// run runs uv in a directory. Its error has uv's own explanation.
func (r Resolver) run(ctx context.Context, dir string, args ...string) error {
	cmd := exec.CommandContext(ctx, r.UV, args...)
	var said bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, r.Environ, &said, &said
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &exit):
		words := ui.Clean(strings.TrimPrefix(strings.TrimSpace(said.String()), "error: "))
		if exit.ExitCode() == noSolution {
			return resolveErrorf("uv cannot resolve the requirements: %s", words)
		}
		return fmt.Errorf("uv exited with status %d: %s", exit.ExitCode(), words)
	case err != nil:
		return fmt.Errorf("uv: %w", err)
	}
	return nil
}

// resolveErrorf returns the error of requirements that no set of files meets.
func resolveErrorf(format string, args ...any) error {
	return fault.WithCode(fmt.Errorf(format, args...), 2)
}
