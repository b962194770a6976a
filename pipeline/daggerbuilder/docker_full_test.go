//go:build full && linux

package daggerbuilder

import (
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/adrg/xdg"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/testkit/docker"
	"github.com/dsbuild/dsbuild/internal/testkit/registry"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/pipeline/engine"
)

// small connects to the engine in a container and runs a small plan there.
func small(t *testing.T, e engine.Engine, tar string) {
	t.Helper()
	b, done, err := Connect(t.Context(), e, io.Discard)
	if err != nil {
		t.Fatalf("%v\nhint: %s", err, fault.Hint(err))
	}
	said, _, err := attempt(t, b, tiny(t, "podman", tar, "true", "true"), pipeline.Network{})
	if err != nil {
		t.Errorf("%v\n%s", err, said)
	}
	if err := done(); err != nil {
		t.Error(err)
	}
}

// The engine comes up in podman's service, run by root, and runs a plan.
func TestFullDockerPodman(t *testing.T) {
	_, tar := connect(t)
	d := docker.Podman(t, docker.Options{})
	d.LoadEngine(t)
	e := inContainer(t)
	if e.How != "podman" {
		t.Fatalf("%+v", e)
	}
	small(t, e, tar)
	told(t, d, e)
}

// podman without root is known as such, and not chosen.
func TestFullDockerRootless(t *testing.T) {
	docker.Podman(t, docker.Options{Rootless: true})
	f := engine.NewFinder("", t.Logf)
	f.Env, f.Home = "", t.TempDir()
	if found, err := f.Find(t.Context()); err == nil || !strings.Contains(err.Error(), "podman: runs without root") {
		t.Errorf("%+v, %v", found, err)
	}
}

// A container without privileges is told by the engine's own words.
func TestFullDockerDenied(t *testing.T) {
	connect(t)
	d := docker.Docker(t, docker.Options{Deny: "CAP_SYS_ADMIN"})
	d.LoadEngine(t)
	begin := time.Now()
	_, _, err := Connect(t.Context(), inContainer(t), io.Discard)
	if err == nil || time.Since(begin) > 60*time.Second || !strings.Contains(err.Error(), "operation not permitted") || !strings.Contains(fault.Hint(err), "privileged container") {
		t.Errorf("%v\nhint: %s", err, fault.Hint(err))
	}
	t.Logf("result: an engine without CAP_SYS_ADMIN: told after %.0f s", time.Since(begin).Seconds())
}

// The engine's image and a base are pulled by reference, from a registry that
// only the daemon's network reaches.
func TestFullDockerPulled(t *testing.T) {
	_, tar := connect(t)
	d := docker.Docker(t, docker.Options{})
	reg, err := registry.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	digest, err := reg.Add("dsbuild/base:bookworm", tar)
	if err != nil {
		t.Fatal(err)
	}
	l := d.Listen(t, "0.0.0.0:0")
	srv := &http.Server{Handler: reg, ReadHeaderTimeout: time.Minute}
	go srv.Serve(l) //nolint:errcheck // ends with the test
	t.Cleanup(func() { srv.Close() })
	_, port, _ := strings.Cut(strings.TrimPrefix(l.Addr().String(), "[::]"), ":")
	inside := "172.17.0.1:" + port // as the engine's container sees it
	name := "127.0.0.1:" + port + "/dsbuild/engine:1"
	d.LoadEngine(t)
	d.Run(t, "tag", engine.Image, name)
	d.Run(t, "push", name)
	d.Run(t, "rmi", engine.Image, name)
	config(t, `{"registries": {"`+inside+`": {"http": true}}}`)
	e := inContainer(t)
	e.Address = "image+docker://" + name
	b, done, err := Connect(t.Context(), e, io.Discard)
	if err != nil {
		t.Fatalf("%v\nhint: %s", err, fault.Hint(err))
	}
	base, err := pipeline.NewBase(inside + "/dsbuild/base:bookworm")
	if err != nil {
		t.Fatal(err)
	}
	if resolved, err := b.ResolveBase(t.Context(), base); err != nil || resolved.Digest != digest {
		t.Errorf("%+v, %v; want digest %s", resolved, err, digest)
	}
	if host, err := b.Inspect(t.Context(), base); err != nil || host.Suite != "bookworm" {
		t.Errorf("%+v, %v", host, err)
	}
	if err := done(); err != nil {
		t.Error(err)
	}
}

// config gives the user a configuration of Dagger's own, which the engine's
// container sees.
func config(t *testing.T, text string) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "dagger", "engine.json")
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(xdg.Reload) // after the variable is back
	t.Setenv("XDG_CONFIG_HOME", dir)
	xdg.Reload()
}

// A daemon that dies in the middle of a step ends the build with its reason.
func TestFullDockerDies(t *testing.T) {
	_, tar := connect(t)
	d := docker.Docker(t, docker.Options{})
	d.LoadEngine(t)
	b, done, err := Connect(t.Context(), inContainer(t), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	defer done() //nolint:errcheck // the engine is gone
	type result struct {
		said string
		err  error
	}
	ended := make(chan result, 1)
	go func() {
		said, _, err := attempt(t, b, tiny(t, "dies", tar, "true", "echo it runs; sleep 600; : "+rand.Text()), pipeline.Network{})
		ended <- result{said, err}
	}()
	deadline := time.After(2 * time.Minute)
	for running := false; !running; {
		select {
		case r := <-ended:
			t.Fatalf("ended too soon: %v\n%s", r.err, r.said)
		case <-deadline:
			t.Fatal("the step does not run")
		case <-time.After(time.Second):
			running = strings.Contains(d.Run(t, "top", "dagger-engine-"+engine.Version), "sleep 600")
		}
	}
	d.Kill(t)
	begin := time.Now()
	select {
	case r := <-ended:
		if r.err == nil || !strings.Contains(r.err.Error(), "docker") || fault.Hint(r.err) == "" {
			t.Errorf("%v\nhint: %s", r.err, fault.Hint(r.err))
		}
		t.Logf("result: a daemon that dies in the middle: told after %.0f s", time.Since(begin).Seconds())
	case <-time.After(3 * time.Minute):
		t.Error("the build goes on without its engine")
	}
}
