// Package registry is an image registry for tests: google/go-containerregistry's, with root file
// system tars of this machine as images. It is an http.Handler; package enginetest serves it at
// an address that a Dagger engine can reach.
package registry

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Registry serves images that Add added or a client pushed.
type Registry struct {
	http.Handler

	blobs string // folder with a file or link for each blob, by the hexadecimal digits of its sha256
}

// New returns a registry without images, with its files in dir.
func New(dir string) (*Registry, error) {
	r := &Registry{
		Handler: registry.New(registry.WithBlobHandler(registry.NewDiskBlobHandler(dir)), registry.Logger(log.New(io.Discard, "", 0))),
		blobs:   filepath.Join(dir, "sha256"),
	}
	return r, os.MkdirAll(r.blobs, 0o755)
}

// Add makes a root file system tar the image of a name and tag ("library/debian:bookworm-slim")
// and returns its digest. The tar must stay at its path.
func (r *Registry) Add(name, tar string) (digest string, err error) {
	name, tag, ok := strings.Cut(name, ":")
	if !ok {
		return "", fmt.Errorf("image %s has no tag", name)
	}
	layer, err := r.link(tar)
	if err != nil {
		return "", err
	}
	config, err := json.Marshal(v1.ConfigFile{
		Architecture: "amd64", OS: "linux",
		RootFS: v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{layer.Digest}},
		Config: v1.Config{Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}},
	})
	if err != nil {
		return "", err
	}
	described := describe(types.OCIConfigJSON, config)
	if err := os.WriteFile(filepath.Join(r.blobs, described.Digest.Hex), config, 0o644); err != nil {
		return "", err
	}
	manifest, err := json.Marshal(v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: described, Layers: []v1.Descriptor{layer}})
	if err != nil {
		return "", err
	}
	return describe(types.OCIManifestSchema1, manifest).Digest.String(), r.putManifest("/v2/"+name+"/manifests/"+tag, manifest)
}

// link makes a file a blob. The registry reads the file at its path.
func (r *Registry) link(file string) (v1.Descriptor, error) {
	in, err := os.Open(file)
	if err != nil {
		return v1.Descriptor{}, err
	}
	defer in.Close()
	sum, size, err := v1.SHA256(in)
	if err != nil {
		return v1.Descriptor{}, err
	}
	if err := os.Symlink(file, filepath.Join(r.blobs, sum.Hex)); err != nil && !errors.Is(err, os.ErrExist) {
		return v1.Descriptor{}, err
	}
	return v1.Descriptor{MediaType: types.OCIUncompressedLayer, Size: size, Digest: sum}, nil
}

// describe returns the descriptor of a document.
func describe(kind types.MediaType, text []byte) v1.Descriptor {
	sum := sha256.Sum256(text)
	return v1.Descriptor{MediaType: kind, Size: int64(len(text)), Digest: v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}}
}

// putManifest sends a manifest to the registry as a client would.
func (r *Registry) putManifest(path string, manifest []byte) error {
	req := httptest.NewRequest(http.MethodPut, path, bytes.NewReader(manifest))
	req.Header.Set("Content-Type", string(types.OCIManifestSchema1))
	w := httptest.NewRecorder()
	r.ServeHTTP(w, req)
	if w.Code != http.StatusCreated {
		return fmt.Errorf("the registry refuses %s: %d %s", path, w.Code, w.Body)
	}
	return nil
}
