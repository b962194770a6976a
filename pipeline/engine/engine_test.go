package engine

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// nowhere is a finder on a machine without anything.
func nowhere(t *testing.T) *Finder {
	return &Finder{
		Home: t.TempDir(), Note: t.Logf,
		LookPath: func(string) (string, error) { return "", errors.New("not found") },
	}
}

// listen makes a socket that answers.
func listen(t *testing.T, path string) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
}

func TestNothingThere(t *testing.T) {
	_, err := nowhere(t).Find(t.Context())
	var none *NotFoundError
	if !errors.As(err, &none) || len(none.Attempts) != 4 || none.Hint() == "" {
		t.Fatal(err)
	}
	for _, want := range []string{"own engine", "docker", "podman", "nerdctl"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %s", err, want)
		}
	}
}

func TestGivenAddressIsFinal(t *testing.T) {
	f := nowhere(t)
	dead := "unix://" + filepath.Join(t.TempDir(), "none.sock")
	f.Flag = dead
	listen(t, filepath.Join(mkdir(t, f.Home, "run"), "engine.sock"))
	if _, err := f.Find(t.Context()); err == nil || !strings.Contains(err.Error(), "--engine "+dead+": no such socket") {
		t.Error(err)
	}
	for _, address := range []string{"nonsense", "localhost:8080", "http://localhost:8080"} {
		f.Flag, f.Env = "", address
		if _, err := f.Find(t.Context()); err == nil || !strings.Contains(err.Error(), "DSBUILD_ENGINE") || fault.ExitCode(err) != 2 {
			t.Error(address, err)
		}
	}
	f.Env = ""
	if e, err := f.Find(t.Context()); err != nil || e.How != "dsbuild's own engine" {
		t.Errorf("%+v, %v", e, err)
	}
}

func TestStaleSocket(t *testing.T) {
	f := nowhere(t)
	path := filepath.Join(mkdir(t, f.Home, "run"), "engine.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	if _, err := f.Find(t.Context()); err == nil || !strings.Contains(err.Error(), "not installed") {
		t.Error(err)
	}
}

// A client without a daemon counts as none, and one whose daemon hangs does
// not hold anybody up.
func TestDaemons(t *testing.T) {
	for script, want := range map[string]string{
		"echo 'Cannot connect to the Docker daemon' >&2; exit 1": "cannot reach the daemon (Cannot connect",
		"exit 1":          "cannot reach the daemon (exit status 1)",
		"exec sleep 60":   "did not respond within 5s",
		"sleep 60 & wait": "did not respond within 5s",
		"echo 28.2":       "",
	} {
		t.Run(script, func(t *testing.T) {
			f := nowhere(t)
			client := filepath.Join(t.TempDir(), "docker")
			if err := os.WriteFile(client, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			// Two of them wait for the limit. All are written by now: a program that another one's fork holds open for
			// writing cannot be started.
			t.Parallel()
			f.LookPath = func(name string) (string, error) {
				if name == "docker" {
					return client, nil
				}
				return "", os.ErrNotExist
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			e, err := f.Find(ctx)
			cancel()
			switch {
			case want == "" && (err != nil || e.How != "docker" || e.Address != "image+docker://"+Image):
				t.Errorf("%s: %+v, %v", script, e, err)
			case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
				t.Errorf("%s: %v, want %q", script, err, want)
			}
		})
	}
}

func TestOwnEngineIsStarted(t *testing.T) {
	f := nowhere(t)
	f.Root = true
	mkdir(t, f.Home, "run")
	control := filepath.Join(mkdir(t, f.Home, "bin"), "enginectl")
	if err := os.WriteFile(control, []byte("#!/bin/sh\necho no room >&2; exit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Find(t.Context()); err == nil || !strings.Contains(err.Error(), "start: exit status 1: no room") {
		t.Error(err)
	}
	f.Root = false
	if _, err := f.Find(t.Context()); err == nil || !strings.Contains(err.Error(), "only root can start it") {
		t.Error(err)
	}
}

func mkdir(t *testing.T, parts ...string) string {
	t.Helper()
	dir := filepath.Join(parts...)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}
