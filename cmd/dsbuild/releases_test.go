package main

import (
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/wheelindex"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/pipeline/planner"
	"github.com/dsbuild/dsbuild/wheel"
)

// packageIndex serves a package index with releases that no table knows, and torch's own for CUDA
// 13.2 and 12.6.
func packageIndex(t *testing.T) string {
	t.Helper()
	file := func(name, digit string) string {
		return fmt.Sprintf(`{"filename": %q, "url": "/files/%s", "hashes": {"sha256": %q}, "core-metadata": true}`, name, strings.ReplaceAll(name, "+", "%2B"), strings.Repeat(digit, 64))
	}
	page := func(files ...string) string {
		return `{"meta": {"api-version": "1.1"}, "files": [` + strings.Join(files, ",") + `]}`
	}
	const (
		torch    = "torch-2.16.1+cu132-cp312-cp312-manylinux_2_28_x86_64.whl"
		torch126 = "torch-2.12.1+cu126-cp311-cp311-manylinux_2_28_x86_64.whl"
	)
	texts := map[string]string{
		"/simple/deepspeed/":            page(file("deepspeed-0.19.9.tar.gz", "1"), file("deepspeed-0.19.8.tar.gz", "2")),
		"/whl/cu132/torch/":             page(file(torch, "3")),
		"/files/" + torch + ".metadata": "Metadata-Version: 2.1\nName: torch\nVersion: 2.16.1+cu132\nRequires-Dist: cuda-toolkit==13.2.2\n",
		"/whl/cu126/torch/":             page(file(torch126, "4")),
		"/files/torch-2.12.1+cu126-cp311-cp311-manylinux_2_28_x86_64.whl.metadata": "Metadata-Version: 2.1\nName: torch\nVersion: 2.12.1+cu126\nRequires-Dist: sympy\n",
	}
	others := wheelindex.New(t)
	others.AddRequirements(t)
	others.PublishUV(t, wheel.X86)
	others.Add(t, wheelindex.Wheel{Name: "sympy", Version: "1.14.0"})
	others.Add(t, wheelindex.Wheel{Name: "cuda-toolkit", Version: "13.2.2"})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := texts[r.URL.Path]
		if !ok {
			others.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/vnd.pypi.simple.v1+json")
		_, _ = io.WriteString(w, text)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// Releases that the tables do not know are planned by what the index says, with its
// hashes; those that it has not are refused, with the nearest.
func TestReleasesOfAnIndex(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	url, home := packageIndex(t), t.TempDir()
	for _, c := range []struct {
		args string
		want []string // in the plan
	}{
		{"--deepspeed 0.19.9", []string{"DeepSpeed 0.19.9 for torch 2.15.0", "DSBUILD_SHA256=" + strings.Repeat("1", 64)}},
		{"--deepspeed latest", []string{"DeepSpeed 0.19.9 for torch 2.15.0"}},
		{"--abi torch --torch 2.16 --python 3.12", []string{"for torch 2.16.1, CUDA 13.2, Python 3.12", "TOOLKIT=13.2.2", "TORCH_INDEX=cu132", strings.Repeat("3", 64) + "  torch==2.16.1+cu132"}},
		{"--abi torch --torch 2.12 --min-driver 550.54.15", []string{"for torch 2.12.1, CUDA 12.6, Python 3.11", "TORCH_INDEX=cu126", "toolchain  nvcc12", strings.Repeat("4", 64) + "  torch==2.12.1+cu126", "  sympy==1.14.0"}},
	} {
		out, said := programWith(t, home, url, 0, append([]string{"wheel", "--gpu", "A100", "--dry-run", "--verbose"}, strings.Fields(c.args)...)...)
		for _, want := range c.want {
			if !strings.Contains(out, want) {
				t.Errorf("%s: no %q in\n%s\n%s", c.args, want, out, said)
			}
		}
	}
}

// What an index has not is refused, with the nearest that there is; where it does not
// answer, that is said, and the tables decide. Who logs in there is not said.
func TestReleasesOfNoIndex(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	url, home := packageIndex(t), t.TempDir()
	down := "http://geheim@127.0.0.1:9"
	for _, c := range []struct{ url, args, note, hint string }{
		{url, "--deepspeed 0.19.20", "DeepSpeed 0.19.20: the package index has no source distribution with a sha256", "omit --deepspeed 0.19.20 to get DeepSpeed 0.19.9 with torch "},
		{url, "--torch 2.17 --python 3.12", "torch 2.17 is neither in dsbuild's tables nor on PyTorch's indexes", "omit --torch 2.17 to get torch 2.15.0 for CUDA "},
		{url, "--torch 2.13 --min-driver 550", "torch 2.13 for driver 550 is neither in dsbuild's tables nor on PyTorch's indexes", "omit --torch 2.13 to get torch 2.10.0 for CUDA "},
		{down, "--deepspeed 0.19.9", "using dsbuild's own tables, because the package index did not respond for deepspeed", "omit --deepspeed 0.19.9 to get DeepSpeed 0.19.8 with torch "},
		{down, "--torch 2.12 --cuda 12.6", "PyTorch's index did not respond (set a mirror with DSBUILD_TORCH_INDEX)", "omit --torch 2.12 to get torch 2.7.1 for CUDA 12.6"},
	} {
		_, said := programWith(t, home, c.url, 2, append([]string{"wheel", "--gpu", "A100", "--dry-run"}, strings.Fields(c.args)...)...)
		if !strings.Contains(said, c.note) || !strings.Contains(said, "hint: "+c.hint) || strings.Contains(said, "geheim") {
			t.Errorf("%s:\n%s", c.args, said)
		}
	}
}

// A release comes from the index of --index-url, over TLS with the certificates of --ca, or from that of --extra-index-url.
func TestIndexesByFlags(t *testing.T) {
	t.Parallel()
	index, err := url.Parse(packageIndex(t))
	if err != nil {
		t.Fatal(err)
	}
	secure, empty := httptest.NewTLSServer(httputil.NewSingleHostReverseProxy(index)), httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(secure.Close)
	t.Cleanup(empty.Close)
	home := t.TempDir()
	ca := filepath.Join(home, "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"wheel", "--index-url", secure.URL + "/simple", "--ca", ca},
		{"wheel", "--index-url", empty.URL, "--extra-index-url", secure.URL + "/simple", "--ca", ca},
	} {
		if out, said := program(t, home, 0, append(args, "--gpu", "A100", "--deepspeed", "0.19.9", "--dry-run")...); !strings.HasPrefix(out, "DeepSpeed 0.19.9 ") {
			t.Errorf("%q plans\n%s%s", args, out, said)
		}
	}
}

// indexPlanner plans with the package index of the tests.
func indexPlanner(t *testing.T, url, source string) *planner.Planner {
	t.Helper()
	network, err := pipeline.NewNetwork(pipeline.NetworkOptions{IndexURL: url + "/simple"}, func(name string) string {
		return map[string]string{"DSBUILD_TORCH_INDEX": url + "/whl"}[name]
	})
	if err != nil {
		t.Fatal(err)
	}
	report := ui.New(testLines{t}, ui.Options{})
	backend := planner.NewBackend(planner.BackendOptions{Kind: planner.Dagger, Network: network, Environ: os.Environ(), Report: report})
	p, err := planner.Open(t.Context(), planner.Options{Report: report}, backend, source)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

type testLines struct{ t *testing.T }

func (l testLines) Write(b []byte) (int, error) {
	l.t.Logf("%s", b)
	return len(b), nil
}

// The release of a night is the newest of the index, also for a dsbuild that is older.
func TestNightTakesTheNewestRelease(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{packageIndex(t): "0.19.9", "http://127.0.0.1:9": "0.19.8"} {
		plan, err := indexPlanner(t, url, compat.Latest).Sketch(t.Context(), wheel.Request{Archs: []wheel.Arch{{Major: 8}}})
		if err != nil || plan.Toolchain().DeepSpeed != want {
			t.Errorf("%s: %+v, %v", url, plan, err)
		}
	}
}

// RHEL 8, Ubuntu 22.04, a Python 3.13 and an older driver with torch for CUDA 12.6 get one wheel, with code for both CUDAs; with --abi torch
// they get three, each for the torch and the Python of its nodes. No wheel is divided by glibc.
func TestShipToFourKindsOfNodes(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	abi := true
	facts := func(python, torch, cuda, glibc, glibcxx, driver, gpu, arch string) node.Facts {
		return node.Facts{
			Platform: "linux_x86_64", Python: python, Tag: "cp3" + strings.Split(python, ".")[1], Executable: "/opt/train/bin/python",
			Torch: torch, TorchCUDA: cuda, CXX11ABI: &abi, Glibc: glibc, Libstdcxx: glibcxx, CPU: "x86-64-v4", Driver: driver, GPUs: []node.GPU{{Name: gpu, Arch: arch}},
		}
	}
	members := []compat.Member{
		{Name: "rhel8", Facts: facts("3.11.9", "2.15.0", "13.2", "2.28", "3.4.25", "580.65.06", "NVIDIA A100-SXM4-80GB", "8.0")},
		{Name: "jammy", Facts: facts("3.11.0", "2.15.0", "13.2", "2.35", "3.4.30", "590.44.01", "NVIDIA H100 80GB HBM3", "9.0")},
		{Name: "python313", Facts: facts("3.13.5", "2.15.0", "13.2", "2.39", "3.4.33", "580.65.06", "NVIDIA H100 80GB HBM3", "9.0")},
		{Name: "driver550", Facts: facts("3.11.9", "2.12.1", "12.6", "2.28", "3.4.25", "550.54.15", "NVIDIA A100-SXM4-80GB", "8.0")},
	}
	everyGPU := []string{"rhel8 jammy python313 driver550: 2.15.0 13.2 3.11 [7.5 8.0 8.6 8.9 9.0 10.0 10.3 12.0+PTX] cuda13  [12 13]"}
	for url, want := range map[string][]string{
		packageIndex(t):      {"rhel8 jammy: 2.15.0 13.2 3.11 [8.0 9.0] cuda13  []", "python313: 2.15.0 13.2 3.13 [9.0] cuda13  []", "driver550: 2.12.1 12.6 3.11 [8.0] nvcc12 cu126 []"},
		"http://127.0.0.1:9": {"rhel8 jammy: 2.15.0 13.2 3.11 [8.0 9.0] cuda13  []", "python313: 2.15.0 13.2 3.13 [9.0] cuda13  []", "driver550: none"},
	} {
		for abi, want := range map[wheel.ABI][]string{"": everyGPU, wheel.TorchMinor: want} {
			p := indexPlanner(t, url, "")
			grouping := p.Group(t.Context(), members, wheel.Request{ABI: abi})
			var got []string
			for _, group := range grouping.Groups {
				plan, err := p.Sketch(t.Context(), group.Request)
				if err != nil {
					t.Fatal(err)
				}
				var names []string
				for _, i := range group.Nodes {
					names = append(names, members[i].Name)
				}
				tc := plan.Toolchain()
				var archs []string
				for _, a := range tc.Archs {
					archs = append(archs, a.String())
				}
				got = append(got, fmt.Sprintf("%s: %s %s %s %v %s %s %v", strings.Join(names, " "), tc.Torch, tc.CUDA, tc.Python, archs, tc.CUDASource, tc.Index, plan.Manifest.CUDAs()))
			}
			for _, left := range grouping.Unserved {
				got = append(got, members[left.Node].Name+": none")
				t.Log(left.Reasons, left.Hint)
			}
			if !slices.Equal(got, want) {
				t.Errorf("--abi %q, %s:\n%s\nwant\n%s", abi, url, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
	}
}
