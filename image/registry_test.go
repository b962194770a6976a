package image_test

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/containerd/stargz-snapshotter/estargz/zstdchunked"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/dsbuild/dsbuild/image"
	"github.com/dsbuild/dsbuild/internal/hint"
)

// withLayer adds a layer with a file of random bytes.
func withLayer(t testing.TB, img v1.Image, size int) v1.Image {
	t.Helper()
	var seed [32]byte
	data := make([]byte, size)
	_, _ = rand.NewChaCha8(seed).Read(data)
	text := tarOf(t, map[string]string{"srv/data": string(data)})
	added, err := mutate.AppendLayers(img, static.NewLayer(text, types.OCIUncompressedLayer))
	if err != nil {
		t.Fatal(err)
	}
	return added
}

// seekable returns a layer with a table of contents, and the annotations of its kind.
func seekable(t testing.TB, files map[string]string, kind string) (layer []byte, annotations map[string]string) {
	t.Helper()
	text := tarOf(t, files)
	metadata := map[string]string{}
	options := []estargz.Option{}
	if kind == "zstd:chunked" {
		options = append(options, estargz.WithCompression(struct {
			*zstdchunked.Compressor
			*zstdchunked.Decompressor
		}{&zstdchunked.Compressor{CompressionLevel: 2, Metadata: metadata}, new(zstdchunked.Decompressor)}))
	}
	blob, err := estargz.Build(io.NewSectionReader(bytes.NewReader(text), 0, int64(len(text))), options...)
	if err != nil {
		t.Fatal(err)
	}
	defer blob.Close()
	data, err := io.ReadAll(blob)
	if err != nil {
		t.Fatal(err)
	}
	if kind != "zstd:chunked" {
		return data, map[string]string{estargz.TOCJSONDigestAnnotation: blob.TOCDigest().String()}
	}
	const prefix = "io.github.containers.zstd-chunked." // as podman and buildah write them
	return data, map[string]string{
		prefix + "manifest-checksum": metadata[zstdchunked.ManifestChecksumAnnotation],
		prefix + "manifest-position": metadata[zstdchunked.ManifestPositionAnnotation],
	}
}

// annotated returns an image of one annotated layer.
func annotated(t testing.TB, layer []byte, annotations map[string]string) v1.Image {
	t.Helper()
	img, err := mutate.ConfigFile(mutate.MediaType(empty.Image, types.OCIManifestSchema1), &v1.ConfigFile{Architecture: "amd64", OS: "linux", RootFS: v1.RootFS{Type: "layers"}})
	if err == nil {
		img, err = mutate.Append(img, mutate.Addendum{Layer: static.NewLayer(layer, types.OCILayer), Annotations: annotations})
	}
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// The files of a base whose layers have a table of contents are known, for a small part of the
// bytes. A table that is not that of the manifest is not believed.
func TestTableOfContents(t *testing.T) {
	h := newHub(t)
	files := torchBase()
	var seed [32]byte
	data := make([]byte, 3<<20)
	_, _ = rand.NewChaCha8(seed).Read(data)
	files[site+"/torch/lib/libtorch.so"] = string(data)
	for _, kind := range []string{"estargz", "zstd:chunked"} {
		layer, annotations := seekable(t, files, kind)
		opt := options(t, h.put(t, "toc:1", annotated(t, layer, annotations)), h.host+"/"+kind[:4]+":1")
		r := mustBuild(t, opt)
		if r.Base.Read != "files" || r.Received > 64<<10 {
			t.Errorf("%s: read %s, %d bytes received of a layer with %d; %q", kind, r.Base.Read, r.Received, r.Base.Size, r.Remarks)
		}
		if got := factsOf(t, opt); got["torch"] != "2.15.0+cu132" || got["glibc"] != "2.36" {
			t.Errorf("%s: %v", kind, got)
		}
		for name, value := range annotations {
			if strings.HasPrefix(value, "sha256:") {
				annotations[name] = "sha256:" + strings.Repeat("0", 64)
			}
		}
		opt.Base = h.put(t, "toc:2", annotated(t, layer, annotations))
		if _, err := image.Survey(t.Context(), opt); err == nil || !strings.Contains(err.Error(), "missing: --python") {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

// A registry that ignores ranges is not read to the end of a layer.
func TestNoRanges(t *testing.T) {
	h := newHub(t)
	layer, annotations := seekable(t, torchBase(), "estargz")
	base := h.put(t, "toc:1", annotated(t, layer, annotations))
	h.refuse(func(_ http.ResponseWriter, r *http.Request) bool { r.Header.Del("Range"); return false })
	opt := options(t, base, h.host+"/out:1")
	opt.Given = given()
	if r := mustBuild(t, opt); r.Base.Read != "configuration" || !slices.ContainsFunc(r.Remarks, func(text string) bool { return strings.Contains(text, "ignores ranges") }) {
		t.Errorf("read %s, %q", r.Base.Read, r.Remarks)
	}
}

// A registry that keeps its repositories apart mounts the base's layers: none is sent or read.
func TestMount(t *testing.T) {
	h := newHub(t)
	base := h.put(t, "team/base:1", withLayer(t, baseOf(t, v1.Config{}, torchBase()), 100<<10))
	layers, err := h.pull(t, "team/base:1").Layers()
	if err != nil {
		t.Fatal(err)
	}
	ofBase := map[string]bool{}
	for _, l := range layers {
		d, err := l.Digest()
		if err != nil {
			t.Fatal(err)
		}
		ofBase[d.String()] = true
	}
	var mounted atomic.Int64
	h.refuse(func(w http.ResponseWriter, r *http.Request) bool {
		blob := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
		mount := r.URL.Query().Get("mount")
		switch {
		case ofBase[mount] && r.URL.Query().Get("from") == "team/base" && r.Method == http.MethodPost:
			mounted.Add(1)
			w.WriteHeader(http.StatusCreated)
		case ofBase[blob] && r.Method == http.MethodHead && strings.HasPrefix(r.URL.Path, "/v2/other/"):
			w.WriteHeader(http.StatusNotFound)
		case ofBase[blob] || ofBase[r.URL.Query().Get("digest")]:
			t.Errorf("%s %s", r.Method, r.URL)
			return false
		default:
			return false
		}
		return true
	})
	opt := options(t, base, h.host+"/other/out:1")
	opt.Given = given()
	r := mustBuild(t, opt)
	if int(mounted.Load()) != len(layers) {
		t.Errorf("%d of %d layers mounted; %d bytes received, %d sent", mounted.Load(), len(layers), r.Received, r.Sent)
	}
}

// An SBOM beside the image says what its configuration does not.
func TestSBOM(t *testing.T) {
	h := newHub(t)
	img := withLayer(t, baseOf(t, v1.Config{Env: []string{"PATH=/usr/local/bin:/usr/bin", "PYTHON_VERSION=3.11.9", "PYTHON_SHA256=0"}}), 100<<10)
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	statement := `{"predicateType":"https://spdx.dev/Document","predicate":{"packages":[
		{"externalRefs":[{"referenceLocator":"pkg:pypi/torch@2.15.0%2Bcu132"}]},
		{"externalRefs":[{"referenceLocator":"pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64"}]},
		{"externalRefs":[{"referenceLocator":"pkg:deb/debian/torch@9"},{"referenceLocator":"nonsense"}]}]}}`
	attestation, err := mutate.Append(mutate.MediaType(empty.Image, types.OCIManifestSchema1), mutate.Addendum{
		Layer: static.NewLayer([]byte(statement), "application/vnd.in-toto+json"), Annotations: map[string]string{"in-toto.io/predicate-type": "https://spdx.dev/Document"},
	})
	if err != nil {
		t.Fatal(err)
	}
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}}},
		mutate.IndexAddendum{Add: attestation, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "unknown", Architecture: "unknown"}, Annotations: map[string]string{"vnd.docker.reference.digest": digest.String()}}})
	ref, err := name.ParseReference(h.host + "/sbom:1")
	if err == nil {
		err = remote.WriteIndex(ref, index)
	}
	if err != nil {
		t.Fatal(err)
	}
	opt := options(t, ref.Name(), h.host+"/out:1")
	got := factsOf(t, opt)
	if got["torch"] != "2.15.0+cu132" || got["glibc"] != "2.36" || got["deepspeed"] != "none" {
		t.Errorf("%v", got)
	}
	mustBuild(t, opt)
	// The index has no image for the wheel's machine.
	other := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "arm64"}}})
	if err := remote.WriteIndex(ref, other); err != nil {
		t.Fatal(err)
	}
	if _, err := image.Survey(t.Context(), opt); err == nil || !strings.Contains(err.Error(), "no image for linux/amd64, which the wheel needs, only for linux/arm64") {
		t.Error(err)
	}
}

// What a registry refuses is told with the way out, and the output is not there.
func TestRegistryAnswers(t *testing.T) {
	answer := func(code int) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(code); return true }
	}
	cut := func(method string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != method || method == http.MethodGet && !strings.Contains(r.URL.Path, "/blobs/") {
				return false
			}
			w.Header().Set("Content-Length", "100000")
			_, _ = io.WriteString(w, "{")
			_, _ = io.CopyN(io.Discard, r.Body, 1000)
			panic(http.ErrAbortHandler)
		}
	}
	for _, c := range []struct {
		title, want, hint string
		deny              func(http.ResponseWriter, *http.Request) bool
	}{
		{"no login", "401", "docker login", answer(401)},
		{"too many", "429", "limits requests", answer(429)},
		{"no such image", "404", "no such image", func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != "/v2/" {
				w.WriteHeader(404)
			}
			return r.URL.Path != "/v2/"
		}},
		{"cut off while reading", "", "", cut(http.MethodGet)},
		{"cut off while sending", "", "", cut(http.MethodPatch)},
	} {
		if testing.Short() && strings.Contains(c.title, "sending") {
			continue // the library tries again, which takes seconds
		}
		t.Run(c.title, func(t *testing.T) {
			t.Parallel()
			h := newHub(t)
			opt := options(t, h.put(t, "base:1", baseOf(t, v1.Config{}, torchBase())), h.host+"/out:1")
			opt.Given = given()
			h.refuse(c.deny)
			_, err := build(t, opt)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(hint.Of(err), c.hint) {
				t.Errorf("%v, hint %q", err, hint.Of(err))
			}
			h.refuse(nil)
			ref, err := name.ParseReference(opt.Output)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := remote.Head(ref); err == nil {
				t.Error("the image is there")
			}
		})
	}
}

// An output that is there is not replaced without --force; the same image again is no change.
func TestOutputIsThere(t *testing.T) {
	h := newHub(t)
	base := h.put(t, "base:1", baseOf(t, v1.Config{}, torchBase()))
	other := h.put(t, "out:1", baseOf(t, v1.Config{}))
	file := filepath.Join(t.TempDir(), "out.tar")
	if err := os.WriteFile(file, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	squash := strings.TrimSuffix(file, ".tar") + ".sqsh"
	if err := os.WriteFile(squash, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, output := range []string{other, base, file, squash} {
		opt := options(t, base, output)
		opt.Given = given()
		if _, err := build(t, opt); err == nil || !strings.Contains(err.Error(), "there already") || !strings.Contains(hint.Of(err), "--force") {
			t.Errorf("%s: %v", output, err)
		}
		if output == base || output == squash {
			continue
		}
		opt.Force = true
		if r := mustBuild(t, opt); r.Unchanged {
			t.Errorf("%s: not written", output)
		}
		opt.Force = false
		if r := mustBuild(t, opt); !r.Unchanged {
			t.Errorf("%s: written again", output)
		}
	}
	if string(readFile(t, squash)) != "mine" {
		t.Error("the squashfs was replaced")
	}
}

// Nobody guesses whether a base in a registry has another DeepSpeed: its folder is hidden, and a
// history that speaks of it asks for the version.
func TestUnknownDeepSpeed(t *testing.T) {
	h := newHub(t)
	img := withLayer(t, baseOf(t, v1.Config{}, torchBase()), 100<<10)
	opt := options(t, h.put(t, "base:1", img), h.host+"/out:1")
	opt.Given = given()
	delete(opt.Given, image.FactDeepSpeed)
	r := mustBuild(t, opt)
	if _, ok := topLayer(t, h.pull(t, "out:1"))[site+"/deepspeed/.wh..wh..opq"]; !ok || len(r.Remarks) == 0 {
		t.Errorf("the folder is not hidden; remarks %q", r.Remarks)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.History = append(config.History, v1.History{CreatedBy: "RUN pip install git+https://example.org/DeepSpeed", EmptyLayer: true})
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	opt.Base, opt.Output = h.put(t, "base:2", img), h.host+"/out:2"
	if _, err := image.Survey(t.Context(), opt); err == nil || !strings.Contains(hint.Of(err), "--deepspeed none") {
		t.Errorf("%v, hint %q", err, hint.Of(err))
	}
	opt.Given[image.FactDeepSpeed] = "0.17.0"
	if r := mustBuild(t, opt); len(r.Hidden) != 1 {
		t.Errorf("hidden: %q", r.Hidden)
	}
}
