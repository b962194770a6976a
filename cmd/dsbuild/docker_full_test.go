//go:build full && linux

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/built"
	"github.com/dsbuild/dsbuild/internal/testkit/docker"
	"github.com/dsbuild/dsbuild/pipeline/engine"
	"github.com/dsbuild/dsbuild/wheel"
)

// A user who has Docker and nothing of dsbuild's makes the very wheel that dsbuild's
// own engine makes, of the same base: both are compiled with nothing cached, from other directories.
func TestFullDockerWheel(t *testing.T) {
	own, _, err := wheel.HashFile(built.Wheel(t))
	if err != nil {
		t.Fatal(err)
	}
	d := docker.Docker(t, docker.Options{})
	d.LoadEngine(t)
	var stdout bytes.Buffer
	home := t.TempDir()
	cmd := exec.CommandContext(t.Context(), makeProgram(t), "wheel", "--no-cache", "--json", "--base", engine.NewBases(nil).There("bookworm"), "-o", t.TempDir())
	cmd.Dir = t.TempDir()
	cmd.Env = []string{
		"HOME=" + home, "PATH=" + os.Getenv("PATH"), "DOCKER_HOST=" + d.Host,
		engine.CLIVariable + "=" + filepath.Join(engine.Home(), "bin", "dagger"),
	}
	cmd.Stdout, cmd.Stderr = &stdout, t.Output()
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v; the end of its log:\n%s", err, command(t, home, "sh", "-c", "tail -n 200 .local/state/dsbuild/logs/wheel-*.log"))
	}
	var doc wheelResult
	if err := json.Unmarshal(stdout.Bytes(), &doc); err != nil || len(doc.Wheels) != 1 {
		t.Fatalf("%v: %s", err, &stdout)
	}
	if w := doc.Wheels[0]; w.SHA256 != own || w.Cached {
		t.Errorf("cached %v, sha256 %s by Docker, %s by dsbuild's own engine", w.Cached, w.SHA256, own)
	}
	t.Logf("result: sha256 by Docker and by dsbuild's own engine: %s, in %.0f s", doc.Wheels[0].SHA256, doc.Wheels[0].Seconds)
}
