package image

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Limits of an image on disk. Its text is read into memory.
const (
	maxMembers  = 100_000
	maxDocument = 8 << 20
)

// archive is an image on disk: the tar of docker save or of an OCI layout, or such a layout as a
// folder. It opens the files in it by name.
type archive struct {
	open  func(name string) (*io.SectionReader, error)
	close func() error
}

// openArchive opens the tar or folder at path.
func openArchive(at string) (*archive, error) {
	info, err := os.Stat(at)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return openFolder(at)
	}
	f, err := os.Open(at)
	if err != nil {
		return nil, err
	}
	members, err := listMembers(f)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", at, err), f.Close())
	}
	open := func(name string) (*io.SectionReader, error) {
		m, ok := members[name]
		for range 8 { // docker save writes links to layers that occur twice
			if !ok || m.link == "" {
				break
			}
			m, ok = members[m.link]
		}
		if !ok || m.link != "" {
			return nil, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
		}
		return io.NewSectionReader(f, m.offset, m.size), nil
	}
	return &archive{open, f.Close}, nil
}

// openFolder opens a folder without leaving it.
func openFolder(at string) (*archive, error) {
	root, err := os.OpenRoot(at)
	if err != nil {
		return nil, err
	}
	var opened []io.Closer
	open := func(name string) (*io.SectionReader, error) {
		f, err := root.Open(filepath.FromSlash(name))
		if err != nil {
			return nil, err
		}
		opened = append(opened, f)
		info, err := f.Stat()
		if err != nil {
			return nil, err
		}
		return io.NewSectionReader(f, 0, info.Size()), nil
	}
	return &archive{open, func() error {
		err := root.Close()
		for _, c := range opened {
			err = errors.Join(err, c.Close())
		}
		return err
	}}, nil
}

// member is one file of a tar.
type member struct {
	offset, size int64
	link         string
}

// listMembers reads the headers of a tar and skips the contents.
func listMembers(f *os.File) (map[string]member, error) {
	members := map[string]member{}
	entries := tar.NewReader(f)
	for {
		h, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return members, nil
		}
		if err != nil {
			return nil, fmt.Errorf("not the tar of an image: %w", err)
		}
		name := path.Clean(h.Name)
		if _, twice := members[name]; twice && h.Typeflag != tar.TypeDir {
			return nil, fmt.Errorf("%q occurs twice in it", name)
		}
		if len(members) == maxMembers {
			return nil, fmt.Errorf("it has more than %d files", maxMembers)
		}
		offset, err := f.Seek(0, io.SeekCurrent) // the tar reader reads no byte ahead
		if err != nil {
			return nil, err
		}
		switch h.Typeflag {
		case tar.TypeReg:
			members[name] = member{offset: offset, size: h.Size}
		case tar.TypeSymlink:
			members[name] = member{link: path.Join(path.Dir(name), h.Linkname)}
		case tar.TypeLink:
			members[name] = member{link: path.Clean(h.Linkname)}
		}
	}
}

// readText reads a small file.
func (a *archive) readText(name string) ([]byte, error) {
	r, err := a.open(name)
	if err != nil {
		return nil, err
	}
	if r.Size() > maxDocument {
		return nil, fmt.Errorf("%s: larger than %d bytes", name, maxDocument)
	}
	return io.ReadAll(r)
}

// readJSON reads a small file of JSON.
func (a *archive) readJSON(name string, into any) error {
	text, err := a.readText(name)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// blobPath is the place of a blob in an OCI layout.
func blobPath(h v1.Hash) string { return path.Join("blobs", h.Algorithm, h.Hex) }

// readBlob reads a small blob of an OCI layout and checks its digest.
func (a *archive) readBlob(h v1.Hash) ([]byte, error) {
	text, err := a.readText(blobPath(h))
	if err != nil {
		return nil, err
	}
	sum, _, err := v1.SHA256(bytes.NewReader(text))
	if err == nil && sum != h {
		err = fmt.Errorf("%s has the digest %s", blobPath(h), sum)
	}
	return text, err
}

// diskImage is an image of an archive, for partial.CompressedToImage.
type diskImage struct {
	manifest, config []byte
	media            types.MediaType
	layers           map[v1.Hash]*diskLayer
}

// diskLayer is a layer of an archive.
type diskLayer struct {
	descriptor v1.Descriptor
	section    *io.SectionReader
}

// RawConfigFile returns the configuration.
func (d *diskImage) RawConfigFile() ([]byte, error) { return d.config, nil }

// RawManifest returns the manifest.
func (d *diskImage) RawManifest() ([]byte, error) { return d.manifest, nil }

// MediaType returns the manifest's.
func (d *diskImage) MediaType() (types.MediaType, error) { return d.media, nil }

// LayerByDigest returns a layer.
func (d *diskImage) LayerByDigest(h v1.Hash) (partial.CompressedLayer, error) {
	if l, ok := d.layers[h]; ok {
		return l, nil
	}
	return nil, fmt.Errorf("layer %s: %w", h, fs.ErrNotExist)
}

// Digest returns the layer's digest.
func (l *diskLayer) Digest() (v1.Hash, error) { return l.descriptor.Digest, nil }

// Size returns the layer's size.
func (l *diskLayer) Size() (int64, error) { return l.descriptor.Size, nil }

// MediaType returns the layer's type.
func (l *diskLayer) MediaType() (types.MediaType, error) { return l.descriptor.MediaType, nil }

// Compressed opens the layer. Its end is an error if the digest is wrong.
func (l *diskLayer) Compressed() (io.ReadCloser, error) {
	r := io.NewSectionReader(l.section, 0, l.section.Size())
	return io.NopCloser(newVerifier(r, l.descriptor)), nil
}

// layoutImage reads the image of a manifest in an OCI layout.
func (a *archive) layoutImage(d v1.Descriptor) (v1.Image, error) {
	text, err := a.readBlob(d.Digest)
	if err != nil {
		return nil, err
	}
	m, err := v1.ParseManifest(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	image := &diskImage{manifest: text, media: d.MediaType, layers: map[v1.Hash]*diskLayer{}}
	if image.config, err = a.readBlob(m.Config.Digest); err != nil {
		return nil, err
	}
	for _, l := range m.Layers {
		section, err := a.open(blobPath(l.Digest))
		if err != nil {
			return nil, err
		}
		image.layers[l.Digest] = &diskLayer{l, section}
	}
	return partial.CompressedToImage(image)
}

// savedImage is an image in the manifest.json of docker save.
type savedImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// savedImage reads the one image that docker save wrote. It has no manifest, so one is made, with
// the layers as they are: in general not compressed.
func (a *archive) savedImage(s savedImage) (v1.Image, error) {
	config, err := a.readText(path.Clean(s.Config))
	if err != nil {
		return nil, err
	}
	parsed, err := v1.ParseConfigFile(bytes.NewReader(config))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Config, err)
	}
	if len(parsed.RootFS.DiffIDs) != len(s.Layers) {
		return nil, fmt.Errorf("manifest.json has %d layers, the configuration %d", len(s.Layers), len(parsed.RootFS.DiffIDs))
	}
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1}
	sum, size, err := v1.SHA256(bytes.NewReader(config))
	if err != nil {
		return nil, err
	}
	m.Config = v1.Descriptor{MediaType: types.OCIConfigJSON, Digest: sum, Size: size}
	image := &diskImage{config: config, media: types.OCIManifestSchema1, layers: map[v1.Hash]*diskLayer{}}
	for i, name := range s.Layers {
		section, err := a.open(path.Clean(name))
		if err != nil {
			return nil, err
		}
		d, err := describeLayer(section, parsed.RootFS.DiffIDs[i])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		m.Layers = append(m.Layers, d)
		image.layers[d.Digest] = &diskLayer{d, section}
	}
	if image.manifest, err = json.Marshal(m); err != nil {
		return nil, err
	}
	return partial.CompressedToImage(image)
}

// describeLayer returns the descriptor of a layer of docker save: that of the tar, or of the
// gzipped tar that other tools write.
func describeLayer(section *io.SectionReader, diffID v1.Hash) (v1.Descriptor, error) {
	magic := make([]byte, 2)
	if _, err := section.ReadAt(magic, 0); err != nil {
		return v1.Descriptor{}, err
	}
	if !bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		return v1.Descriptor{MediaType: types.OCIUncompressedLayer, Digest: diffID, Size: section.Size()}, nil
	}
	sum, size, err := v1.SHA256(io.NewSectionReader(section, 0, section.Size()))
	return v1.Descriptor{MediaType: types.OCILayer, Digest: sum, Size: size}, err
}
