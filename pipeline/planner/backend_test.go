//go:build linux

package planner

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/adrg/xdg"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
)

// What is fetched on this machine comes from where the flags of the site say, too.
func TestHostBuilderIsToldTheSite(t *testing.T) {
	t.Cleanup(xdg.Reload) // after the variable is back
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	xdg.Reload()
	network, err := pipeline.NewNetwork(pipeline.NetworkOptions{IndexURL: "https://index.example.org/simple"}, os.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	report := ui.New(io.Discard, ui.Options{})
	backend := NewBackend(BackendOptions{Kind: Host, Network: network, Environ: os.Environ(), Report: report})
	defer backend.Close()
	machine, err := backend.hostBuilder(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	plan := &pipeline.Plan{
		Parts: []pipeline.Part{{Toolchain: compat.Toolchain{Python: machine.Host().Pythons[0]}}},
		Context: map[string]string{
			"uv.sh":    "mkdir -p \"$1/bin\"\n",
			"torch.sh": ". \"$DSBUILD_SITE\"\necho \"from $PIP_INDEX_URL, torch from $DSBUILD_TORCH_INDEX\"\nexit 1\n",
		},
	}
	builder, err := backend.OpenBuilder(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	if _, err := builder.Open(t.Context(), plan, pipeline.Work{Log: &log, Report: report}); err == nil || !strings.Contains(log.String(), "from https://index.example.org/simple, torch from https://") {
		t.Errorf("%v\n%s", err, &log)
	}
}
