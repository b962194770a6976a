//go:build full && linux

package image_test

import (
	"archive/tar"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	imageregistry "github.com/dsbuild/dsbuild/internal/testkit/registry"
)

const gigabyte = 1 << 30

// largeBase writes the tar of a root file system with one file of a gigabyte, which is a hole.
func largeBase(t *testing.T, file string) {
	t.Helper()
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := tar.NewWriter(f)
	if err := w.WriteHeader(&tar.Header{Name: "srv/large", Mode: 0o644, Size: gigabyte}); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err == nil || !strings.Contains(err.Error(), "missed writing") {
		t.Fatal(err)
	}
	if err := f.Truncate(512 + gigabyte + 1024); err != nil {
		t.Fatal(err)
	}
}

// served counts the bytes that a registry sends.
type served struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (s served) Write(p []byte) (int, error) {
	s.n.Add(int64(len(p)))
	return s.ResponseWriter.Write(p)
}

// An image on a base of 1 GB takes at most 1 MB of it, little more than the wheel and 3 s.
func TestFullImageLargeBase(t *testing.T) {
	dir := t.TempDir()
	hub, err := imageregistry.New(filepath.Join(dir, "registry"))
	if err != nil {
		t.Fatal(err)
	}
	largeBase(t, filepath.Join(dir, "base.tar"))
	if _, err := hub.Add("team/base:1", filepath.Join(dir, "base.tar")); err != nil {
		t.Fatal(err)
	}
	in, err := os.Open(filepath.Join(dir, "base.tar"))
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	layer, _, err := v1.SHA256(in)
	if err != nil {
		t.Fatal(err)
	}
	large := "/blobs/" + layer.String()
	var sent, received atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.TeeReader(r.Body, countingWriter{&received}), r.Body}
		if r.Method == http.MethodHead && strings.HasSuffix(r.URL.Path, large) {
			w.WriteHeader(http.StatusOK) // the test's registry would hash the file each time
			return
		}
		hub.ServeHTTP(served{w, &sent}, r)
	}))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	var digests []string
	for _, output := range []string{"/team/first:1", "/team/second:1"} {
		sent.Store(0)
		received.Store(0)
		opt := options(t, host+"/team/base:1", host+output)
		opt.Given = given()
		begin := time.Now()
		opt.Wheels = load(t, os.Getenv("DSBUILD_TEST_WHEEL"))
		r := mustBuild(t, opt)
		took := time.Since(begin)
		digests = append(digests, r.Digest)
		size := opt.Wheels[0].Manifest.Size
		t.Logf("result: base of %d MB: %d bytes read, %d written for a wheel of %d (%+.1f %%), %.1f s with the wheel's verification", r.Base.Size>>20, sent.Load(), received.Load(), size, 100*(float64(received.Load())/float64(size)-1), took.Seconds())
		if sent.Load() > 1<<20 || float64(received.Load()) > 1.05*float64(size) || took > 3*time.Second {
			t.Error("above the limits: 1 MB, the wheel and 5 %, 3 s")
		}
	}
	if digests[0] != digests[1] {
		t.Errorf("digests %q", digests)
	}
}

type countingWriter struct{ n *atomic.Int64 }

func (c countingWriter) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return len(p), nil
}
