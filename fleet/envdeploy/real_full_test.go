//go:build full

package envdeploy_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/dockerfiles"
	"github.com/dsbuild/dsbuild/fleet/envdeploy"
	"github.com/dsbuild/dsbuild/fleet/environment"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/pyindex"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/internal/testkit/wheelindex"
)

// The real requirements of DeepSpeed and transformers from the package index, with the real wheel
// of uv: every file on the node is that of its wheel. After a change of one pure package at most
// 5 % of the bytes travel.
func TestFullEnvRealPackages(t *testing.T) {
	runtime, err := dockerfiles.RuntimeRequirements()
	if err != nil {
		t.Fatal(err)
	}
	const index = "https://pypi.org/simple"
	x := &site{&wheelindex.Index{UV: wheelindex.New(t).UV}, t.TempDir()}
	real := func(more string) (*environment.Lock, *envdeploy.Files) {
		path := filepath.Join(x.dir, "environment.yaml")
		text := "name: train\npython: 3.11\nrequirements:\n  - transformers==4.57.1\n"
		for _, r := range runtime {
			if !strings.Contains(r, ";") && !strings.HasPrefix(r, "hjson") {
				text += "  - \"" + r + "\"\n"
			}
		}
		text += "  - \"" + more + "\"\n"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		spec, err := environment.Read(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		c := &environment.Collector{Cache: filepath.Join(x.dir, "cache"), Indexes: []string{index}, Client: pyindex.New(http.DefaultTransport)}
		r := environment.Resolver{UV: x.UV, Installer: x.Installer(t), Collect: c, Environ: append(os.Environ(), "UV_NO_CONFIG=1", "UV_PYTHON_DOWNLOADS=never")}
		l, err := r.Resolve(t.Context(), spec, []environment.Platform{{Machine: "x86_64", Glibc: "2.28"}}, nil, x.dir)
		if err != nil {
			t.Fatal(err)
		}
		paths, err := c.Collect(t.Context(), l, append([]environment.File{l.Sets[0].Installer}, l.Sets[0].Files...))
		if err != nil {
			t.Fatal(err)
		}
		files, err := envdeploy.OpenFiles(t.Context(), l, paths)
		if err != nil {
			t.Fatal(err)
		}
		return l, files
	}
	l, files := real("hjson==3.0.2")
	h, s := host(t, "gpu1", sshtest.Options{})
	r := run(t, t.Context(), options(t, l, files, []*sshtest.Server{s}, h))
	if n := r.Nodes[0]; n.Status != report.OK {
		t.Fatalf("%s (%s)", n.Error, n.Hint)
	}
	whole := r.Nodes[0].Sent
	if got := python(t, s, "import numpy, transformers; print(transformers.__version__)"); !strings.HasSuffix(got, "4.57.1") {
		t.Error(got)
	}
	l, files = real("hjson==3.1.0")
	opt := options(t, l, files, []*sshtest.Server{s}, h)
	r = run(t, t.Context(), opt)
	if n := r.Nodes[0]; n.Status != report.OK || n.Sent*20 > whole {
		t.Errorf("%d of %d bytes: %s", n.Sent, whole, n.Error)
	}
	t.Logf("%d files: %d bytes, then %d", len(l.Sets[0].Files), whole, r.Nodes[0].Sent)
	if r := look(t, opt); r.Err() != nil {
		t.Errorf("%v: %q", r.Err(), r.Nodes[0].Differs)
	}
}
