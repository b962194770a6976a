//go:build full && linux

package daggerbuilder

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/enginetest"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/pipeline/engine"
)

// workerOn is a worker on a real engine.
func workerOn(name string, e enginetest.Engine) pipeline.Worker {
	return pipeline.Worker{Name: name, Parallel: 1, Connect: func(ctx context.Context, _ ui.Reporter) (pipeline.Builder, func() error, error) {
		b, done, err := Connect(ctx, e.Found(), io.Discard)
		return b, done, err
	}}
}

// builtOn counts the wheels of each engine, and fails where one failed.
func builtOn(t *testing.T, results []pipeline.Result) map[string]int {
	t.Helper()
	n := map[string]int{}
	for _, r := range results {
		if r.Err != nil {
			t.Errorf("%s: %v", r.Name, r.Err)
		}
		n[r.Engine]++
	}
	return n
}

// Plans of a small toolchain are spread over two engines, and make the same
// wheels on either. One engine that dies is left out, and its job is done by the
// other.
func TestFullFarmEngines(t *testing.T) {
	own, second := enginetest.Own(t), enginetest.Second(t, enginetest.Options{})
	jobs := func(ran string) []pipeline.Job {
		var all []pipeline.Job
		for i := range 6 {
			name := fmt.Sprint(10 + i)
			all = append(all, pipeline.Job{Name: name, Plan: tiny(t, name, engine.BaseTar(), "true", ran+"; : "+rand.Text())})
		}
		return all
	}
	farm := func(said io.Writer) pipeline.Farm {
		dir := t.TempDir()
		return pipeline.Farm{
			Runner: pipeline.Runner{
				Store: pipeline.Store{Dir: filepath.Join(dir, "store"), Keep: 99}, Dir: filepath.Join(dir, "out"),
				Logs: filepath.Join(dir, "logs"), Report: ui.New(io.MultiWriter(said, t.Output()), ui.Options{}),
			},
			Workers: []pipeline.Worker{workerOn("own", own), workerOn("second", second)},
		}
	}
	var said bytes.Buffer
	warm := farm(&said) // a new engine has nothing of the image yet
	warm.Workers = warm.Workers[1:]
	builtOn(t, warm.Run(t.Context(), jobs("true")[:1]))
	all := jobs("sleep 3")
	spread := farm(&said).Run(t.Context(), all)
	if n := builtOn(t, spread); n["own"] == 0 || n["second"] == 0 {
		t.Errorf("not spread: %v\n%s", n, &said)
	}
	alone := farm(&said)
	alone.Workers = alone.Workers[:1]
	for i, r := range alone.Run(t.Context(), all) {
		if r.Err != nil || r.Artifact.SHA256 != spread[i].Artifact.SHA256 {
			t.Errorf("%s: sha256 %s on %s, %s on own; %v", r.Name, spread[i].Artifact.SHA256, spread[i].Engine, r.Artifact.SHA256, r.Err)
		}
	}
	t.Logf("result: wheels of one plan each on two engines: %v", builtOn(t, spread))

	said.Reset()
	dying := farm(&said)
	dying.Workers[1].Connect = func(ctx context.Context, _ ui.Reporter) (pipeline.Builder, func() error, error) {
		b, done, err := Connect(ctx, second.Found(), io.Discard)
		return &killer{b, func() { kill(t, second) }}, done, err
	}
	results := dying.Run(t.Context(), jobs("sleep 3"))
	if n := builtOn(t, results); n["own"] != 6 || !strings.Contains(said.String(), "dsbuild lost engine second and leaves it out") {
		t.Errorf("%v\n%s", n, &said)
	}
	t.Logf("result: wheels where the second of two engines dies: %v", builtOn(t, results))
}

// kill ends an engine of a test as a machine that fails would: its cache is
// nobody's.
func kill(t *testing.T, e enginetest.Engine) {
	t.Helper()
	var record struct{ Engine struct{ PID int } }
	text, err := os.ReadFile(filepath.Join(e.Home, "run", "engine.json"))
	if err == nil {
		err = json.Unmarshal(text, &record)
	}
	if err == nil {
		err = syscall.Kill(record.Engine.PID, syscall.SIGKILL)
	}
	if err != nil {
		t.Error(err)
	}
}

// killer ends its engine once a step runs there.
type killer struct {
	*Builder
	kill func()
}

func (k *killer) Open(ctx context.Context, p *pipeline.Plan, log io.Writer, rep ui.Reporter) (pipeline.Workspace, error) {
	w, err := k.Builder.Open(ctx, p, log, rep)
	if err == nil {
		k.kill()
	}
	return w, err
}
