package main

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

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

// writeImage writes an image of layers as one tar that is both an OCI image
// layout and what docker save writes: an older docker load knows the latter alone.
func writeImage(file string, layers ...string) error {
	config := v1.ConfigFile{
		Architecture: runtime.GOARCH, OS: "linux", RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			Env:        []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			Entrypoint: []string{"/usr/local/bin/dagger-engine"},
			Volumes:    map[string]struct{}{"/var/lib/dagger": {}},
		},
	}
	manifest := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1}
	blobs := map[string]string{} // name in the tar: file
	saved := []string{}
	for _, layer := range layers {
		d, err := describeFile(layer)
		if err != nil {
			return err
		}
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, d.Digest)
		manifest.Layers = append(manifest.Layers, d)
		blobs[blobName(d.Digest)] = layer
		saved = append(saved, blobName(d.Digest))
	}
	configText, err := json.Marshal(config)
	if err != nil {
		return err
	}
	manifest.Config = describeText(configText, types.OCIConfigJSON)
	manifestText, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	entry := describeText(manifestText, types.OCIManifestSchema1)
	entry.Annotations = map[string]string{"io.containerd.image.name": engine.Image, "org.opencontainers.image.ref.name": engine.Version}
	index, err := json.Marshal(v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{entry}})
	if err != nil {
		return err
	}
	docker, err := json.Marshal([]map[string]any{{"Config": blobName(manifest.Config.Digest), "RepoTags": []string{engine.Image}, "Layers": saved}})
	if err != nil {
		return err
	}
	texts := map[string]string{
		"oci-layout": `{"imageLayoutVersion":"1.0.0"}`, "index.json": string(index), "manifest.json": string(docker),
		blobName(manifest.Config.Digest): string(configText), blobName(entry.Digest): string(manifestText),
	}
	return writeArchive(file, texts, blobs)
}

// writeArchive writes a tar of texts and files, whole or not at all.
func writeArchive(file string, texts, files map[string]string) error {
	r, w := io.Pipe()
	go func() {
		out := tar.NewWriter(w)
		err := func() error {
			for _, name := range sortedKeys(texts) {
				if err := addText(out, name, texts[name], 0o644); err != nil {
					return err
				}
			}
			for _, name := range sortedKeys(files) {
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

func blobName(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }

// describeText is the OCI descriptor of a document.
func describeText(text []byte, kind types.MediaType) v1.Descriptor {
	sum := sha256.Sum256(text)
	return v1.Descriptor{MediaType: kind, Size: int64(len(text)), Digest: v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}}
}

// describeFile is the OCI descriptor of an uncompressed layer.
func describeFile(path string) (v1.Descriptor, error) {
	in, err := os.Open(path)
	if err != nil {
		return v1.Descriptor{}, err
	}
	defer in.Close()
	sum, size, err := v1.SHA256(in)
	return v1.Descriptor{MediaType: types.OCIUncompressedLayer, Size: size, Digest: sum}, err
}
