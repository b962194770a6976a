package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/pipeline/engine"
	"github.com/dsbuild/dsbuild/wheel"
)

// MakeImage writes an installed engine as an image for docker, podman and nerdctl, with the name that
// the Dagger client requests. The file is for machines that cannot pull the image.
func MakeImage(ctx context.Context, l Layout, con *console, file string) error {
	if !l.Installed() {
		return fault.WithHint(fmt.Errorf("no engine is installed in %s", l.Root), "install it: make engine")
	}
	unlock, err := l.lock(ctx, con)
	if err != nil {
		return err
	}
	defer unlock()
	work, err := os.MkdirTemp(filepath.Dir(file), ".engine-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	dialer := filepath.Join(work, "buildctl")
	if err := buildDialer(ctx, l, dialer); err != nil {
		return err
	}
	con.printLine("image", "packing the engine's root file system and its programs")
	root, programs := filepath.Join(work, "root.tar"), filepath.Join(work, "programs.tar")
	if err := packRoot(ctx, l, root); err != nil {
		return err
	}
	if err := packPrograms(ctx, l, dialer, programs); err != nil {
		return err
	}
	image := filepath.Join(work, "image.tar")
	if err := packImage(ctx, l, image, root, programs); err != nil {
		return fmt.Errorf("writing %s: %w", file, err)
	}
	if err := os.Rename(image, file); err != nil {
		return err
	}
	con.printLine("image", "%s is %s: docker load -i %s", file, engine.Image, file)
	return nil
}

// buildDialer compiles the program through which the Dagger client enters the container. It has
// the same sources as the engine in the image.
func buildDialer(ctx context.Context, l Layout, to string) error {
	wd, err := os.Getwd()
	if err != nil {
		return err
	}
	src, err := findCheckout(wd)
	if err != nil {
		return err
	}
	args := append([]string{"go", "build"}, buildFlags()...)
	err = command{
		args: append(args, "-o", to, "github.com/dagger/dagger/cmd/dialstdio"),
		dir:  src, env: []string{"CGO_ENABLED=0", "GOWORK=off"}, log: l.logOf("image-build"),
	}.runCommand(ctx)
	if err != nil {
		return goHint(fmt.Errorf("compiling dialstdio: %w", err))
	}
	return nil
}

// packFolder writes some entries of a directory as a tar.
func packFolder(ctx context.Context, l Layout, from, to string, members []string, options ...string) error {
	args := append([]string{"tar", "--create", "--file=" + to, "--directory=" + from, "--numeric-owner", "--sort=name"}, options...)
	return command{args: append(args, members...), dir: "/", log: l.logOf("image-tar")}.runCommand(ctx)
}

// plain returns the options of tar for world-readable files of root, without dates.
func plain() []string {
	return []string{"--dereference", "--owner=0", "--group=0", "--mtime=@0", "--mode=u=rwX,go=rX"}
}

// packRoot writes the engine's root without its mounts and without the settings of a start.
func packRoot(ctx context.Context, l Layout, to string) error {
	return packFolder(ctx, l, l.Rootfs(), to, []string{"."}, "--one-file-system",
		"--exclude=./proc/*", "--exclude=./sys/*", "--exclude=./dev/*", "--exclude=./run/*", "--exclude=./tmp/*",
		"--exclude=./var/lib/dagger/*", "--exclude=./etc/dagger/*", "--exclude=./etc/resolv.conf")
}

// packPrograms writes the layer of the engine's programs and its configuration.
func packPrograms(ctx context.Context, l Layout, dialer, to string) error {
	config, err := siteEngineConfig()
	if err != nil {
		return err
	}
	const settings = "etc/dagger/engine.json"
	dir, members := to+".d", []string{settings}
	for inside, file := range map[string]string{
		"usr/local/bin/dagger-engine": l.Bin("dagger-engine"),
		"usr/local/bin/dagger-init":   l.Bin("dagger-init"),
		"opt/cni/bin/dnsname":         l.Bin("dnsname"),
		"usr/bin/buildctl":            dialer,
	} {
		link := filepath.Join(dir, inside)
		if err := errors.Join(os.MkdirAll(filepath.Dir(link), 0o755), os.Symlink(file, link)); err != nil {
			return err
		}
		members = append(members, inside)
	}
	file := filepath.Join(dir, settings)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(config), 0o644)); err != nil {
		return err
	}
	slices.Sort(members)
	return packFolder(ctx, l, dir, to, members, plain()...)
}

// packImage writes an image from layers in the format of docker save, which every client supports.
func packImage(ctx context.Context, l Layout, to string, layers ...string) error {
	config := v1.ConfigFile{
		Architecture: runtime.GOARCH, OS: "linux", RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			Env:        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			Entrypoint: []string{"/usr/local/bin/dagger-engine"},
			Volumes:    map[string]struct{}{"/var/lib/dagger": {}},
		},
	}
	dir := to + ".d"
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	var names []string
	for _, layer := range layers {
		sum, _, err := wheel.HashFile(layer)
		if err != nil {
			return err
		}
		name := filepath.Base(layer)
		if err := os.Rename(layer, filepath.Join(dir, name)); err != nil {
			return err
		}
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, v1.Hash{Algorithm: "sha256", Hex: sum})
		names = append(names, name)
	}
	for name, document := range map[string]any{
		"config.json":   config,
		"manifest.json": []map[string]any{{"Config": "config.json", "RepoTags": []string{engine.Image}, "Layers": names}},
	} {
		text, err := json.Marshal(document)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	return packFolder(ctx, l, dir, to, append(names, "config.json", "manifest.json"), plain()...)
}
