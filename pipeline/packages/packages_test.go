package packages_test

import (
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/dockerfiles"
	"github.com/dsbuild/dsbuild/fleet/environment"
	"github.com/dsbuild/dsbuild/internal/pyindex"
	"github.com/dsbuild/dsbuild/internal/testkit/wheelindex"
	"github.com/dsbuild/dsbuild/pipeline/packages"
)

// The pins of an old DeepSpeed replace what the lock has for the torch.
func TestPinsReplaceVersions(t *testing.T) {
	got, ok := dockerfiles.LockedPackages("2.3.1", "3.11", "cuda12", nil, []string{"setuptools==69.5.1", "numpy==1.26.4"})
	var numpy dockerfiles.Package
	for _, p := range got.Runtime {
		if p.Name == "numpy" {
			numpy = p
		}
	}
	if !ok || numpy.Version != "1.26.4" || len(numpy.SHA256) != 64 {
		t.Error(ok, numpy)
	}
	if _, ok := dockerfiles.LockedPackages("2.3.1", "3.11", "cuda12", nil, []string{"numpy==1.0"}); ok {
		t.Error("the lock has a NumPy that it does not have")
	}
	for _, torch := range []string{"2.99.0", "2.15"} {
		if _, ok := dockerfiles.LockedPackages(torch, "3.11", "cuda13", nil, nil); ok {
			t.Error("the lock has torch", torch)
		}
	}
}

// A torch that the lock lacks is resolved: with its pins in place of those of the packages, the
// versions of the nearest torch wherever its requirements allow that, and each by its sha256.
func TestUnknownTorchIsResolved(t *testing.T) {
	t.Parallel()
	x := wheelindex.New(t)
	x.AddRequirements(t)
	for _, version := range []string{"1.0", "1.1"} {
		x.Add(t, wheelindex.Wheel{Name: "filelock", Version: version})
		x.Add(t, wheelindex.Wheel{Name: "sympy", Version: version})
	}
	x.Add(t, wheelindex.Wheel{Name: "setuptools", Version: "69.5.1"})
	x.Add(t, wheelindex.Wheel{Name: "deepspeed-kernels", Version: "2", Requires: []string{"nowhere"}})
	x.Add(t, wheelindex.Wheel{Name: "torch", Version: "2.99.0", Tag: "cp311-cp311-manylinux_2_28_x86_64", Requires: []string{"filelock", "sympy>=1.1", "setuptools>=80"}})
	r := environment.Resolver{
		UV: x.UV, Installer: x.Installer(t), TorchIndex: x.URL,
		Environ: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "UV_CACHE_DIR=" + t.TempDir(), "UV_DEFAULT_INDEX=" + x.URL, "UV_NO_CONFIG=1", "UV_PYTHON_DOWNLOADS=never"},
		Collect: &environment.Collector{Cache: t.TempDir(), Indexes: []string{x.URL}, Client: pyindex.New(http.DefaultTransport)},
	}
	known := dockerfiles.Packages{Runtime: []dockerfiles.Package{{Name: "filelock", Version: "1.0"}, {Name: "sympy", Version: "1.0"}}}
	q := packages.Query{Torch: "2.99.0", Python: "3.11", Source: compat.FoundCUDA, Pins: []string{"setuptools==69.5.1"}, Ops: []string{"deepspeed-kernels==2"}}
	got, err := packages.Resolve(t.Context(), r, q, known)
	if err != nil {
		t.Fatal(err)
	}
	text := dockerfiles.Constraints(got.Runtime)
	for _, want := range []string{"torch==2.99.0 ", "filelock==1.0 ", "sympy==1.1 ", "setuptools==69.5.1 ", "numpy==2.3.2 "} {
		if !strings.Contains(text, "\n"+want) && !strings.HasPrefix(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	if build := dockerfiles.Constraints(got.Build); strings.Count(build, "\n") != 3 || !strings.HasPrefix(build, "deepspeed-kernels==2 --hash=sha256:") || !strings.Contains(build, "\npip==25.2 ") {
		t.Errorf("build:\n%s", build)
	}
}
