//go:build full && linux

package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/wheel"
)

// pythonSource is the source of a Python, from Ubuntu.
const (
	pythonSource       = "http://archive.ubuntu.com/ubuntu/pool/main/p/python3.10/python3.10_3.10.4.orig.tar.xz"
	pythonSourceSHA256 = "80bf925f571da436b35210886cf79f6eb5fa5d6c571316b73568343451f77a19"
)

// A wheel built on Ubuntu 22.04 works under the glibc 2.27 of Ubuntu 18.04, which is older than
// that of every base: with a Python compiled there, and with packages that ask for no newer glibc
// than the tag of the wheel does, the ops load and CPU Adam takes a step. TestFullPairs has built
// the same wheel, so it comes from the store.
func TestFullPairsOldLibc(t *testing.T) {
	a := build(t, "--gpu", "A100", "--abi", "torch", "--torch", "2.6", "--python", "3.10", "-o", t.TempDir())
	m := a.Manifest
	if !strings.HasSuffix(a.Path, "-manylinux_2_17_x86_64.whl") {
		t.Errorf("%s asks for a newer glibc than torch %s does", m.Name, m.Torch)
	}
	s := newSystem(t, "bionic", t.TempDir())
	compilePython(t, s)
	installSite(t, s, "torch=="+m.Torch, a.Path)
	for _, name := range []string{"smoke.py", "nogpu.py"} {
		command(t, ".", "cp", filepath.Join("..", "..", "pipeline", "scripts", name), filepath.Join(s.root, "opt"))
	}
	const interpreter = "/opt/python/python"
	libc := strings.TrimSpace(s.run(t, interpreter, "-c", "import os; print(os.confstr('CS_GNU_LIBC_VERSION'))"))
	smoke := []string{"env", "PYTHONPATH=/opt/site", "DS_ACCELERATOR=cuda", "DSBUILD_IN=/tmp", "DSBUILD_OUT=/tmp", "DSBUILD_CPU=" + m.CPU, interpreter, "/opt/smoke.py"}
	said := s.run(t, append(smoke, m.Ops...)...)
	all := fmt.Sprintf(": %d ops work", len(wheel.DefaultOps()))
	if libc != "glibc 2.27" || !strings.Contains(said, "cpu_adam: one step equals torch's") || !strings.Contains(said, all) {
		t.Errorf("%s, ops %q:\n%s\nwant %q", libc, m.Ops, said, all)
	}
	t.Logf("result: Ubuntu 18.04, %s: %s, torch %s: ops %s load, CPU Adam takes a step", libc, m.Name, m.Torch, strings.Join(m.Ops, ", "))
}

// compilePython makes /opt/python of a system, where the compiled program runs as it is.
func compilePython(t *testing.T, s system) {
	t.Helper()
	download(t, pythonSource, pythonSourceSHA256, filepath.Join(s.root, "opt", "python.tar.xz"))
	s.install(t, "xz-utils", "gcc", "make", "libc6-dev", "zlib1g-dev", "libssl-dev", "libffi-dev", "libbz2-dev", "liblzma-dev")
	s.run(t, "sh", "-ec", "mkdir /opt/python; cd /opt/python; tar --no-same-owner --strip-components=1 -xf ../python.tar.xz; ./configure -q; make -s -j$(nproc)")
}

// download downloads a file whose sha256 is known.
func download(t *testing.T, address, sha256, to string) {
	t.Helper()
	resp, err := http.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	f, err := os.Create(to)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.Copy(f, resp.Body); err != nil {
		t.Fatal(err)
	}
	if have, _, err := wheel.HashFile(to); err != nil || have != sha256 {
		t.Fatalf("%s, %s: sha256 %s, want %s (%v)", address, resp.Status, have, sha256, err)
	}
}

// installSite installs packages for that Python in /opt/site of a system, from wheels for glibc
// 2.17 alone.
func installSite(t *testing.T, s system, packages ...string) {
	t.Helper()
	py, uv := findUV(t)
	install := []string{"pip", "install", "--quiet", "--python", py, "--python-version", "3.10", "--only-binary", ":all:", "--python-platform", "x86_64-manylinux_2_17", "--target", filepath.Join(s.root, "opt", "site")}
	if err := uv.Run(t.Context(), append(install, packages...)...); err != nil {
		t.Fatal(err)
	}
}
