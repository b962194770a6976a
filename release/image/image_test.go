package image_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/fleet/deploy/wheels"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/release/image"
)

const site = "usr/local/lib/python3.11/site-packages"

// given are the facts about the bases of these tests.
func given() map[string]string {
	return map[string]string{
		image.FactPython: "3.11", image.FactTorch: "2.15.0+cu132", image.FactGlibc: "2.36",
		image.FactSitePackages: "/" + site, image.FactDeepSpeed: image.None,
	}
}

// tarOf returns a tar with these files; a value that begins with "-> " is a symbolic link.
func tarOf(t testing.TB, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, n := range slices.Sorted(maps.Keys(files)) {
		h := &tar.Header{Name: n, Mode: 0o644, Typeflag: tar.TypeReg, Size: int64(len(files[n]))}
		if to, ok := strings.CutPrefix(files[n], "-> "); ok {
			h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, to, 0
		}
		err := w.WriteHeader(h)
		if h.Size > 0 && err == nil {
			_, err = io.WriteString(w, files[n])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// baseOf makes an image of layers.
func baseOf(t testing.TB, config v1.Config, layers ...map[string]string) v1.Image {
	t.Helper()
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{Architecture: "amd64", OS: "linux", Config: config, RootFS: v1.RootFS{Type: "layers"}})
	for _, files := range layers {
		text := tarOf(t, files)
		layer, layerErr := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil })
		if err == nil {
			err = layerErr
		}
		if err != nil {
			t.Fatal(err)
		}
		img, err = mutate.AppendLayers(img, layer)
	}
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// torchBase are the files of a base with Python 3.11 and torch 2.15 for CUDA 13.2.
func torchBase() map[string]string {
	return map[string]string{
		"usr/lib/x86_64-linux-gnu/libc.so.6":           "\x7fELF\x00GNU C Library (Debian GLIBC 2.36-9+deb12u14) stable release version 2.36.\n",
		"usr/local/bin/python3.11":                     "ELF",
		"usr/local/bin/python3":                        "-> python3.11",
		site + "/torch-2.15.0.dist-info/METADATA":      "Name: torch\n",
		site + "/torch/version.py":                     "__version__ = '2.15.0+cu132'\ncuda: Optional[str] = '13.2'\n",
		"usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.30": "ELF",
	}
}

// hub is a registry that counts requests and may refuse them.
type hub struct {
	*httptest.Server
	host string
	mu   sync.Mutex
	got  []string // METHOD PATH
	deny func(w http.ResponseWriter, r *http.Request) bool
}

func newHub(t testing.TB) *hub {
	t.Helper()
	h := &hub{}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		h.got = append(h.got, r.Method+" "+r.URL.Path)
		deny := h.deny
		h.mu.Unlock()
		if deny == nil || !deny(w, r) {
			inner.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(h.Close)
	h.host = strings.TrimPrefix(h.URL, "http://")
	return h
}

// put stores an image and forgets the requests.
func (h *hub) put(t testing.TB, to string, img v1.Image) string {
	t.Helper()
	ref, err := name.ParseReference(h.host + "/" + to)
	if err == nil {
		err = remote.Write(ref, img)
	}
	if err != nil {
		t.Fatal(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.got = nil
	return ref.Name()
}

// refuse sets what answers instead of the registry, where it wants.
func (h *hub) refuse(deny func(http.ResponseWriter, *http.Request) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deny = deny
}

func (h *hub) pull(t testing.TB, from string) v1.Image {
	t.Helper()
	ref, err := name.ParseReference(h.host + "/" + from)
	if err != nil {
		t.Fatal(err)
	}
	img, err := remote.Image(ref)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// options return those for a small wheel.
func options(t testing.TB, base, output string) image.Options {
	t.Helper()
	tables, err := compat.NewTables()
	if err != nil {
		t.Fatal(err)
	}
	return image.Options{Base: base, Output: output, Tables: tables, Given: map[string]string{}, Wheels: load(t, wheeltest.Packed(t, t.TempDir(), smallWheel()))}
}

func smallWheel() wheeltest.Options {
	return wheeltest.Options{
		Files:   map[string]string{"deepspeed/launcher.py": "def main():\n    return 0\n", "deepspeed-0.19.8+torch2.15.cu132.sm80.v3.dist-info/entry_points.txt": "[console_scripts]\nds_run = deepspeed.launcher:main\n"},
		Scripts: map[string]string{"ds_report": "#!python\nprint('report')\n", "ds_shell": "#!/bin/sh\n"},
	}
}

func load(t testing.TB, paths ...string) []wheels.Wheel {
	t.Helper()
	all, err := image.LoadWheels(t.Context(), paths, wheels.Cache{})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// build makes the image.
func build(t testing.TB, opt image.Options) (*image.Result, error) {
	t.Helper()
	p, err := image.Survey(t.Context(), opt)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	return p.Build(t.Context())
}

// mustBuild makes the image, or ends the test.
func mustBuild(t testing.TB, opt image.Options) *image.Result {
	t.Helper()
	r, err := build(t, opt)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// filesOf returns the files of a tar, folders with a slash at the end.
func filesOf(t testing.TB, r io.Reader) map[string]string {
	t.Helper()
	files := map[string]string{}
	in := tar.NewReader(r)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = string(text)
		if h.Typeflag == tar.TypeSymlink {
			files[h.Name] = "-> " + h.Linkname
		}
	}
}

// topLayer returns the files of the newest layer.
func topLayer(t testing.TB, img v1.Image) map[string]string {
	t.Helper()
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	r, err := layers[len(layers)-1].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	return filesOf(t, r)
}

// The layers of a base in a registry are neither read nor sent, and a second run gives the same
// digest.
func TestPush(t *testing.T) {
	h := newHub(t)
	base := h.put(t, "team/torch:1", withLayer(t, baseOf(t, v1.Config{Env: []string{"A=b"}}, torchBase()), 1<<20))
	opt := options(t, base, h.host+"/team/train:1")
	opt.Given = given()
	first := mustBuild(t, opt)
	for _, request := range h.got {
		if strings.HasPrefix(request, "GET ") && strings.Contains(request, "/blobs/") && !strings.Contains(request, configDigest(t, h.pull(t, "team/torch:1"))) {
			t.Errorf("%s: a layer was read", request)
		}
	}
	opt.Output = h.host + "/team/again:1"
	opt.Wheels = load(t, opt.Wheels[0].Path)
	if again := mustBuild(t, opt); again.Digest != first.Digest || again.Unchanged {
		t.Errorf("%s, then %s, unchanged %v", first.Digest, again.Digest, again.Unchanged)
	}
	if again := mustBuild(t, opt); !again.Unchanged {
		t.Error("the third run wrote the image again")
	}
	files := topLayer(t, h.pull(t, "team/train:1"))
	if got := files["usr/local/bin/ds_report"]; got != "#!/usr/local/bin/python3.11\nprint('report')\n" {
		t.Errorf("%q", got)
	}
	t.Logf("layer %d, wheel %d", first.Layer.Size, opt.Wheels[0].Manifest.Size)
}

func configDigest(t testing.TB, img v1.Image) string {
	t.Helper()
	h, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	return h.String()
}
