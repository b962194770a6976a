package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// base is the image on which the layer goes.
type base struct {
	arg    string
	ref    name.Reference // nil of a file
	image  v1.Image
	digest v1.Hash // of its manifest
	others []v1.Descriptor
	fetch  func(v1.Descriptor) (v1.Image, error) // opens one of others
	close  func() error
}

// registryOptions are the options of every request to a registry.
func registryOptions(ctx context.Context, t http.RoundTripper) []remote.Option {
	return []remote.Option{
		remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain), remote.WithTransport(t),
		remote.WithUserAgent("dsbuild"),
	}
}

// openBase opens the image that arg names: a file, a folder with an OCI layout, or a reference.
// Of several platforms it takes the one asked for.
func openBase(ctx context.Context, arg string, platform v1.Platform, t http.RoundTripper) (*base, error) {
	_, err := os.Stat(arg)
	switch {
	case err == nil:
		return openDisk(arg, platform)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, usagef("", "base %s: %w", arg, err)
	case strings.HasSuffix(arg, ".tar"):
		return nil, usagef("", "base %s: there is no such file", arg)
	}
	ref, err := name.ParseReference(arg)
	if err != nil {
		return nil, usagef("a base is an image reference such as pytorch/pytorch:2.15.0, or the file of docker save", "base: %w", err)
	}
	d, err := remote.Get(ref, registryOptions(ctx, t)...)
	if err != nil {
		return nil, registryError(fmt.Errorf("base %s: %w", arg, err), ref.Context().RegistryStr())
	}
	b := &base{arg: arg, ref: ref, close: func() error { return nil }}
	if d.MediaType.IsIndex() {
		index, err := d.ImageIndex()
		if err != nil {
			return nil, fmt.Errorf("base %s: %w", arg, err)
		}
		return b, b.choose(index, platform)
	}
	if !d.MediaType.IsImage() {
		return nil, usagef("", "base %s: it is no image, but %q", arg, d.MediaType)
	}
	b.digest = d.Digest
	b.image, err = d.Image()
	return b, err
}

// choose takes the image for a platform out of an index.
func (b *base) choose(index v1.ImageIndex, platform v1.Platform) error {
	m, err := index.IndexManifest()
	if err != nil {
		return fmt.Errorf("base %s: %w", b.arg, err)
	}
	d, err := chooseManifest(m.Manifests, platform)
	if err != nil {
		return fmt.Errorf("base %s: %w", b.arg, err)
	}
	b.digest, b.others = d.Digest, m.Manifests
	b.fetch = func(d v1.Descriptor) (v1.Image, error) { return index.Image(d.Digest) }
	b.image, err = index.Image(d.Digest)
	return err
}

// chooseManifest returns the one image for a platform.
func chooseManifest(all []v1.Descriptor, platform v1.Platform) (v1.Descriptor, error) {
	var found []v1.Descriptor
	var names []string
	for _, d := range all {
		if !d.MediaType.IsImage() || d.Platform != nil && d.Platform.OS == "unknown" { // an attestation
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
	names = slices.Compact(names)
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) == 0:
		return v1.Descriptor{}, usagef("build a wheel for one of these, or take another base", "it has no image for %s/%s, which the wheel needs, only for %s", platform.OS, platform.Architecture, cmp.Or(strings.Join(names, ", "), "nothing"))
	}
	return v1.Descriptor{}, usagef("name one by its digest: NAME@sha256:…", "it has %d images for %s/%s", len(found), platform.OS, platform.Architecture)
}

// openDisk opens an image on disk.
func openDisk(arg string, platform v1.Platform) (*base, error) {
	a, err := openArchive(arg)
	if err != nil {
		return nil, usagef("a base is what 'docker save' writes, an OCI layout, or an image reference", "base %w", err)
	}
	b := &base{arg: arg, close: a.close}
	if err := b.readArchive(a, platform); err != nil {
		return nil, errors.Join(usagef("", "base %s: %w", arg, err), a.close())
	}
	return b, nil
}

// readArchive finds the one image of an archive.
func (b *base) readArchive(a *archive, platform v1.Platform) error {
	var index v1.IndexManifest
	err := a.readJSON("index.json", &index)
	if errors.Is(err, fs.ErrNotExist) {
		return b.readSaved(a)
	}
	if err != nil {
		return err
	}
	manifests := index.Manifests
	for depth := 0; len(manifests) == 1 && manifests[0].MediaType.IsIndex() && depth < 4; depth++ {
		var inner v1.IndexManifest
		if _, err := a.readBlob(manifests[0].Digest); err != nil {
			return err
		}
		if err := a.readJSON(blobPath(manifests[0].Digest), &inner); err != nil {
			return err
		}
		manifests = inner.Manifests
	}
	d, err := chooseManifest(manifests, platform)
	if err != nil {
		return err
	}
	if d.MediaType == "" {
		d.MediaType = types.OCIManifestSchema1
	}
	b.digest, b.others, b.fetch = d.Digest, manifests, a.layoutImage
	b.image, err = a.layoutImage(d)
	return err
}

// readSaved finds the one image of docker save.
func (b *base) readSaved(a *archive) error {
	var saved []savedImage
	err := a.readJSON("manifest.json", &saved)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("it is neither what 'docker save' writes nor an OCI layout ('docker import' makes an image of a root file system)")
	case err != nil:
		return err
	case len(saved) != 1:
		return fmt.Errorf("it has %d images: save one of them alone", len(saved))
	}
	if b.image, err = a.savedImage(saved[0]); err != nil {
		return err
	}
	b.digest, err = b.image.Digest()
	return err
}
