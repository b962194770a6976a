// Package registry is an image registry for tests: google/go-containerregistry's,
// whose images are root file system tars of this machine. It is a http.Handler;
// package enginetest serves it where a Dagger engine can reach it.
package registry

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Registry serves the images that were added to it. What clients push to it is
// refused.
type Registry struct {
	files   files
	handler http.Handler
}

// New returns a registry without images.
func New() *Registry {
	r := &Registry{files: files{paths: map[v1.Hash]string{}, texts: map[v1.Hash][]byte{}}}
	r.handler = registry.New(registry.WithBlobHandler(&r.files), registry.Logger(log.New(io.Discard, "", 0)))
	return r
}

// ServeHTTP answers as the specification of OCI's distribution says.
func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodGet && req.Method != http.MethodHead {
		http.Error(w, "images are added by the test alone", http.StatusMethodNotAllowed)
		return
	}
	r.handler.ServeHTTP(w, req)
}

// Add makes a root file system tar, which must stay where it is, the image of a
// name and tag ("library/debian:bookworm-slim") and returns its digest.
func (r *Registry) Add(name, tar string) (digest string, err error) {
	name, tag, ok := strings.Cut(name, ":")
	if !ok {
		return "", fmt.Errorf("image %s has no tag", name)
	}
	layer, size, err := r.files.addFile(tar)
	if err != nil {
		return "", err
	}
	config, err := json.Marshal(v1.ConfigFile{
		Architecture: "amd64", OS: "linux",
		RootFS: v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{layer}},
		Config: v1.Config{Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}},
	})
	if err != nil {
		return "", err
	}
	manifest, err := json.Marshal(v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1,
		Config: v1.Descriptor{MediaType: types.OCIConfigJSON, Size: int64(len(config)), Digest: r.files.addText(config)},
		Layers: []v1.Descriptor{{MediaType: types.OCIUncompressedLayer, Size: size, Digest: layer}},
	})
	if err != nil {
		return "", err
	}
	return hashOf(manifest).String(), r.putManifest("/v2/"+name+"/manifests/"+tag, manifest)
}

// AddImage serves an image that a tar holds as an OCI layout, under a name and
// tag. Its parts are unpacked into dir, which must stay.
func (r *Registry) AddImage(name, archive, dir string) error {
	name, tag, ok := strings.Cut(name, ":")
	if !ok {
		return fmt.Errorf("image %s has no tag", name)
	}
	if out, err := exec.Command("tar", "-xf", archive, "-C", dir).CombinedOutput(); err != nil {
		return fmt.Errorf("unpacking %s: %w: %s", archive, err, out)
	}
	blobs, err := filepath.Glob(filepath.Join(dir, "blobs", "sha256", "*"))
	if err != nil {
		return err
	}
	for _, blob := range blobs {
		if _, _, err := r.files.addFile(blob); err != nil {
			return err
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "index.json"))
	if err != nil {
		return err
	}
	var index v1.IndexManifest
	if err := json.Unmarshal(text, &index); err != nil || len(index.Manifests) != 1 {
		return fmt.Errorf("%s: not the index of one image: %w", archive, err)
	}
	manifest, err := os.ReadFile(filepath.Join(dir, "blobs", "sha256", index.Manifests[0].Digest.Hex))
	if err != nil {
		return err
	}
	return r.putManifest("/v2/"+name+"/manifests/"+tag, manifest)
}

// putManifest hands a manifest to the registry as a client would.
func (r *Registry) putManifest(path string, manifest []byte) error {
	req := httptest.NewRequest(http.MethodPut, path, bytes.NewReader(manifest))
	req.Header.Set("Content-Type", string(types.OCIManifestSchema1))
	w := httptest.NewRecorder()
	r.handler.ServeHTTP(w, req)
	if w.Code != http.StatusCreated {
		return fmt.Errorf("the registry refuses %s: %d %s", path, w.Code, w.Body)
	}
	return nil
}

// files are the blobs: layers are files that are read where they lie.
type files struct {
	mu    sync.Mutex
	paths map[v1.Hash]string
	texts map[v1.Hash][]byte
}

func hashOf(text []byte) v1.Hash {
	return v1.Hash{Algorithm: "sha256", Hex: fmt.Sprintf("%x", sha256.Sum256(text))}
}

func (f *files) addText(text []byte) v1.Hash {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.texts[hashOf(text)] = text
	return hashOf(text)
}

func (f *files) addFile(path string) (v1.Hash, int64, error) {
	in, err := os.Open(path)
	if err != nil {
		return v1.Hash{}, 0, err
	}
	defer in.Close()
	sum, size, err := v1.SHA256(in)
	if err != nil {
		return v1.Hash{}, 0, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.paths[sum] = path
	return sum, size, nil
}

// blob is a file that a client reads, in whole or in part.
type blob interface {
	io.ReadCloser
	io.ReaderAt
}

// text is a blob in memory.
type text struct{ *bytes.Reader }

func (text) Close() error { return nil }

func (f *files) openBlob(h v1.Hash) (blob, int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if b, ok := f.texts[h]; ok {
		return text{bytes.NewReader(b)}, int64(len(b)), nil
	}
	path, ok := f.paths[h]
	if !ok {
		return nil, 0, registry.ErrNotFound
	}
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, registry.ErrNotFound
	}
	if err != nil {
		return nil, 0, err
	}
	info, err := file.Stat()
	if err != nil {
		file.Close()
		return nil, 0, err
	}
	return file, info.Size(), nil
}

// Get opens a blob.
func (f *files) Get(_ context.Context, _ string, h v1.Hash) (io.ReadCloser, error) {
	b, _, err := f.openBlob(h)
	return b, err
}

// Stat is the size of a blob.
func (f *files) Stat(_ context.Context, _ string, h v1.Hash) (int64, error) {
	b, size, err := f.openBlob(h)
	if err != nil {
		return 0, err
	}
	return size, b.Close()
}
