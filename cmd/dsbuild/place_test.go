//go:build linux

package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
)

// What is fetched on this machine comes from where the flags of the site say, too.
func TestHostBuilderIsToldTheSite(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	site, err := newSite(pipeline.SiteOptions{IndexURL: "https://index.example.org/simple"})
	if err != nil {
		t.Fatal(err)
	}
	a := &app{reporter: ui.New(testLines{t}, ui.Options{})}
	at := &place{app: a, way: builderHost, site: site}
	defer at.close()
	machine, err := at.host(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	plan := &pipeline.Plan{
		Toolchain: compat.Toolchain{Python: machine.Ground().Pythons[0]},
		Context: map[string]string{
			"uv.sh":    "mkdir -p \"$1/bin\"\n",
			"torch.sh": ". \"$DSBUILD_SITE\"\necho \"from $PIP_INDEX_URL, torch from $DSBUILD_TORCH_INDEX\"\nexit 1\n",
		},
	}
	builder, err := at.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	if _, err := builder.Open(t.Context(), plan, &log, a.reporter); err == nil || !strings.Contains(log.String(), "from https://index.example.org/simple, torch from https://") {
		t.Errorf("%v\n%s", err, &log)
	}
}
