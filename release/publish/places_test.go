package publish_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"maps"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	containers "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/dsbuild/dsbuild/internal/httpclient"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/release/publish"
)

// place is a real place of a test, with a view of its files that does not come by publish.
type place struct {
	name  string
	to    string
	check string // for --check-url
	env   map[string]string
	home  string
	// files returns the whole files there, by name.
	files  func(t *testing.T) map[string][]byte
	clear  func()                                // removes all
	add    func(name string, data []byte)        // puts a file there
	sent   func() int                            // counts the files that arrived, for ever; nil: unknown
	wrap   func(func(http.Handler) http.Handler) // puts a handler before the server; nil: no server
	beside bool                                  // it takes what lies beside a wheel
	torn   bool                                  // it keeps the beginning of an upload that was cut off
}

// places returns one place of each kind, all empty.
func places(t *testing.T) []place {
	t.Helper()
	return []place{folderPlace(t), bucketPlace(t), uploadPlace(t), registryPlace(t)}
}

func folderPlace(t *testing.T) place {
	dir := filepath.Join(t.TempDir(), "wheels")
	return place{
		name: "folder", to: dir, beside: true,
		files: func(t *testing.T) map[string][]byte { return filesBelow(t, dir) },
		clear: func() { os.RemoveAll(dir) },
		add: func(name string, data []byte) {
			_ = os.MkdirAll(dir, 0o755) // the test sees it
			_ = os.WriteFile(filepath.Join(dir, name), data, 0o644)
		},
	}
}

// filesBelow returns the files of a folder and its folders by their base names.
func filesBelow(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || err == nil && e.IsDir() {
			return nil
		}
		if err == nil && strings.Contains(filepath.Base(path), ".whl") {
			all[filepath.Base(path)], err = os.ReadFile(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// client of the store that does not come by publish.
func storeClient(t *testing.T) *minio.Core {
	t.Helper()
	c, err := minio.NewCore(store(t).Host, &minio.Options{Creds: credentials.NewStaticV4(accessKey, secretKey, "")})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

const (
	accessKey = "AKIATEST"
	secretKey = "s3-secret-key"
)

var buckets atomic.Int64

func bucketPlace(t *testing.T) place {
	t.Helper()
	client := storeClient(t)
	name := fmt.Sprintf("wheels-%d", buckets.Add(1))
	if err := client.MakeBucket(t.Context(), name, minio.MakeBucketOptions{}); err != nil {
		t.Fatal(err)
	}
	server := newFront(t, pass(store(t)))
	return place{
		name: "bucket", to: "s3://" + name + "/deep/speed", wrap: server.wrap, beside: true,
		env: map[string]string{
			"AWS_ACCESS_KEY_ID": accessKey, "AWS_SECRET_ACCESS_KEY": secretKey, "AWS_ENDPOINT_URL_S3": server.address, "AWS_REGION": "us-east-1",
		},
		files: func(t *testing.T) map[string][]byte {
			return objects(t, client, name, "deep/speed/")
		},
		clear: func() {
			for o := range client.Client.ListObjects(t.Context(), name, minio.ListObjectsOptions{Recursive: true}) {
				if err := errors.Join(o.Err, client.RemoveObject(t.Context(), name, o.Key, minio.RemoveObjectOptions{})); err != nil {
					t.Error(err)
				}
			}
		},
		add: func(file string, data []byte) { addInParts(t, client, name, "deep/speed/"+file, data) },
	}
}

// addInParts stores an object whose ETag is not its MD5.
func addInParts(t *testing.T, client *minio.Core, bucket, name string, data []byte) {
	t.Helper()
	id, err := client.NewMultipartUpload(t.Context(), bucket, name, minio.PutObjectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	part, err := client.PutObjectPart(t.Context(), bucket, name, id, 1, bytes.NewReader(data), int64(len(data)), minio.PutObjectPartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	whole := []minio.CompletePart{{PartNumber: 1, ETag: part.ETag}}
	if _, err := client.CompleteMultipartUpload(t.Context(), bucket, name, id, whole, minio.PutObjectOptions{}); err != nil {
		t.Fatal(err)
	}
}

// objects returns the objects of a bucket by name, without the prefix.
func objects(t *testing.T, client *minio.Core, bucket, prefix string) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for o := range client.Client.ListObjects(t.Context(), bucket, minio.ListObjectsOptions{Recursive: true}) {
		if o.Err != nil {
			t.Fatal(o.Err)
		}
		in, _, _, err := client.GetObject(t.Context(), bucket, o.Key, minio.GetObjectOptions{})
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(in)
		if err = errors.Join(err, in.Close()); err != nil {
			t.Fatal(err)
		}
		all[strings.TrimPrefix(o.Key, prefix)] = data
	}
	return all
}

func uploadPlace(t *testing.T) place {
	t.Helper()
	dir := t.TempDir()
	server := newFront(t, pass(startIndex(t, dir)))
	return place{
		name: "index", to: server.address + "/", check: server.address + "/simple/", wrap: server.wrap,
		env:   map[string]string{"TWINE_USERNAME": indexUser, "TWINE_PASSWORD": indexPassword},
		files: func(t *testing.T) map[string][]byte { return filesBelow(t, dir) },
		clear: func() {
			all, _ := filepath.Glob(filepath.Join(dir, "*"))
			for _, file := range all {
				os.Remove(file)
			}
		},
		add: func(name string, data []byte) {
			if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
				t.Error(err)
			}
		},
		sent: func() int { return int(server.sent.Load()) },
		torn: true,
	}
}

func registryPlace(t *testing.T) place {
	t.Helper()
	fresh := func() http.Handler { return wholeBodies(containers.New(containers.Logger(log.New(io.Discard, "", 0)))) }
	var now atomic.Value
	h := fresh()
	now.Store(&h)
	server := newFront(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*now.Load().(*http.Handler)).ServeHTTP(w, r) }))
	host := strings.TrimPrefix(server.address, "http://")
	return place{
		name: "registry", to: "oci://" + host + "/team/wheels", wrap: server.wrap, beside: true,
		files: func(t *testing.T) map[string][]byte { return pulled(t, host+"/team/wheels") },
		clear: func() { h := fresh(); now.Store(&h) },
	}
}

// wholeBodies refuses manifests that were cut off, as registries do: the library's one for tests
// stores their beginning.
func wholeBodies(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/manifests/") {
			text, err := io.ReadAll(r.Body)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			r.Body = io.NopCloser(strings.NewReader(string(text)))
		}
		h.ServeHTTP(w, r)
	})
}

// pulled returns the files of all artifacts in a repository, read by the library's client.
func pulled(t *testing.T, repository string) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	repo, err := name.NewRepository(repository)
	if err != nil {
		t.Fatal(err)
	}
	tags, err := remote.List(repo)
	if err != nil {
		return all // nothing was pushed
	}
	for _, tag := range tags {
		got, err := remote.Get(repo.Tag(tag))
		if err != nil {
			t.Fatal(err)
		}
		m, err := v1.ParseManifest(strings.NewReader(string(got.Manifest)))
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range m.Layers {
			layer, err := remote.Layer(repo.Digest(d.Digest.String()))
			if err != nil {
				t.Fatal(err)
			}
			in, err := layer.Compressed()
			if err != nil {
				t.Fatal(err)
			}
			if all[d.Annotations["org.opencontainers.image.title"]], err = io.ReadAll(in); err != nil {
				t.Fatal(err)
			}
		}
	}
	return all
}

func plain() []wheeltest.Op { return []wheeltest.Op{{Name: "cpu_adam", Dir: "adam"}} }

// built makes wheels with what lies beside them, and returns their paths and all files by name.
func built(t *testing.T, versions ...string) (wheels []string, files map[string][]byte) {
	t.Helper()
	dir := t.TempDir()
	files = map[string][]byte{}
	for _, version := range versions {
		path, m, statement := wheeltest.Built(t, dir, wheeltest.Options{Version: version, Ops: plain()})
		manifest, err := jsonOf(m)
		if err != nil {
			t.Fatal(err)
		}
		wheels = append(wheels, path)
		for suffix, text := range map[string][]byte{".manifest.json": manifest, ".provenance.json": statement, ".provenance.json.sig": []byte("signature of " + version)} {
			if err := os.WriteFile(path+suffix, text, 0o644); err != nil {
				t.Fatal(err)
			}
			files[filepath.Base(path)+suffix] = text
		}
		if files[filepath.Base(path)], err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path+".bak", []byte("an editor's"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return wheels, files
}

// expected returns the files that a place takes.
func (p place) expected(files map[string][]byte) map[string][]byte {
	want := maps.Clone(files)
	if !p.beside {
		maps.DeleteFunc(want, func(name string, _ []byte) bool { return !strings.HasSuffix(name, ".whl") })
	}
	return want
}

// options returns the options of a run.
func (p place) options(t *testing.T, wheels []string) publish.Options {
	t.Helper()
	to, err := publish.ParseTarget(p.to)
	if err != nil {
		t.Fatal(err)
	}
	home := p.home
	if home == "" {
		home = t.TempDir()
	}
	return publish.Options{
		Wheels: wheels, To: to, CheckURL: p.check, Parallel: 2, Home: home,
		Getenv: func(name string) string { return p.env[name] }, Transport: atOnce(http.DefaultTransport),
	}
}

// atOnce sends requests with the policy of the product, but without waiting between tries.
func atOnce(base http.RoundTripper) *httpclient.Transport {
	t := httpclient.New(base)
	t.Pause = func(ctx context.Context, _ time.Duration) error { return context.Cause(ctx) }
	return t
}

// effort returns what a whole run spends (for a folder: nanoseconds), and removes what it published.
func (p place) effort(t *testing.T, wheels []string) int64 {
	t.Helper()
	opt := p.options(t, wheels)
	count := &cutter{base: http.DefaultTransport}
	count.left.Store(math.MaxInt64)
	opt.Transport = atOnce(count)
	start := time.Now()
	if _, err := publish.Run(t.Context(), opt); err != nil {
		t.Fatal(err)
	}
	p.clear()
	if p.wrap == nil {
		return int64(time.Since(start))
	}
	return math.MaxInt64 - count.left.Load()
}

// cutter ends a run after so many bytes of bodies and requests.
type cutter struct {
	base http.RoundTripper
	left atomic.Int64
	cut  func()
}

const perRequest = 300

func (c *cutter) spend(n int) error {
	if c.left.Add(-int64(n)) < 0 {
		c.cut()
		return errCut
	}
	return nil
}

var errCut = errors.New("cut off")

func (c *cutter) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := c.spend(perRequest); err != nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, err
	}
	r = r.Clone(r.Context())
	if r.Body != nil {
		r.Body = cutBody{r.Body, c}
	}
	res, err := c.base.RoundTrip(r)
	if err == nil && c.spend(perRequest) != nil { // the server has done it, and nobody hears so
		res.Body.Close()
		return nil, errCut
	}
	return res, err
}

type cutBody struct {
	io.ReadCloser
	by *cutter
}

func (b cutBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p[:min(len(p), 512)])
	if cut := b.by.spend(n); cut != nil {
		return 0, cut
	}
	return n, err
}

// bar counts the bytes of a run.
type bar struct {
	mutex sync.Mutex
	total int64
	done  int64
}

func (b *bar) start(total int64) publish.Progress {
	b.total = total
	return b
}

func (b *bar) Add(n int64) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.done += n
}

func (b *bar) Close() {}
