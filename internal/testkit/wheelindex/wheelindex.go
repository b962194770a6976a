// Package wheelindex is a Python package index for tests: small real wheels that a test makes, and
// a wheel of uv that runs this machine's uv.
package wheelindex

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"deps.dev/util/pypi"

	"github.com/dsbuild/dsbuild/dockerfiles"
	"github.com/dsbuild/dsbuild/fleet/environment"
	"github.com/dsbuild/dsbuild/internal/testkit/python"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/wheel"
)

// Index serves the wheels and source distributions of a folder.
type Index struct {
	URL  string       // for --index-url
	Dir  string       // the files
	Gets atomic.Int64 // files that were sent
	UV   string       // the program uv
}

// New starts an index without wheels but uv's. It stops with the test.
func New(t testing.TB) *Index {
	t.Helper()
	uv, err := findUV()
	if err != nil {
		t.Fatal(err)
	}
	x := &Index{Dir: t.TempDir(), UV: uv.Program()}
	server := httptest.NewServer(x)
	t.Cleanup(server.Close)
	x.URL = server.URL + "/simple"
	x.AddUV(t, "manylinux_2_17_x86_64.manylinux2014_x86_64")
	return x
}

// findUV finds uv once for all indexes of a program.
var findUV = sync.OnceValues(func() (python.UV, error) {
	interpreter, err := python.Find(context.Background(), "3.11")
	if err != nil {
		return python.UV{}, err
	}
	return python.GetUV(context.Background(), interpreter, func(string) {})
})

// AddUV adds a wheel of uv for a platform. It runs this machine's uv.
func (x *Index) AddUV(t testing.TB, platform string) {
	t.Helper()
	x.Add(t, Wheel{Name: "uv", Version: dockerfiles.UVVersion(), Tag: "py3-none-" + platform, Files: map[string]string{
		"uv-" + dockerfiles.UVVersion() + ".data/scripts/uv": "#!/bin/sh\nexec " + x.UV + " \"$@\"\n",
	}})
}

// Installer is the uv of this index, for resolvers of tests: a dsbuild itself accepts only the published files.
func (x *Index) Installer(t testing.TB) environment.UV {
	t.Helper()
	uv := environment.UV{Version: dockerfiles.UVVersion()}
	wheels, err := filepath.Glob(filepath.Join(x.Dir, "uv-*.whl"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range wheels {
		sum, _, err := wheel.HashFile(path)
		if err != nil {
			t.Fatal(err)
		}
		uv.Sums = append(uv.Sums, sum)
	}
	return uv
}

// PublishUV replaces the index's uv by the published one for these machine types, which dsbuild accepts.
func (x *Index) PublishUV(t testing.TB, machines ...string) {
	t.Helper()
	old, err := filepath.Glob(filepath.Join(x.Dir, "uv-*.whl"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range old {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	for _, machine := range machines {
		published, err := python.UVWheel(t.Context(), machine, func(line string) { t.Log(line) })
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(published, filepath.Join(x.Dir, filepath.Base(published))); err != nil {
			t.Fatal(err)
		}
	}
}

// Wheel describes a small wheel.
type Wheel struct {
	Name, Version string
	Tag           string            // "" means py3-none-any
	Requires      []string          // PEP 508
	Files         map[string]string // besides a module of its name
}

// Make makes a wheel in a folder and returns its path.
func Make(t testing.TB, dir string, w Wheel) string {
	t.Helper()
	if w.Tag == "" {
		w.Tag = "py3-none-any"
	}
	stem := strings.ReplaceAll(w.Name, "-", "_") + "-" + w.Version
	info := stem + ".dist-info/"
	files := map[string]string{
		strings.ReplaceAll(w.Name, "-", "_") + "/__init__.py": "__version__ = '" + w.Version + "'\n",
		info + "METADATA": "Metadata-Version: 2.1\nName: " + w.Name + "\nVersion: " + w.Version + "\n",
		info + "WHEEL":    "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: " + w.Tag + "\n",
	}
	for _, r := range w.Requires {
		files[info+"METADATA"] += "Requires-Dist: " + r + "\n"
	}
	maps.Copy(files, w.Files)
	file := filepath.Join(dir, stem+"-"+w.Tag+".whl")
	wheeltest.Write(t, file, files)
	return file
}

// Add adds a wheel to the index and returns its path.
func (x *Index) Add(t testing.TB, w Wheel) string {
	t.Helper()
	return Make(t, x.Dir, w)
}

// AddRequirements adds what every toolchain requires besides torch, in the versions that dsbuild pins.
func (x *Index) AddRequirements(t testing.TB) {
	t.Helper()
	runtime, err := dockerfiles.RuntimeRequirements()
	if err != nil {
		t.Fatal(err)
	}
	tools, err := dockerfiles.BuildRequirements()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range append(runtime, tools...) {
		name := dockerfiles.RequirementName(r)
		version, _, _ := strings.Cut(strings.TrimPrefix(r, name+"=="), ";")
		x.Add(t, Wheel{Name: name, Version: version})
	}
}

// ServeHTTP implements http.Handler: pages of PEP 691, and the files.
func (x *Index) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if name, ok := strings.CutPrefix(r.URL.Path, "/files/"); ok {
		x.Gets.Add(1)
		http.ServeFile(w, r, filepath.Join(x.Dir, filepath.Base(name)))
		return
	}
	project := pypi.CanonPackageName(path.Base(r.URL.Path)) // below any index: /simple/NAME/, /torch/cu126/NAME/
	type file struct {
		Filename string            `json:"filename"`
		URL      string            `json:"url"`
		Hashes   map[string]string `json:"hashes"`
		Size     int               `json:"size"`
	}
	files := []file{}
	entries, _ := os.ReadDir(x.Dir) // an unreadable folder has no project
	for _, e := range entries {
		name, _, _ := strings.Cut(e.Name(), "-")
		if !strings.HasSuffix(e.Name(), ".whl") && !strings.HasSuffix(e.Name(), ".tar.gz") || pypi.CanonPackageName(name) != project {
			continue
		}
		data, err := os.ReadFile(filepath.Join(x.Dir, e.Name()))
		if err != nil {
			continue
		}
		sum := sha256.Sum256(data)
		files = append(files, file{e.Name(), "/files/" + e.Name(), map[string]string{"sha256": hex.EncodeToString(sum[:])}, len(data)})
	}
	if len(files) == 0 {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/vnd.pypi.simple.v1+json")
	_ = json.NewEncoder(w).Encode(map[string]any{"meta": map[string]string{"api-version": "1.1"}, "name": project, "files": files, "versions": []string{}}) // the client is gone
}
