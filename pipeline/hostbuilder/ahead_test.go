package hostbuilder

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
)

// A step that may begins while the one before it runs, sees its inputs when they are
// all there, and what it says comes in its turn.
func TestAhead(t *testing.T) {
	dir := t.TempDir()
	p, _ := planOf(t,
		pipeline.Step{Name: "first", Image: pipeline.Toolchain, Script: `until [ -e ` + dir + `/begun ]; do sleep 0.02; done; echo from the first >"$DSBUILD_OUT/word"`},
		pipeline.Step{
			Name: "second", Image: pipeline.Runtime, Ahead: true, Inputs: []string{"first"},
			Script: `echo early; [ ! -e "$DSBUILD_IN/first" ]; touch ` + dir + `/begun; cat; cat "$DSBUILD_IN/first/word"; cp "$DSBUILD_IN/first/word" "$DSBUILD_OUT"`,
		})
	var log bytes.Buffer
	rep := newRecord()
	r := open(t, host(t), p, &log, rep)
	for _, s := range p.Steps {
		if err := r.Run(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	if want := "== first: \n== second: \nearly\nfrom the first\n"; !strings.HasSuffix(log.String(), want) {
		t.Errorf("the log is %q, want %q at its end", &log, want)
	}
	if err := r.Export(t.Context(), "second", filepath.Join(dir, "out")); err != nil {
		t.Error(err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	// The same again is taken from what is kept, and nothing begins.
	again := open(t, r.Builder, p, &log, rep)
	for _, s := range p.Steps {
		if err := again.Run(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	if rep.ends[len(rep.ends)-1] != ui.Cached || len(again.begun) > 0 {
		t.Errorf("%v, begun %d", rep.ends, len(again.begun))
	}
}

// What has begun ends with the build, where a step before it fails.
func TestAheadIsEnded(t *testing.T) {
	dir := t.TempDir()
	p, _ := planOf(t,
		pipeline.Step{Name: "first", Image: pipeline.Toolchain, Script: `until [ -e ` + dir + `/begun ]; do sleep 0.02; done; exit 3`},
		pipeline.Step{Name: "second", Image: pipeline.Runtime, Ahead: true, Script: `sleep 98721.25 & touch ` + dir + `/begun; cat; echo on`})
	var log bytes.Buffer
	r := open(t, host(t), p, &log, newRecord())
	if err := r.Run(t.Context(), p.Steps[0]); err == nil {
		t.Error("the first step did not fail")
	}
	if !alive(t, "98721.25") {
		t.Error("the second did not begin")
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if alive(t, "98721.25") || strings.Contains(log.String(), "on\n") {
		t.Errorf("it goes on: %q", &log)
	}
}
