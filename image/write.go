package image

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/dsbuild/dsbuild/internal/atomicfile"
	"github.com/dsbuild/dsbuild/wheel"
)

// write puts the image where the user wants it.
func (p *Plan) write(ctx context.Context, image v1.Image, result *Result) error {
	switch {
	case isSquashfs(p.opt.Output):
		return p.writeSquashfs(ctx, image, result)
	case isFile(p.opt.Output):
		return p.writeFile(ctx, image, result)
	}
	return p.push(ctx, image, result)
}

// isFile reports whether an output is a file, and no image reference.
func isFile(output string) bool {
	return strings.HasSuffix(output, ".tar") || strings.HasPrefix(output, "/") || strings.HasPrefix(output, "./") || strings.HasPrefix(output, "../")
}

const forceHint = "choose another name, or add --force to replace it"

// push sends the image to a registry: the new layer, the configuration, and last the manifest.
// Layers of the base that the registry has are mounted there.
func (p *Plan) push(ctx context.Context, image v1.Image, result *Result) error {
	ref, err := name.ParseReference(p.opt.Output)
	if err != nil {
		return usagef("an output is NAME.tar, NAME.sqsh or an image reference", "output: %w", err)
	}
	registry := ref.Context().RegistryStr()
	options := registryOptions(ctx, p.traffic)
	there, err := remote.Head(ref, options...)
	var answer *transport.Error
	switch {
	case err == nil && there.Digest.String() == result.Digest:
		result.Unchanged = true
	case err == nil && !p.opt.Force:
		return usagef(forceHint, "%s is there already, with the digest %s", p.opt.Output, there.Digest)
	case err != nil && !(errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound):
		return registryError(fmt.Errorf("%s: %w", p.opt.Output, err), registry)
	}
	result.Image = ref.Context().Name() + "@" + result.Digest
	if result.Unchanged {
		return nil
	}
	if err := remote.Write(ref, image, options...); err != nil {
		return registryError(fmt.Errorf("%s: %w", p.opt.Output, err), registry)
	}
	return nil
}

// writeFile writes a tar that is both an OCI layout and what docker load reads.
func (p *Plan) writeFile(ctx context.Context, image v1.Image, result *Result) error {
	result.Image = p.opt.Output
	if same, err := p.fileIsThere(result.Digest); err != nil || same {
		result.Unchanged = same
		return err
	}
	r, w := io.Pipe()
	go func() { w.CloseWithError(writeArchive(ctx, w, image, p.opt.Name, p.Created)) }()
	defer r.Close()
	return atomicfile.Write(p.opt.Output, r, 0o644)
}

// fileIsThere reports whether the output is this very image. Another file is not replaced.
func (p *Plan) fileIsThere(digest string) (same bool, err error) {
	_, err = os.Lstat(p.opt.Output)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if a, err := openArchive(p.opt.Output); err == nil {
		var index v1.IndexManifest
		err := a.readJSON("index.json", &index)
		a.close() //nolint:errcheck // it was only read
		if err == nil && len(index.Manifests) == 1 && index.Manifests[0].Digest.String() == digest && index.Manifests[0].Annotations[refName] == p.opt.Name {
			return true, nil
		}
	}
	if !p.opt.Force {
		return false, usagef(forceHint, "%s is there already", p.opt.Output)
	}
	return false, nil
}

const refName = "org.opencontainers.image.ref.name"

// writeArchive writes the tar of an image. Its bytes depend on the image and its name only.
func writeArchive(ctx context.Context, w io.Writer, image v1.Image, name string, at time.Time) error {
	t := &archiveWriter{ctx, tar.NewWriter(w), at, map[string]bool{}}
	if err := t.text("oci-layout", map[string]string{"imageLayoutVersion": "1.0.0"}); err != nil {
		return err
	}
	saved := savedImage{RepoTags: []string{}}
	if name != "" {
		saved.RepoTags = append(saved.RepoTags, name)
	}
	config, err := partial.ConfigLayer(image)
	if err != nil {
		return err
	}
	layers, err := image.Layers()
	if err != nil {
		return err
	}
	for i, blob := range append([]v1.Layer{config}, layers...) {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		h, err := blob.Digest()
		if err != nil {
			return err
		}
		if i == 0 {
			saved.Config = blobPath(h)
		} else {
			saved.Layers = append(saved.Layers, blobPath(h))
		}
		if err := t.blob(blob); err != nil {
			return err
		}
	}
	return t.finish(image, saved, name)
}

// archiveWriter writes the tar of an image.
type archiveWriter struct {
	ctx context.Context //nolint:containedctx // of the one call that writes the tar
	*tar.Writer
	at      time.Time
	written map[string]bool
}

// file writes one file, once.
func (t *archiveWriter) file(name string, size int64, r io.Reader) error {
	if t.written[name] {
		return nil
	}
	t.written[name] = true
	if err := t.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: size, ModTime: t.at}); err != nil {
		return err
	}
	_, err := io.Copy(t, wheel.NewContextReader(t.ctx, r))
	return err
}

// text writes a document.
func (t *archiveWriter) text(name string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return t.file(name, int64(len(text)), bytes.NewReader(text))
}

// blob writes a layer or the configuration.
func (t *archiveWriter) blob(l v1.Layer) error {
	h, err := l.Digest()
	if err != nil {
		return err
	}
	size, err := l.Size()
	if err != nil {
		return err
	}
	r, err := l.Compressed()
	if err != nil {
		return err
	}
	defer r.Close()
	return t.file(blobPath(h), size, r)
}

// finish writes the manifest and the two indexes.
func (t *archiveWriter) finish(image v1.Image, saved savedImage, name string) error {
	text, err := image.RawManifest()
	if err != nil {
		return err
	}
	d, err := partial.Descriptor(image)
	if err != nil {
		return err
	}
	if name != "" {
		d.Annotations = map[string]string{refName: name}
	}
	if err := t.file(blobPath(d.Digest), int64(len(text)), bytes.NewReader(text)); err != nil {
		return err
	}
	index := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{*d}}
	return errors.Join(t.text("index.json", index), t.text("manifest.json", []savedImage{saved}), t.Close())
}
