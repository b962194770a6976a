//go:build linux

package enginetest

import (
	"context"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"dagger.io/dagger"

	"github.com/dsbuild/dsbuild/dockerfiles"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/registry"
	"github.com/dsbuild/dsbuild/pipeline/engine"
)

// base is the tar of the base that every installation has.
func base(t *testing.T) string {
	t.Helper()
	tar := (&engine.Bases{Home: Own(t).Home}).There("bookworm")
	if tar == "" {
		needs.Missing(t, "needs the base of dsbuild's own engine (make engine)")
	}
	return tar
}

// client connects to an engine until the test ends.
func client(t *testing.T, e Engine) *dagger.Client {
	t.Helper()
	t.Setenv("_EXPERIMENTAL_DAGGER_CLI_BIN", e.CLI())
	for _, name := range []string{"DAGGER_NO_NAG", "DO_NOT_TRACK", "DAGGER_NO_UPDATE_CHECK"} {
		t.Setenv(name, "1")
	}
	c, err := dagger.Connect(t.Context(), dagger.WithRunnerHost(e.Address), dagger.WithLogOutput(io.Discard))
	if err != nil {
		t.Fatalf("connecting to %s: %v", e.Address, err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func fromTar(c *dagger.Client, tar string) *dagger.Container {
	return c.Directory().WithNewFile("Dockerfile", dockerfiles.FromRootfs()).
		WithFile(dockerfiles.RootfsName, c.Host().File(tar)).DockerBuild()
}

func run(t *testing.T, c *dagger.Container, script string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	out, err := c.WithEnvVariable("NOW", time.Now().String()).WithExec([]string{"sh", "-c", script}).Stdout(ctx)
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return strings.TrimSpace(out)
}

// Two engines of one user run at once, each with a network of its own. The second has a site's settings, and leaves nothing.
func TestTwoEngines(t *testing.T) {
	own, tar := Own(t), base(t)
	var second Engine
	t.Run("at once", func(t *testing.T) {
		second = secondOfASite(t, tar)
		if own.Address == second.Address {
			t.Fatalf("both are %s", own.Address)
		}
		type answer struct{ at, networks string }
		answers := make(chan answer, 2)
		for at, c := range map[string]*dagger.Container{
			"own": fromTar(client(t, own), tar), "second": client(t, second).Container().From(dockerfiles.DefaultImage),
		} {
			go func() {
				out, err := c.WithEnvVariable("NOW", time.Now().String()).
					WithExec([]string{"sh", "-c", "sleep 1; python3 -c 'import os; print(os.readlink(\"/proc/self/ns/net\"))'"}).Stdout(t.Context())
				if err != nil {
					out = "error: " + err.Error()
				}
				answers <- answer{at, strings.TrimSpace(out)}
			}()
		}
		a, b := <-answers, <-answers
		if !strings.HasPrefix(a.networks, "net:[") || !strings.HasPrefix(b.networks, "net:[") || a.networks == b.networks {
			t.Errorf("%+v, %+v", a, b)
		}
		if _, err := os.Stat(filepath.Join(second.Home, "state", "worker")); err != nil {
			t.Errorf("the second engine has no cache of its own: %v", err)
		}
	})
	if _, err := os.Stat(second.Home); err == nil {
		t.Errorf("%s is left", second.Home)
	}
	if _, err := os.Stat(own.CLI()); err != nil {
		t.Error("the programs of the first went with the second")
	}
}

func newRegistry(t *testing.T) *registry.Registry {
	t.Helper()
	reg, err := registry.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return reg
}

// An image is pulled by its reference and by a Dockerfile, over plain HTTP because the registry
// is on the engine's loopback. Its digest is the registry's.
func TestRegistry(t *testing.T) {
	own, tar := Own(t), base(t)
	reg := newRegistry(t)
	digest, err := reg.Add("dsbuild/base:bookworm", tar)
	if err != nil {
		t.Fatal(err)
	}
	ref := own.Serve(t, "127.0.0.1:0", reg) + "/dsbuild/base:bookworm"
	c := client(t, own)
	pulled := c.Container().From(ref)
	// An engine that has the same bytes from another registry names that one.
	if got, err := pulled.ImageRef(t.Context()); err != nil || !strings.HasSuffix(got, "/dsbuild/base:bookworm@"+digest) {
		t.Errorf("image %q, %v; want digest %s of %s", got, err, digest, ref)
	}
	if out := run(t, pulled, "python3 --version"); !strings.HasPrefix(out, "Python 3.11") {
		t.Errorf("it has %q", out)
	}
	if _, err := c.Container().From(ref + "@" + digest).Sync(t.Context()); err != nil {
		t.Errorf("by its digest: %v", err)
	}
	built := c.Directory().WithNewFile("Dockerfile", dockerfiles.FromImage(ref)+"RUN echo built >/made\n").DockerBuild()
	if out := run(t, built, "cat /made"); out != "built" {
		t.Errorf("the Dockerfile made %q", out)
	}
	if _, err := c.Container().From(strings.Replace(ref, "bookworm", "none", 1)).Sync(t.Context()); err == nil {
		t.Error("an image that is not there was pulled")
	}
}

// secondOfASite starts a second engine, and checks that a site's settings reach it. The site's file names a mirror of docker.io,
// which has a certificate of the site's own authority. The proxy of the environment leads to another registry, and containers get
// that proxy too.
func secondOfASite(t *testing.T, tar string) Engine {
	t.Helper()
	const mirror, proxied = "127.0.0.1:5077", "registry.example:80"
	e := Second(t, Options{
		Env: []string{
			"http_proxy=http://127.0.0.1:3128", "HTTP_PROXY=", "no_proxy=127.0.0.1", "NO_PROXY=",
			"SSL_CERT_FILE=" + testAuthority(t),
		},
		Site: `{"registries": {
			"docker.io": {"mirrors": ["` + mirror + `"]},
			"` + mirror + `": {"http": false},
			"` + proxied + `": {"http": true}}}`,
	})
	mirrored, through := newRegistry(t), newRegistry(t)
	if _, err := mirrored.Add("library/debian:bookworm-slim", tar); err != nil {
		t.Fatal(err)
	}
	if _, err := through.Add("dsbuild/base:1", tar); err != nil {
		t.Fatal(err)
	}
	tls := &httptest.Server{Listener: e.Listen(t, mirror), Config: &http.Server{Handler: mirrored}}
	tls.StartTLS()
	t.Cleanup(tls.Close)
	e.Serve(t, "127.0.0.1:3128", through) // it accepts a proxy's requests
	c := client(t, e)
	if out := run(t, c.Container().From(dockerfiles.DefaultImage), "python3 --version"); !strings.HasPrefix(out, "Python 3.11") {
		t.Errorf("the mirror's image has %q", out)
	}
	if out := run(t, c.Container().From(proxied+"/dsbuild/base:1"), `echo "$http_proxy $HTTP_PROXY $no_proxy"`); out != "http://127.0.0.1:3128 http://127.0.0.1:3128 127.0.0.1" {
		t.Errorf("containers see %q", out)
	}
	return e
}

// testAuthority is a file with the certificate of package httptest's servers.
func testAuthority(t *testing.T) string {
	t.Helper()
	srv := httptest.NewTLSServer(nil)
	defer srv.Close()
	file := filepath.Join(t.TempDir(), "ca.crt")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	if err := os.WriteFile(file, text, 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}
