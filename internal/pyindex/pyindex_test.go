package pyindex_test

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/httpclient"
	"github.com/dsbuild/dsbuild/internal/pyindex"
)

const (
	a64 = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	b64 = "BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB"
)

const (
	jsonType = "application/vnd.pypi.simple.v1+json"
	htmlType = "application/vnd.pypi.simple.v1+html"
)

// The same files in both formats of a page.
const (
	jsonPage = `{"meta": {"api-version": "1.1"}, "name": "torch", "files": [
{"filename": "torch-2.16.1-cp311-cp311-manylinux_2_28_x86_64.whl", "url": "../../files/torch-2.16.1-cp311-cp311-manylinux_2_28_x86_64.whl", "hashes": {"sha256": "` + a64 + `"}, "yanked": false, "core-metadata": {"sha256": "` + b64 + `"}},
{"filename": "torch-2.16.0+cu126-cp311-cp311-linux_x86_64.whl", "url": "/files/torch-2.16.0%2Bcu126-cp311-cp311-linux_x86_64.whl", "hashes": {"md5": "x"}, "yanked": "does not\u001b[31m start", "dist-info-metadata": true},
{"filename": "torch-2.15.0.tar.gz", "url": "https://files.example.org/torch-2.15.0.tar.gz", "hashes": {"sha256": "` + b64 + `"}, "yanked": true},
{"filename": "torchvision-1.0.tar.gz", "url": "torchvision-1.0.tar.gz", "hashes": {}},
{"filename": "torch-1.0.exe", "url": "torch-1.0.exe", "hashes": {}},
{"filename": "../torch-1.0.tar.gz", "url": "torch-1.0.tar.gz", "hashes": {}},
{"filename": "torch-9.0.tar.gz", "url": "file:///etc/torch-9.0.tar.gz", "hashes": {}},
{"filename": "torch-8-cp311-cp311-a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.whl", "url": "x.whl", "hashes": {}}]}`
	htmlPage = `<!DOCTYPE html><html><head><meta name="pypi:repository-version" content="1.0"></head><body>
<a href="../../files/torch-2.16.1-cp311-cp311-manylinux_2_28_x86_64.whl#sha256=` + a64 + `" data-core-metadata="sha256=` + b64 + `">torch</a>
<A HREF="/files/torch-2.16.0%2Bcu126-cp311-cp311-linux_x86_64.whl#md5=x" data-yanked="does not&#27;[31m start" data-dist-info-metadata="true">torch</a>
<a href="https://files.example.org/torch-2.15.0.tar.gz#sha256=` + b64 + `" data-yanked>torch</a>
<a href="torchvision-1.0.tar.gz">x</a><a href="file:///etc/torch-9.0.tar.gz">x</a><a href="javascript:alert(1)">x</a><a>x</a><a href="%zz">x</a>
</body></html>`
)

func serve(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server.URL
}

// atOnce reaches servers without waiting between tries.
func atOnce(base http.RoundTripper) http.RoundTripper {
	t := httpclient.New(base)
	t.Pause = func(ctx context.Context, _ time.Duration) error { return context.Cause(ctx) }
	return t
}

func answer(kind, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		_, _ = io.WriteString(w, text)
	}
}

func TestFiles(t *testing.T) {
	for kind, page := range map[string]string{jsonType: jsonPage, htmlType: htmlPage, "text/html; charset=utf-8": htmlPage} {
		asked := 0
		index := serve(t, func(w http.ResponseWriter, r *http.Request) {
			asked++
			if r.URL.Path != "/simple/torch/" || !strings.HasPrefix(r.Header.Get("Accept"), jsonType) {
				http.NotFound(w, r)
				return
			}
			answer(kind, page)(w, r)
		})
		client := pyindex.New(atOnce(http.DefaultTransport))
		var got []string
		for range 2 {
			got = nil
			files, err := client.Files(t.Context(), index+"/simple", "Torch")
			if err != nil {
				t.Fatal(kind, err)
			}
			for _, f := range files {
				got = append(got, fmt.Sprintf("%s %s wheel %t %.1s yanked %t %q", f.Name, f.Version, f.Wheel != nil, f.SHA256, f.Yanked, f.Reason))
			}
		}
		want := []string{
			`torch-2.16.1-cp311-cp311-manylinux_2_28_x86_64.whl 2.16.1 wheel true a yanked false ""`,
			`torch-2.16.0+cu126-cp311-cp311-linux_x86_64.whl 2.16.0+cu126 wheel true  yanked true "does not\x1b[31m start"`,
			`torch-2.15.0.tar.gz 2.15.0 wheel false b yanked true ""`,
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s:\n%s", kind, strings.Join(got, "\n"))
		}
		if asked != 1 {
			t.Errorf("%s: asked %d times", kind, asked)
		}
	}
}

// The error for an invalid answer names the problem and the address, and never the login.
func TestBadAnswers(t *testing.T) {
	huge := func(w http.ResponseWriter, _ *http.Request) { // small in transfer
		w.Header().Set("Content-Type", "text/html")
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		line := strings.Repeat(" ", 1<<20)
		for range 40 {
			_, _ = io.WriteString(z, line)
		}
		_ = z.Close()
	}
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		want    string
	}{
		"no such project": {http.NotFound, "project not found"},
		"a login page":    {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }, "401 Unauthorized"},
		"a fault":         {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }, "502 Bad Gateway"},
		"no kind":         {answer("", "hello"), "invalid Content-Type"},
		"another kind":    {answer("application/pdf", "%PDF"), `"application/pdf"`},
		"cut JSON":        {answer(jsonType, jsonPage[:200]), "invalid JSON"},
		"other JSON":      {answer(jsonType, `{"files": 7}`), "invalid JSON"},
		"JSON to come":    {answer(jsonType, `{"meta": {"api-version": "2.0"}, "files": []}`), `version "2.0"`},
		"a huge page":     {huge, "larger than 32 MiB"},
		"a huge tag":      {answer("text/html", "<a href='"+strings.Repeat("x", 2<<20)), "invalid HTML"},
		"cut off": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "{")
		}, "unexpected EOF"},
		"a loop": {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, http.StatusFound) }, "stopped after 10 redirects"},
	} {
		login := "me:geheim@"
		if name == "a fault" || name == "a loop" {
			login = "geheim@" // a token
		}
		index := strings.Replace(serve(t, c.handler), "http://", "http://"+login, 1)
		files, err := pyindex.New(atOnce(http.DefaultTransport)).Files(t.Context(), index, "torch")
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "geheim") {
			t.Errorf("%s: %v, %v", name, files, err)
		}
		if errors.Is(err, pyindex.ErrNoProject) != (name == "no such project") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A redirect that leaves encryption is refused, and a redirect to another host takes no password
// along.
func TestRedirects(t *testing.T) {
	plain := serve(t, answer("text/html", htmlPage))
	server := httptest.NewTLSServer(http.RedirectHandler(plain+"/torch/", http.StatusFound))
	t.Cleanup(server.Close)
	if _, err := pyindex.New(atOnce(server.Client().Transport)).Files(t.Context(), server.URL, "torch"); err == nil || !strings.Contains(err.Error(), "insecure redirect to http://") {
		t.Error(err)
	}
	told := "nothing"
	other := serve(t, func(w http.ResponseWriter, r *http.Request) {
		told = r.Header.Get("Authorization")
		answer(htmlType, htmlPage)(w, r)
	})
	other = strings.Replace(other, "127.0.0.1", "localhost", 1)
	index := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if name, password, _ := r.BasicAuth(); name != "me" || password != "geheim" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		http.Redirect(w, r, other+r.URL.Path, http.StatusFound)
	})
	files, err := pyindex.New(atOnce(http.DefaultTransport)).Files(t.Context(), strings.Replace(index, "http://", "http://me:geheim@", 1), "torch")
	if err != nil || len(files) != 3 || told != "" {
		t.Errorf("%d files, %v, and the other host was told %q", len(files), err, told)
	}
}

// Pages and files that break off are asked for again, and an index that failed is asked again later.
func TestBrokenAnswers(t *testing.T) {
	const text = "the bytes of a wheel"
	asked := map[string]int{}
	broken := true
	index := serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked[r.URL.Path]++
		switch {
		case broken && r.URL.Path == "/torch/":
			w.WriteHeader(http.StatusServiceUnavailable)
		case asked[r.URL.Path]%3 != 0: // every third time is whole
			w.Header().Set("Content-Length", "100000")
			answer(jsonType, jsonPage[:50])(w, r)
		case r.URL.Path == "/torch/":
			answer(jsonType, jsonPage)(w, r)
		default:
			answer("application/octet-stream", text)(w, r)
		}
	})
	client := pyindex.New(atOnce(http.DefaultTransport))
	if _, err := client.Files(t.Context(), index, "torch"); err == nil || asked["/torch/"] != 5 {
		t.Fatalf("asked %d times, %v, want an error after five", asked["/torch/"], err)
	}
	broken = false
	files, err := client.Files(t.Context(), index, "torch")
	if err != nil || len(files) != 3 {
		t.Fatalf("after the fault: %d files, %v, want three", len(files), err)
	}
	var got []byte
	err = client.Download(t.Context(), files[1], func(in io.Reader) (err error) {
		got, err = io.ReadAll(in)
		return err
	})
	if err != nil || string(got) != text {
		t.Errorf("downloaded %q, %v, want %q", got, err, text)
	}
}

// After an interrupted question, the client asks again.
func TestInterrupted(t *testing.T) {
	index := serve(t, answer(htmlType, htmlPage))
	client := pyindex.New(atOnce(http.DefaultTransport))
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("enough")
	cancel(stop)
	if _, err := client.Files(ctx, index, "torch"); !errors.Is(err, stop) {
		t.Error(err)
	}
	if files, err := client.Files(t.Context(), index, "torch"); err != nil || len(files) != 3 {
		t.Error(files, err)
	}
}

// FuzzPage gives both readers of pages input that no index should send.
func FuzzPage(f *testing.F) {
	f.Add(true, []byte(jsonPage))
	f.Add(false, []byte(htmlPage))
	f.Add(false, []byte("<a href=torch----.whl>")) // a wheel without a version
	f.Fuzz(func(t *testing.T, isJSON bool, page []byte) {
		kind := htmlType
		if isJSON {
			kind = jsonType
		}
		transport := roundTrip(func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {kind}}, Body: io.NopCloser(strings.NewReader(string(page))), Request: r}, nil
		})
		files, err := pyindex.New(transport).Files(t.Context(), "https://index.example.org/simple", "torch")
		for _, file := range files {
			if err != nil || file.Version == "" || strings.ContainsAny(file.Name, "/\\\x1b ") || file.SHA256 != "" && len(file.SHA256) != 64 {
				t.Errorf("%+v, %v", file, err)
			}
		}
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
