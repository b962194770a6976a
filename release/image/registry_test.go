package image_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/httpclient"
	"github.com/dsbuild/dsbuild/release/image"
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
	mustBuild(t, opt)
	if int(mounted.Load()) != len(layers) {
		t.Errorf("%d of %d layers mounted", mounted.Load(), len(layers))
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
		{"an error each time", "503", "", answer(503)},
		{"cut off while reading", "", "", cut(http.MethodGet)},
		{"cut off while sending", "", "", cut(http.MethodPatch)},
	} {
		t.Run(c.title, func(t *testing.T) {
			t.Parallel()
			h := newHub(t)
			opt := options(t, h.put(t, "base:1", baseOf(t, v1.Config{}, torchBase())), h.host+"/out:1")
			opt.Given = given()
			fast := httpclient.New(&http.Transport{})
			fast.Pause = func(ctx context.Context, _ time.Duration) error { return context.Cause(ctx) }
			opt.Transport = fast
			h.refuse(c.deny)
			_, err := build(t, opt)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(fault.Hint(err), c.hint) {
				t.Errorf("%v, hint %q", err, fault.Hint(err))
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
	for _, output := range []string{other, base, file} {
		opt := options(t, base, output)
		opt.Given = given()
		if _, err := build(t, opt); err == nil || !strings.Contains(err.Error(), "there already") || !strings.Contains(fault.Hint(err), "--force") {
			t.Errorf("%s: %v", output, err)
		}
		if output == base {
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
}

// The layers of a base in a registry are read if its labels do not tell everything, or if a companion may have a
// file of something in the base.
func TestLayersOfARegistry(t *testing.T) {
	h := newHub(t)
	labels := map[string]string{
		"dsbuild.python": "3.11", "dsbuild.torch": "2.15.0+cu132", "dsbuild.glibc": "2.35",
		"dsbuild.site-packages": "/" + site, "dsbuild.deepspeed": "0.17.0",
	}
	companion := plainWheel(t, "hjson", "3.1.0", "hjson/__init__.py")
	for title, c := range map[string]struct {
		labels map[string]string
		with   string
		read   string
	}{
		"labels":                  {labels, "", "labels"},
		"labels with a companion": {labels, companion, "files"},
		"nothing":                 {nil, "", "files"},
	} {
		notes := 0
		opt := options(t, h.put(t, "base:1", baseOf(t, v1.Config{Labels: c.labels}, torchBase())), h.host+"/out:1")
		opt.Note = func(string) { notes++ }
		opt.Force = true
		if c.with != "" {
			opt.Wheels = load(t, opt.Wheels[0].Path, c.with)
		}
		r := mustBuild(t, opt)
		if r.Base.Read != c.read || notes > 0 != (c.read == "files") {
			t.Errorf("%s: %s read, %d notes; want %s", title, r.Base.Read, notes, c.read)
		}
		_, hidden := topLayer(t, h.pull(t, "out:1"))[site+"/.wh.deepspeed-0.17.0.dist-info"]
		if want := c.read == "labels"; hidden != want {
			t.Errorf("%s: the metadata of the older version is hidden: %v, want %v", title, hidden, want)
		}
	}
}

// What a manifest claims about sizes is not believed.
func TestImpossibleSizes(t *testing.T) {
	h := newHub(t)
	good := baseOf(t, v1.Config{}, torchBase())
	for title, c := range map[string]struct {
		change func(*v1.Manifest)
		want   string
	}{
		"a layer of -1 bytes":         {func(m *v1.Manifest) { m.Layers[0].Size = -1 }, "is said to have -1 bytes"},
		"a layer of 1 byte":           {func(m *v1.Manifest) { m.Layers[0].Size = 1 }, "layer 1: "},
		"a configuration of -1 bytes": {func(m *v1.Manifest) { m.Config.Size = -1 }, "configuration is said to have -1 bytes"},
		"a configuration of 1 GB":     {func(m *v1.Manifest) { m.Config.Size = 1 << 30 }, "configuration is said to have 1073741824 bytes"},
		"fewer layers":                {func(m *v1.Manifest) { m.Layers = nil }, "1 layers, the manifest has 0"},
	} {
		base := h.put(t, "base:1", good)
		m, err := good.Manifest()
		if err != nil {
			t.Fatal(err)
		}
		m = m.DeepCopy()
		c.change(m)
		text, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		ref, err := name.ParseReference(base)
		if err != nil {
			t.Fatal(err)
		}
		if err := remote.Put(ref, rawManifest{text, m.MediaType}); err != nil {
			t.Fatal(err)
		}
		if _, err := build(t, options(t, base, h.host+"/out:1")); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", title, err, c.want)
		}
	}
}

// rawManifest is any text that a registry takes for a manifest.
type rawManifest struct {
	text  []byte
	media types.MediaType
}

func (m rawManifest) RawManifest() ([]byte, error)        { return m.text, nil }
func (m rawManifest) MediaType() (types.MediaType, error) { return m.media, nil }

// Of an index the image for the wheel's machine is taken.
func TestIndex(t *testing.T) {
	h := newHub(t)
	ref, err := name.ParseReference(h.host + "/index:1")
	if err != nil {
		t.Fatal(err)
	}
	img := baseOf(t, v1.Config{}, torchBase())
	for architecture, want := range map[string]string{"amd64": "", "arm64": "no image for linux/amd64, which the wheel needs, only for linux/arm64"} {
		index := mutate.AppendManifests(empty.Index,
			mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: architecture}}},
			mutate.IndexAddendum{Add: baseOf(t, v1.Config{}), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "unknown", Architecture: "unknown"}}})
		if err := remote.WriteIndex(ref, index); err != nil {
			t.Fatal(err)
		}
		_, err := build(t, options(t, ref.Name(), h.host+"/out:1"))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", architecture, err, want)
		}
	}
}

// Only a host or a scheme makes a name one of a registry.
func TestOutputNames(t *testing.T) {
	base := saved(t, baseOf(t, v1.Config{}, torchBase()))
	for output, want := range map[string]string{
		"x.zip": "neither a file", "train:1": "neither a file", "team/train:1": "neither a file", "./x.zip": "ends with .tar", "/x/train": "ends with .tar",
		"x.sqsh": "writes no squashfs", "x.squashfs": "writes no squashfs", "docker://BAD": "could not parse", "host.example/BAD": "could not parse",
		"x.tar": "", "/x/y.tar": "", "docker://train:1": "", "docker.io/team/train": "", "localhost/train:1": "", "host:5000/train": "",
	} {
		p, err := image.Survey(t.Context(), options(t, base, output))
		if err == nil {
			err = p.Close()
		}
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || fault.ExitCode(err) != 2 || fault.Hint(err) == "") {
			t.Errorf("%s: %v, exit code %d, hint %q; want %q and 2", output, err, fault.ExitCode(err), fault.Hint(err), want)
		}
	}
}

// A run that is stopped ends, and leaves no file and no image.
func TestStopped(t *testing.T) {
	h := newHub(t)
	base := h.put(t, "base:1", withLayer(t, baseOf(t, v1.Config{}, torchBase()), 1<<20))
	dir := t.TempDir()
	for _, output := range []string{filepath.Join(dir, "out.tar"), h.host + "/other/out:1"} {
		ctx, stop := context.WithCancelCause(t.Context())
		p, err := image.Survey(ctx, options(t, base, output))
		if err != nil {
			t.Fatal(err)
		}
		h.refuse(func(_ http.ResponseWriter, r *http.Request) bool { // waits for the end, as a registry that is silent
			stop(errors.New("stopped"))
			<-r.Context().Done()
			return true
		})
		if _, err := p.Build(ctx); err == nil {
			t.Errorf("%s: made", output)
		}
		h.refuse(nil)
		stop(nil)
		p.Close()
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v; want nothing", left, err)
	}
	ref, err := name.ParseReference(h.host + "/other/out:1")
	if err == nil {
		_, err = remote.Head(ref)
	}
	if err == nil {
		t.Error("the image is there")
	}
}
