//go:build linux

package daggerbuilder

import (
	"errors"
	"io"
	"sync"
	"testing"

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

// The engine comes up in Docker, for two that start it at once, runs a plan, and
// goes with its daemon.
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
	said, _, err := attempt(t, both[1].b, tiny(t, "docker", tar, "true", "true"), pipeline.Site{})
	if err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	if err := errors.Join(both[0].done(), both[1].done()); err != nil {
		t.Error(err)
	}
	if names := d.Run(t, "ps", "-a", "--format", "{{.Names}}"); names != "dagger-engine-"+engine.Version {
		t.Errorf("containers: %q", names)
	}
}
