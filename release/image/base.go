package image

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// base is the image on which the layer goes.
type base struct {
	ref   name.Reference // nil of an image on disk
	image v1.Image
	plain bool // its layers are tars, not compressed
}

const (
	maxConfig  = 8 << 20 // bytes of a document, which is read into memory
	maxMembers = 100_000 // of a tar
)

// openBase opens the image that arg names: the tar of docker save, the folder of an OCI layout, or
// a reference. Of several platforms it takes the one asked for. toFile says where the result goes.
func openBase(ctx context.Context, arg string, platform v1.Platform, toFile bool, t http.RoundTripper) (b base, err error) {
	info, err := os.Stat(arg)
	switch {
	case err == nil && info.IsDir():
		b.image, err = openLayout(arg, platform)
	case err == nil:
		b, err = openTar(arg, toFile)
	case !errors.Is(err, fs.ErrNotExist):
	case strings.HasSuffix(arg, ".tar") || strings.HasPrefix(arg, "/") || strings.HasPrefix(arg, "."):
		err = errors.New("there is no such file")
	default:
		b, err = openRemote(ctx, arg, platform, t)
	}
	if err == nil {
		err = checkManifest(b.image)
	}
	if err == nil || b.ref != nil {
		return b, registryError(err, b.ref)
	}
	advice := "a base is what 'docker save' writes, the folder of an OCI layout, or an image reference"
	if fault.Hint(err) != "" {
		advice = ""
	}
	return b, usagef(advice, "%w", err)
}

// openRemote opens an image in a registry.
func openRemote(ctx context.Context, arg string, platform v1.Platform, t http.RoundTripper) (b base, err error) {
	ref, err := name.ParseReference(strings.TrimPrefix(arg, registryScheme))
	if err != nil {
		return b, err
	}
	b.ref = ref
	d, err := remote.Get(b.ref, registryOptions(ctx, t)...)
	switch {
	case err != nil:
		return b, err
	case d.MediaType.IsIndex():
		index, err := d.ImageIndex()
		if err != nil {
			return b, err
		}
		b.image, err = choose(index, platform)
		return b, err
	case !d.MediaType.IsImage():
		return b, usagef("", "it is no image, but %q", d.MediaType)
	}
	b.image, err = d.Image()
	return b, err
}

// openLayout opens the image in the folder of an OCI layout.
func openLayout(dir string, platform v1.Platform) (v1.Image, error) {
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, err
	}
	m, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	if len(m.Manifests) == 1 && m.Manifests[0].MediaType.IsIndex() { // as buildx writes it
		if index, err = index.ImageIndex(m.Manifests[0].Digest); err != nil {
			return nil, err
		}
	}
	image, err := choose(index, platform)
	if err != nil {
		return nil, err
	}
	manifest, err := image.Manifest()
	if err != nil {
		return nil, err
	}
	for _, l := range manifest.Layers { // the copy of a layer would end in its middle
		blob, err := os.Stat(filepath.Join(dir, "blobs", l.Digest.Algorithm, l.Digest.Hex))
		if err == nil && blob.Size() != l.Size {
			return nil, fmt.Errorf("the layer %s has %d bytes, and its manifest says %d", l.Digest, blob.Size(), l.Size)
		}
	}
	return image, nil
}

// openTar opens the one image in a tar of docker save.
func openTar(file string, toFile bool) (b base, err error) {
	plain, err := checkTar(file)
	if err != nil {
		return b, err
	}
	b.image, err = tarball.ImageFromPath(file, nil)
	if b.plain = plain && toFile; err != nil || !b.plain {
		return b, err
	}
	layers, err := b.image.Layers()
	if err != nil {
		return b, err
	}
	config, err := b.image.ConfigFile()
	if err != nil {
		return b, err
	}
	kept := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	for _, l := range layers {
		if kept, err = mutate.AppendLayers(kept, plainLayer{l}); err != nil {
			return b, err
		}
	}
	b.image, err = mutate.ConfigFile(kept, config)
	return b, err
}

// plainLayer stays the tar that docker save wrote: to compress the layers of a large base takes
// minutes, and docker load would only unpack them again.
type plainLayer struct{ v1.Layer }

// Digest returns the digest of the tar.
func (l plainLayer) Digest() (v1.Hash, error) { return l.DiffID() }

// Compressed opens the tar.
func (l plainLayer) Compressed() (io.ReadCloser, error) { return l.Uncompressed() }

// Size returns the size of the tar.
func (l plainLayer) Size() (int64, error) {
	in, err := l.Uncompressed()
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(io.Discard, in)
	return n, errors.Join(err, in.Close())
}

// MediaType returns that of a tar.
func (l plainLayer) MediaType() (types.MediaType, error) { return types.OCIUncompressedLayer, nil }

// checkTar refuses a tar whose members are not those of an image: the library reads its documents
// into memory, and takes the first of two members of one name. plain is true if no member is compressed.
func checkTar(file string) (plain bool, err error) {
	f, err := os.Open(file)
	if err != nil {
		return false, err
	}
	defer f.Close()
	seen := map[string]bool{}
	plain = true
	for entries := tar.NewReader(f); ; {
		h, err := entries.Next()
		switch {
		case errors.Is(err, io.EOF) && seen["manifest.json"]:
			return plain, nil
		case errors.Is(err, io.EOF) && seen["oci-layout"]:
			return false, errors.New("it is an OCI layout in a tar: unpack it and name the folder")
		case errors.Is(err, io.EOF):
			return false, errors.New("it is not what 'docker save' writes ('docker import' makes an image of a root file system)")
		case err != nil:
			return false, fmt.Errorf("not the tar of an image: %w", err)
		case seen[h.Name] && h.Typeflag != tar.TypeDir:
			return false, fmt.Errorf("%q occurs twice in it", h.Name)
		case len(seen) == maxMembers:
			return false, fmt.Errorf("it has more than %d files", maxMembers)
		}
		seen[h.Name] = true
		var magic [4]byte
		_, _ = io.ReadFull(entries, magic[:]) // shorter files are not compressed
		if bytes.HasPrefix(magic[:], []byte{0x1f, 0x8b}) || bytes.Equal(magic[:], []byte{0x28, 0xb5, 0x2f, 0xfd}) {
			plain = false
		}
		if (strings.HasSuffix(h.Name, ".json") || magic[0] == '{') && h.Size > maxConfig {
			return false, fmt.Errorf("%s has %d bytes, more than a document of an image", h.Name, h.Size)
		}
	}
}

// choose returns the one image for a platform.
func choose(index v1.ImageIndex, platform v1.Platform) (v1.Image, error) {
	m, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	var found []v1.Descriptor
	var names []string
	for _, d := range m.Manifests {
		if d.MediaType != "" && !d.MediaType.IsImage() || d.Platform != nil && d.Platform.OS == "unknown" { // an attestation
			continue
		}
		if d.Platform == nil || d.Platform.OS == platform.OS && d.Platform.Architecture == platform.Architecture {
			found = append(found, d)
		}
		if d.Platform != nil {
			names = append(names, d.Platform.OS+"/"+d.Platform.Architecture)
		}
	}
	slices.Sort(names)
	want := platform.OS + "/" + platform.Architecture
	switch len(found) {
	case 0:
		others := cmp.Or(strings.Join(slices.Compact(names), ", "), "nothing")
		return nil, usagef("build a wheel for one of these, or take another base", "it has no image for %s, which the wheel needs, only for %s", want, others)
	case 1:
		return index.Image(found[0].Digest)
	}
	return nil, usagef("name one by its digest: NAME@sha256:…", "it has %d images for %s", len(found), want)
}

// checkManifest refuses a manifest with impossible sizes: what the library reads is bounded by them.
func checkManifest(image v1.Image) error {
	m, err := image.Manifest()
	if err != nil {
		return err
	}
	if m.Config.Size < 0 || m.Config.Size > maxConfig {
		return fmt.Errorf("its configuration is said to have %d bytes", m.Config.Size)
	}
	for _, l := range m.Layers {
		if l.Size < 0 || l.Size > 1<<50 {
			return fmt.Errorf("the layer %s is said to have %d bytes", l.Digest, l.Size)
		}
	}
	config, err := image.ConfigFile()
	if err != nil {
		return err
	}
	if config.RootFS.Type != "layers" || len(config.RootFS.DiffIDs) != len(m.Layers) {
		return fmt.Errorf("its configuration is that of no container image: %d layers, the manifest has %d", len(config.RootFS.DiffIDs), len(m.Layers))
	}
	if have, err := image.ConfigName(); err != nil || have != m.Config.Digest {
		return errors.Join(err, fmt.Errorf("its configuration has the digest %s instead of %s", have, m.Config.Digest))
	}
	return nil
}

// registryOptions are the options of every request to a registry.
func registryOptions(ctx context.Context, t http.RoundTripper) []remote.Option {
	return []remote.Option{
		remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain), remote.WithTransport(t),
		remote.WithUserAgent("dsbuild"),
		remote.WithRetryBackoff(remote.Backoff{Steps: 1}), // package httpclient does it
	}
}
