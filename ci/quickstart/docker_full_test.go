//go:build full && linux

package main

import (
	"archive/zip"
	"errors"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/dockerfiles"
	"github.com/dsbuild/dsbuild/internal/testkit/built"
	"github.com/dsbuild/dsbuild/internal/testkit/docker"
	"github.com/dsbuild/dsbuild/internal/testkit/registry"
	"github.com/dsbuild/dsbuild/pipeline/engine"
)

// A new user of a machine with Docker and without dsbuild's own engine clones dsbuild and runs
// make quickstart. The engine's image and the dagger program were brought as docs/build.md
// describes; the base comes from a mirror of Docker's registry.
func TestFullDockerQuickstart(t *testing.T) {
	d := docker.Docker(t, docker.Options{})
	d.LoadEngine(t)
	home, clone := t.TempDir(), filepath.Join(t.TempDir(), "dsbuild")
	mirrorBase(t, d, home)
	if out, err := exec.CommandContext(t.Context(), "git", "clone", "-q", "../..", clone).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), "make", "quickstart")
	cmd.Dir = clone
	cmd.Env = []string{
		"HOME=" + home, "PATH=" + os.Getenv("PATH"), "DOCKER_HOST=" + d.Host,
		engine.CLIVariable + "=" + filepath.Join(engine.Home(), "bin", "dagger"),
		"GOCACHE=" + goEnv(t, "GOCACHE"), "GOMODCACHE=" + goEnv(t, "GOMODCACHE"), "GOPROXY=" + goEnv(t, "GOPROXY"),
	}
	began := time.Now()
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"==> container engine: Dagger engine " + engine.Version + ": docker\n", "3 nodes ok, all equal"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("it does not say %q", want)
		}
	}
	dist, err := filepath.Glob(filepath.Join(clone, "dist", "*.whl"))
	if err != nil || len(dist) != 1 {
		t.Fatalf("%q, %v", dist, err)
	}
	// The manifest names another base: an image instead of its tar.
	if docker, own := extensions(t, dist[0]), extensions(t, built.Wheel(t)); len(own) == 0 || !maps.Equal(docker, own) {
		t.Errorf("extensions by Docker: %v\nby dsbuild's own engine: %v", docker, own)
	}
	t.Logf("result: make quickstart where Docker is all there is: three nodes ok in %.0f s, with the extensions that dsbuild's own engine makes", time.Since(began).Seconds())
}

// extensions are the CRC-32 sums of a wheel's compiled extensions.
func extensions(t *testing.T, file string) map[string]uint32 {
	t.Helper()
	z, err := zip.OpenReader(file)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	sums := map[string]uint32{}
	for _, f := range z.File {
		if strings.HasSuffix(f.Name, ".so") {
			sums[f.Name] = f.CRC32
		}
	}
	return sums
}

// mirrorBase serves the base of dsbuild's own engine as Docker's registry would. The user's
// configuration of Dagger names this mirror to the engine.
func mirrorBase(t *testing.T, d *docker.Daemon, home string) {
	t.Helper()
	reg, err := registry.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := reg.Add("library/"+dockerfiles.DefaultImage, engine.NewBases(nil).There("bookworm")); err != nil {
		t.Fatal(err)
	}
	l := d.Listen(t, "0.0.0.0:0")
	srv := &http.Server{Handler: reg, ReadHeaderTimeout: time.Minute}
	go srv.Serve(l) //nolint:errcheck // ends with the test
	t.Cleanup(func() { srv.Close() })
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	inside := "172.17.0.1:" + port // its address in the engine's container
	text := `{"registries": {"docker.io": {"mirrors": ["` + inside + `"]}, "` + inside + `": {"http": true}}}`
	dir := filepath.Join(home, ".config", "dagger")
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "engine.json"), []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}
