//go:build linux

package docker

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/pipeline/engine"
)

// noEngine is the program of images that contain no engine: it prints something and ends, or
// never answers.
const noEngine = `package main

import ("fmt"; "os"; "time")

func main() {
	fmt.Fprintln(os.Stderr, "remount /etc/resolv.conf: operation not permitted")
	if len(os.Args) > 1 && os.Args[1] == "stay" {
		time.Sleep(time.Hour)
	}
	os.Exit(3)
}
`

// program compiles noEngine and returns it as the tar of a root file system.
func program(t *testing.T) []byte {
	t.Helper()
	dir := t.TempDir()
	src, exe := filepath.Join(dir, "main.go"), filepath.Join(dir, "none")
	if err := os.WriteFile(src, []byte(noEngine), 0o644); err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", exe, src)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	text, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	err = w.WriteHeader(&tar.Header{Name: "none", Mode: 0o755, Size: int64(len(text))})
	_, writeErr := w.Write(text)
	if err := errors.Join(err, writeErr, w.Close()); err != nil {
		t.Fatal(err)
	}
	return archive.Bytes()
}

// load gives the daemon an image of a root file system and a command.
func load(t *testing.T, d *Daemon, rootfs []byte, name string, entry ...string) {
	t.Helper()
	cmd := d.command(t.Context(), "import", "--change", `ENTRYPOINT ["`+strings.Join(entry, `", "`)+`"]`, "-", name)
	cmd.Stdin = bytes.NewReader(rootfs)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("import: %v: %s", err, out)
	}
}

// repository is an address at which nobody answers.
const repository = "127.0.0.1:9/engine"

// fails starts an engine from an image and checks the error.
func fails(t *testing.T, d *Daemon, tag, want, wantHint string) {
	t.Helper()
	c, ok := engine.Engine{Address: "image+" + d.Client + "://" + repository + ":" + tag}.Container()
	if !ok {
		t.Fatal("no container")
	}
	begin := time.Now()
	err := c.Up(t.Context(), func(line string) { t.Log(line) })
	if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(fault.Hint(err), wantHint) {
		t.Errorf("%s: %v\nhint: %s\nwant %q and %q", tag, err, fault.Hint(err), want, wantHint)
	}
	t.Logf("%s: after %.1f s: %v", tag, time.Since(begin).Seconds(), err)
}

// noEngines tests images that contain no engine; the error gives the reason for each.
func noEngines(t *testing.T, d *Daemon) {
	rootfs := program(t)
	load(t, d, rootfs, repository+":loop", "/none")
	load(t, d, rootfs, repository+":missing", "/missing")
	load(t, d, rootfs, repository+":stay", "/none", "stay")
	fails(t, d, "loop", "last lines:\n    remount /etc/resolv.conf: operation not permitted", "privileged container")
	fails(t, d, "missing", "cannot be started: ", "remove container and image")
	fails(t, d, "stay", "has no program buildctl", "remove container and image")
	fails(t, d, "gone", d.Client+" cannot pull the engine", d.Client+" load -i engine.tar")
}

// If an engine does not start in Docker, the error has its last lines.
func TestNoEngine(t *testing.T) {
	noEngines(t, Docker(t, Options{}))
}

// The error for a full disk says so.
func TestDiskIsFull(t *testing.T) {
	d := Docker(t, Options{DataMB: 64})
	load(t, d, program(t), repository+":loop", "/none")
	d.Fill(t)
	fails(t, d, "loop", "no space left on device", "docker system prune")
}

// Nothing of a daemon is left when its test ends.
func TestNothingIsLeft(t *testing.T) {
	var d *Daemon
	t.Run("up", func(t *testing.T) { d = Docker(t, Options{}) })
	if d == nil {
		t.Skip("there was no daemon")
	}
	if _, err := os.Stat(d.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: %v", d.dir, err)
	}
	groups, err := filepath.Glob("/sys/fs/cgroup/*/" + d.cgroup())
	if err != nil || len(groups) > 0 {
		t.Errorf("control groups %v, %v", groups, err)
	}
}
