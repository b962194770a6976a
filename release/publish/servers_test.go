package publish_test

import (
	"crypto/sha1" //nolint:gosec // a form of htpasswd
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/python"
)

// The real servers of these tests: moto's S3 and pypiserver.
const (
	motoPackage  = "moto[server]==5.2.5"
	indexPackage = "pypiserver==2.4.2"
)

// programs returns the folder of the servers' programs.
func programs(t *testing.T) string {
	t.Helper()
	dir, err := python.Environment(t.Context(), python.EnvironmentOptions{
		Packages: []string{indexPackage, "passlib==1.7.4", motoPackage}, Log: func(line string) { t.Log(line) },
	})
	if err != nil {
		needs.Missing(t, "no servers to publish to: %v", err)
	}
	return filepath.Join(dir, "bin")
}

// running are the servers that all tests share; TestMain ends them.
var running struct {
	mutex sync.Mutex
	stops []func()
	store *url.URL
}

func TestMain(m *testing.M) {
	code := m.Run()
	for _, stop := range running.stops {
		stop()
	}
	os.Exit(code)
}

// start starts a server, which args tell of its port, and waits until it answers.
func start(t *testing.T, program string, args func(port string) []string) (at *url.URL, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	host := l.Addr().String()
	l.Close()
	_, port, _ := net.SplitHostPort(host)
	server := exec.Command(program, args(port)...) //nolint:noctx // stop ends it
	server.Env = append(os.Environ(), "AWS_CONFIG_FILE=/dev/null")
	said, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer said.Close()
	server.Stdout, server.Stderr = said, said
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	stop = func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if c, err := net.Dial("tcp", host); err == nil {
			c.Close()
			return &url.URL{Scheme: "http", Host: host}, stop
		}
		if time.Now().After(deadline) {
			stop()
			text, _ := os.ReadFile(said.Name())
			t.Fatalf("%s does not listen on %s: %s", filepath.Base(program), host, text)
		}
	}
}

// store returns the address of the server of S3, which all tests share: each place has its own bucket.
func store(t *testing.T) *url.URL {
	t.Helper()
	running.mutex.Lock()
	defer running.mutex.Unlock()
	if running.store == nil {
		at, stop := start(t, filepath.Join(programs(t), "moto_server"), func(port string) []string { return []string{"-H", "127.0.0.1", "-p", port} })
		running.store, running.stops = at, append(running.stops, stop)
	}
	return running.store
}

// The login of the package index.
const (
	indexUser     = "ci"
	indexPassword = "index-password"
)

// startIndex starts a package index that asks for a login, with its files in a folder.
func startIndex(t *testing.T, dir string) *url.URL {
	t.Helper()
	sum := sha1.Sum([]byte(indexPassword)) //nolint:gosec // as above
	users := filepath.Join(t.TempDir(), "htpasswd")
	if err := os.WriteFile(users, fmt.Appendf(nil, "%s:{SHA}%s\n", indexUser, base64.StdEncoding.EncodeToString(sum[:])), 0o600); err != nil {
		t.Fatal(err)
	}
	at, stop := start(t, filepath.Join(programs(t), "pypi-server"), func(port string) []string {
		return []string{
			"run", "-i", "127.0.0.1", "-p", port, "-a", "update,list,download", "-P", users, "--hash-algo", "sha256", "--disable-fallback",
			"--backend", "simple-dir", dir,
		}
	})
	t.Cleanup(stop)
	return at
}

// front is a server before a real one. Tests put faults there.
type front struct {
	address string
	inner   http.Handler
	now     atomic.Pointer[http.Handler]
	sent    atomic.Int64 // uploads that the server took
}

// newFront serves a handler.
func newFront(t *testing.T, inner http.Handler) *front {
	t.Helper()
	f := &front{}
	f.inner = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen := &statusWriter{ResponseWriter: w}
		inner.ServeHTTP(seen, r)
		if (r.Method == http.MethodPut || r.Method == http.MethodPost) && seen.code/100 == 2 {
			f.sent.Add(1)
		}
	})
	f.now.Store(&f.inner)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*f.now.Load()).ServeHTTP(w, r) }))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(server.Close)
	f.address = server.URL
	return f
}

// wrap puts a handler before the server.
func (f *front) wrap(handler func(http.Handler) http.Handler) {
	wrapped := handler(f.inner)
	f.now.Store(&wrapped)
}

// pass passes requests on to a server, with the host that the client named: its signature covers it.
func pass(to *url.URL) http.Handler {
	return &httputil.ReverseProxy{
		Rewrite:  func(r *httputil.ProxyRequest) { r.SetURL(to); r.Out.Host = r.In.Host },
		ErrorLog: log.New(io.Discard, "", 0),
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) {
			panic(http.ErrAbortHandler) // the client's connection breaks, too
		},
	}
}

// statusWriter notes the status of an answer.
type statusWriter struct {
	http.ResponseWriter
	code int
}

func (w *statusWriter) WriteHeader(code int) {
	w.code = code
	w.ResponseWriter.WriteHeader(code)
}

func (w *statusWriter) Write(p []byte) (int, error) {
	if w.code == 0 {
		w.code = http.StatusOK
	}
	return w.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController reach the writer.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
