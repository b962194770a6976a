package main

import (
	"archive/tar"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/dsbuild/dsbuild/internal/atomicfile"
	"github.com/dsbuild/dsbuild/internal/hint"
	"github.com/dsbuild/dsbuild/pipeline/engine"
)

// MakeImage writes an installed engine as an image that docker, podman and
// nerdctl load, under the name by which the Dagger client asks for it. The image
// is a file for machines that cannot pull that name.
func MakeImage(ctx context.Context, l Layout, con *console, file string) error {
	if !l.Installed() {
		return hint.With(fmt.Errorf("no engine is installed in %s", l.Root), "install it: make engine")
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
	if err := packPrograms(l, dialer, programs); err != nil {
		return err
	}
	if err := writeImage(file, root, programs); err != nil {
		return fmt.Errorf("writing %s: %w", file, err)
	}
	con.printLine("image", "%s is %s: docker load -i %s", file, engine.Image, file)
	return nil
}

// buildDialer compiles the program by which the Dagger client enters the
// container. The engine of the image is of the same sources.
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

// packRoot writes the engine's root as it is when nothing is mounted in it, and
// without the settings that a start has put there.
func packRoot(ctx context.Context, l Layout, to string) error {
	return command{
		args: []string{
			"tar", "--create", "--file=" + to, "--directory=" + l.Rootfs(), "--numeric-owner", "--sort=name", "--one-file-system",
			"--exclude=./proc/*", "--exclude=./sys/*", "--exclude=./dev/*", "--exclude=./run/*", "--exclude=./tmp/*",
			"--exclude=./var/lib/dagger/*", "--exclude=./etc/dagger/*", "--exclude=./etc/resolv.conf", ".",
		},
		dir: "/", log: l.logOf("image-root"),
	}.runCommand(ctx)
}

// packPrograms writes the layer of the engine's programs and its configuration.
func packPrograms(l Layout, dialer, to string) error {
	config, err := siteEngineConfig()
	if err != nil {
		return err
	}
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer out.Close()
	w := tar.NewWriter(out)
	for _, f := range [][2]string{
		{l.Bin("dagger-engine"), "usr/local/bin/dagger-engine"},
		{l.Bin("dagger-init"), "usr/local/bin/dagger-init"},
		{l.Bin("dnsname"), "opt/cni/bin/dnsname"},
		{dialer, "usr/bin/buildctl"},
	} {
		if err := addFile(w, f[1], f[0], 0o755); err != nil {
			return err
		}
	}
	if err := addText(w, "etc/dagger/engine.json", config, 0o644); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return out.Close()
}

// addFile adds a file to a tar, owned by root.
func addFile(w *tar.Writer, name, from string, mode int64) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: info.Size(), ModTime: time.Unix(0, 0)}); err != nil {
		return err
	}
	_, err = io.Copy(w, in)
	return err
}

// addText adds a short file to a tar.
func addText(w *tar.Writer, name, text string, mode int64) error {
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(text)), ModTime: time.Unix(0, 0)}); err != nil {
		return err
	}
	_, err := io.WriteString(w, text)
	return err
}

// writeImage writes an image of layers in the form of docker save, which every client loads.
func writeImage(file string, layers ...string) error {
	config := v1.ConfigFile{
		Architecture: runtime.GOARCH, OS: "linux", RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			Env:        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			Entrypoint: []string{"/usr/local/bin/dagger-engine"},
			Volumes:    map[string]struct{}{"/var/lib/dagger": {}},
		},
	}
	files := map[string]string{} // name in the tar: file
	var names []string
	for _, layer := range layers {
		sum, err := digestFile(layer)
		if err != nil {
			return err
		}
		name := filepath.Base(layer)
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, sum)
		files[name], names = layer, append(names, name)
	}
	configText, err := json.Marshal(config)
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{engine.Image}, "Layers": names}})
	if err != nil {
		return err
	}
	return writeArchive(file, map[string]string{"config.json": string(configText), "manifest.json": string(manifest)}, files)
}

// writeArchive writes a tar of texts and files, whole or not at all.
func writeArchive(file string, texts, files map[string]string) error {
	r, w := io.Pipe()
	go func() {
		out := tar.NewWriter(w)
		err := func() error {
			for _, name := range slices.Sorted(maps.Keys(texts)) {
				if err := addText(out, name, texts[name], 0o644); err != nil {
					return err
				}
			}
			for _, name := range slices.Sorted(maps.Keys(files)) {
				if err := addFile(out, name, files[name], 0o644); err != nil {
					return err
				}
			}
			return out.Close()
		}()
		w.CloseWithError(err)
	}()
	return atomicfile.Write(file, r, 0o644)
}

// digestFile returns the digest of an uncompressed layer.
func digestFile(path string) (v1.Hash, error) {
	in, err := os.Open(path)
	if err != nil {
		return v1.Hash{}, err
	}
	defer in.Close()
	sum, _, err := v1.SHA256(in)
	return sum, err
}
