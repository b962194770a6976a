//go:build linux

package daggerbuilder

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/testkit/docker"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/pipeline/engine"
)

// inContainer is the engine as it is found where a container client is all there
// is. Only the dagger program is that of dsbuild's own engine.
func inContainer(t *testing.T) engine.Engine {
	t.Helper()
	cli := engine.NewFinder("", t.Logf)
	cli.Flag, cli.Env = "", ""
	own, err := cli.Find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f := engine.NewFinder("", t.Logf)
	f.Env, f.Home, f.CLI = "", t.TempDir(), own.CLI
	found, err := f.Find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// told fails the test unless Connect rejects, soon and with its last words, an engine whose container ends at once and is
// restarted again and again.
func told(t *testing.T, d *docker.Daemon, e engine.Engine) {
	t.Helper()
	d.Run(t, "run", "--detach", "--restart", "always", "--name", "broken", "--entrypoint", "sh", engine.Image, "-c", "echo cannot come up; exit 1")
	defer d.Run(t, "rm", "--force", "--volumes", "broken")
	e.Address += "?container=broken"
	begin := time.Now()
	_, _, err := Connect(t.Context(), e, io.Discard)
	took := time.Since(begin)
	if err == nil || took > 30*time.Second || fault.ExitCode(err) != 0 || !strings.Contains(fault.Hint(err), d.Client+" logs broken") ||
		!strings.Contains(err.Error(), "broken does not stay up") || !strings.Contains(err.Error(), "last output of the engine: cannot come up") {
		t.Errorf("after %s: %v\nhint: %s", took, err, fault.Hint(err))
	}
	environments, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range environments {
		if text, err := os.ReadFile(file); err == nil && bytes.Contains(text, []byte(e.Address)) {
			t.Errorf("the Dagger client's program still runs: %s", filepath.Dir(file))
		}
	}
	t.Logf("result: %s restarts the engine's container again and again: told after %.0f s", d.Client, took.Seconds())
}

// The engine comes up in Docker, for two that start it at once, runs a plan, and
// goes with its daemon. An engine that never comes up is told.
func TestDocker(t *testing.T) {
	_, tar := connect(t)
	d := docker.Docker(t, docker.Options{})
	d.LoadEngine(t)
	e := inContainer(t)
	if e.How != "docker" || e.Address != "image+docker://"+engine.Image {
		t.Fatalf("%+v", e)
	}
	type opened struct {
		b    *Builder
		done func() error
		err  error
	}
	both := make([]opened, 2)
	var wait sync.WaitGroup
	for i := range both {
		wait.Go(func() {
			o := &both[i]
			o.b, o.done, o.err = Connect(t.Context(), e, io.Discard)
		})
	}
	wait.Wait()
	if err := errors.Join(both[0].err, both[1].err); err != nil {
		t.Fatal(err)
	}
	said, _, err := attempt(t, both[1].b, tiny(t, "docker", tar, "true", "true"), pipeline.Network{})
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	if err := errors.Join(both[0].done(), both[1].done()); err != nil {
		t.Error(err)
	}
	told(t, d, e)
	if names := d.Run(t, "ps", "-a", "--format", "{{.Names}}"); names != "dagger-engine-"+engine.Version {
		t.Errorf("containers: %q", names)
	}
}
