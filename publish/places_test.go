package publish_test

import (
	"context"
	"errors"
	"html"
	"io"
	"io/fs"
	"log"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
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

	"github.com/dsbuild/dsbuild/index"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/publish"
	"github.com/dsbuild/dsbuild/wheel"
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
}

// serve starts a server whose handler can be wrapped.
func serve(t *testing.T, h http.Handler) (address string, wrap func(func(http.Handler) http.Handler)) {
	t.Helper()
	var now atomic.Value
	now.Store(&h)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*now.Load().(*http.Handler)).ServeHTTP(w, r) }))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(server.Close)
	return server.URL, func(f func(http.Handler) http.Handler) {
		wrapped := f(h)
		now.Store(&wrapped)
	}
}

// places returns one place of each kind, all empty.
func places(t *testing.T) []place {
	t.Helper()
	return []place{folderPlace(t), indexPlace(t), bucketPlace(t, false), bucketPlace(t, true), uploadPlace(t), githubPlace(t), gitlabPlace(t), registryPlace(t)}
}

func folderPlace(t *testing.T) place {
	dir := filepath.Join(t.TempDir(), "wheels")
	return place{
		name: "folder", to: "file://" + dir, beside: true,
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

// indexPlace is a folder with an index, which has a wheel already.
func indexPlace(t *testing.T) place {
	dir := filepath.Join(t.TempDir(), "www")
	first := wheeltest.Packed(t, t.TempDir(), wheeltest.Options{Version: "0.18.0", Ops: plain()})
	make := func() {
		os.RemoveAll(dir)
		if _, err := index.Write(t.Context(), index.Options{Dir: dir, Wheels: []string{first}, URL: "https://wheels.example.org/"}); err != nil {
			t.Error(err)
		}
	}
	make()
	m, err := wheel.ReadManifest(first)
	if err != nil {
		t.Fatal(err)
	}
	below, err := index.Folder(m)
	if err != nil {
		t.Fatal(err)
	}
	return place{
		name: "folder with an index", to: dir, beside: true, clear: make,
		files: func(t *testing.T) map[string][]byte {
			all := filesBelow(t, dir)
			page, err := os.ReadFile(filepath.Join(dir, below, "index.html"))
			if err != nil || !strings.Contains(html.UnescapeString(string(page)), filepath.Base(first)) {
				t.Errorf("the page lacks the wheel that was there: %v", err)
			}
			checkPage(t, string(page), all)
			maps.DeleteFunc(all, func(name string, _ []byte) bool {
				return strings.HasPrefix(name, "deepspeed-0.18.0") || strings.HasSuffix(name, ".metadata") || strings.HasPrefix(name, ".")
			})
			return all
		},
		add: func(name string, data []byte) { _ = os.WriteFile(filepath.Join(dir, below, name), data, 0o644) },
	}
}

// checkPage finds each wheel that a page names.
func checkPage(t *testing.T, page string, files map[string][]byte) {
	t.Helper()
	for line := range strings.Lines(html.UnescapeString(page)) {
		_, rest, ok := strings.Cut(line, `<a href="`)
		if !ok {
			continue
		}
		link, _, _ := strings.Cut(rest, `"`)
		link, sum, _ := strings.Cut(link, "#sha256=")
		name := strings.ReplaceAll(filepath.Base(link), "%2B", "+")
		if data, ok := files[name]; !ok || hexOf(data) != sum {
			t.Errorf("the page names %s, which is not there with these bytes", name)
		}
		if _, ok := files[name+".metadata"]; !ok {
			t.Errorf("%s has no METADATA beside it", name)
		}
	}
}

func bucketPlace(t *testing.T, indexed bool) place {
	s := newStore(t)
	address, wrap := serve(t, s)
	p := place{
		name: "bucket", to: "s3://wheels/deep/speed", wrap: wrap, beside: true,
		env: map[string]string{"AWS_ACCESS_KEY_ID": accessKey, "AWS_SECRET_ACCESS_KEY": s.secret, "AWS_ENDPOINT_URL_S3": address, "AWS_REGION": "us-east-1"},
		files: func(*testing.T) map[string][]byte {
			all := s.files("deep/speed/")
			maps.DeleteFunc(all, func(name string, _ []byte) bool { return strings.HasSuffix(name, ".metadata") })
			return all
		},
		clear: func() { s.mutex.Lock(); defer s.mutex.Unlock(); s.objects = map[string]stored{} },
		add: func(name string, data []byte) {
			s.mutex.Lock()
			defer s.mutex.Unlock()
			s.objects["deep/speed/"+name] = stored{data, "", "0123456789abcdef0123456789abcdef-2"} // of a multipart upload
		},
	}
	if !indexed {
		return p
	}
	p.name = "bucket with an index"
	empty := p.clear
	p.clear = func() {
		empty()
		to, _ := publish.ParseTarget(p.to)
		objects, err := publish.Objects(publish.Options{To: to, Getenv: func(name string) string { return p.env[name] }})
		if err == nil {
			_, err = index.WriteObjects(t.Context(), objects, index.Options{URL: "https://wheels.example.org/"})
		}
		if err != nil {
			t.Error(err)
		}
	}
	p.clear()
	p.files = func(t *testing.T) map[string][]byte {
		all := s.files("deep/speed/")
		for name, data := range all {
			if strings.HasSuffix(name, "/deepspeed/index.html") {
				checkPage(t, string(data), all)
			}
		}
		maps.DeleteFunc(all, func(name string, _ []byte) bool {
			return !strings.Contains(name, ".whl") || strings.HasSuffix(name, ".metadata")
		})
		return all
	}
	return p
}

func uploadPlace(t *testing.T) place {
	s := newUploads()
	address, wrap := serve(t, s)
	return place{
		name: "index", to: address + "/legacy/", check: address + "/simple/", wrap: wrap,
		env:   map[string]string{"TWINE_USERNAME": s.user, "TWINE_PASSWORD": s.password},
		files: func(*testing.T) map[string][]byte { return s.all() },
		clear: func() { s.mutex.Lock(); defer s.mutex.Unlock(); clear(s.files) },
		add:   func(name string, data []byte) { s.mutex.Lock(); defer s.mutex.Unlock(); s.files[name] = data },
		sent:  func() int { s.mutex.Lock(); defer s.mutex.Unlock(); return s.posts },
	}
}

func githubPlace(t *testing.T) place {
	s := &releases{token: "ghp_release"}
	address, wrap := serve(t, s)
	return place{
		name: "GitHub", to: "github:example/wheels@v1", wrap: wrap, beside: true,
		env:   map[string]string{"GITHUB_TOKEN": s.token, "GITHUB_API_URL": address},
		files: func(*testing.T) map[string][]byte { return s.all() },
		clear: func() { s.mutex.Lock(); defer s.mutex.Unlock(); s.assets = nil },
		add: func(name string, data []byte) {
			s.mutex.Lock()
			defer s.mutex.Unlock()
			s.next++
			s.assets = append(s.assets, &releaseAsset{ID: s.next, Name: name, State: "uploaded", Size: len(data), data: data}) // without digest
		},
		sent: func() int { s.mutex.Lock(); defer s.mutex.Unlock(); return s.posts },
	}
}

func gitlabPlace(t *testing.T) place {
	s := &lab{token: "glpat-release"}
	address, wrap := serve(t, s)
	return place{
		name: "GitLab", to: "gitlab:team/wheels@v1", wrap: wrap, beside: true,
		env:   map[string]string{"GITLAB_TOKEN": s.token, "CI_API_V4_URL": address},
		files: func(*testing.T) map[string][]byte { return s.all() },
		clear: func() { s.mutex.Lock(); defer s.mutex.Unlock(); s.files, s.links = nil, nil },
		add: func(name string, data []byte) {
			s.mutex.Lock()
			defer s.mutex.Unlock()
			s.files = append(s.files, labFile{name, hexOf(data), data})
		},
		sent: func() int { s.mutex.Lock(); defer s.mutex.Unlock(); return s.puts },
	}
}

func registryPlace(t *testing.T) place {
	fresh := func() http.Handler { return wholeBodies(containers.New(containers.Logger(log.New(io.Discard, "", 0)))) }
	var now atomic.Value
	h := fresh()
	now.Store(&h)
	address, wrap := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*now.Load().(*http.Handler)).ServeHTTP(w, r) }))
	host := strings.TrimPrefix(address, "http://")
	return place{
		name: "registry", to: "oci://" + host + "/team/wheels", wrap: wrap, beside: true,
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
		Getenv: func(name string) string { return p.env[name] },
		Pause:  func(ctx context.Context, _ time.Duration) error { return context.Cause(ctx) },
	}
}

// effort returns what a whole run spends (for a folder: nanoseconds), and removes what it published.
func (p place) effort(t *testing.T, wheels []string) int64 {
	t.Helper()
	opt := p.options(t, wheels)
	count := &cutter{base: http.DefaultTransport}
	count.left.Store(math.MaxInt64)
	opt.Transport = count
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
