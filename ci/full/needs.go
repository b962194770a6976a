package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/dsbuild/dsbuild/ci/enginectl"
	"github.com/dsbuild/dsbuild/internal/testkit/python"
	"github.com/dsbuild/dsbuild/internal/ui"
)

//go:embed requirements.txt
var requirements string

// installTools makes the Python environment of the tools, unless one with the same requirements
// exists. The folder tools is a link to it.
func (b *bench) installTools(ctx context.Context, step ui.Step) (string, error) {
	var packages []string
	for line := range strings.Lines(requirements) {
		if requirement, _, _ := strings.Cut(line, "#"); strings.TrimSpace(requirement) != "" {
			packages = append(packages, strings.TrimSpace(requirement))
		}
	}
	tools, err := python.Environment(ctx, python.EnvironmentOptions{Packages: packages, Log: step.Log})
	if err != nil {
		return "", err
	}
	return "", errors.Join(os.RemoveAll(b.path("tools")), os.Symlink(tools, b.path("tools")), b.linkCuobjdump())
}

// linkCuobjdump puts NVIDIA's program beside the others; its package hides it in a folder of its
// CUDA version.
func (b *bench) linkCuobjdump() error {
	const hidden = "lib/python*/site-packages/nvidia/*/bin/cuobjdump"
	found, err := filepath.Glob(b.path("tools", hidden))
	if err != nil || len(found) != 1 {
		return fmt.Errorf("%d files are %s of the tools, instead of one", len(found), hidden)
	}
	link := b.path("tools", "bin", "cuobjdump")
	return errors.Join(os.RemoveAll(link), os.Symlink(found[0], link))
}

// startEngine makes sure that a Dagger engine answers.
func (b *bench) startEngine(ctx context.Context, _ ui.Step) (string, error) {
	found, err := enginectl.Prepare(ctx, "bin")
	if err != nil {
		return "", err
	}
	return found.Start(ctx)
}

// buildWheel compiles a wheel anew, as make test does: the proofs must test this checkout, not a
// wheel in the store.
func (b *bench) buildWheel(ctx context.Context, step ui.Step) (string, error) {
	if err := b.runCommand(ctx, step, nil, "go", "build", "-trimpath", "-o", "bin/dsbuild", "./cmd/dsbuild"); err != nil {
		return "", err
	}
	document, err := os.Create(b.path("run", "wheel.json"))
	if err != nil {
		return "", err
	}
	defer document.Close()
	err = b.runCommand(ctx, step, document, "bin/dsbuild", "wheel", "--arch", "8.0", "--no-cache", "--json", "-o", b.path("run", "dist"))
	if err != nil {
		return "", err
	}
	built, err := filepath.Glob(b.path("run", "dist", "*.whl"))
	if err != nil || len(built) != 1 {
		return "", fmt.Errorf("%d wheels were built instead of one", len(built))
	}
	b.built = built[0]
	return filepath.Base(b.built), nil
}
