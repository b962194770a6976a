package pipeline

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/dockerfiles"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/testkit/python"
	"github.com/dsbuild/dsbuild/wheel"
)

// pages serves package indexes: the links and what else there is by their paths. It
// counts what is asked for.
func pages(t *testing.T, texts map[string]string) (url string, asked *int) {
	t.Helper()
	asked = new(int)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*asked++
		text, ok := texts[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, text)
	}))
	t.Cleanup(server.Close)
	return server.URL, asked
}

func sha(c string) string { return strings.Repeat(c, 64) }

// anchors are the links of a page: a file's name, its attributes, the digit that its
// digest is made of.
func anchors(files ...[3]string) string {
	var b strings.Builder
	for _, f := range files {
		name, attributes, digit := f[0], f[1], f[2]
		hash := ""
		if digit != "" {
			hash = "#sha256=" + sha(digit)
		}
		fmt.Fprintf(&b, "<a href=%q %s>%s</a>\n", "/files/"+strings.ReplaceAll(name, "+", "%2B")+hash, attributes, name)
	}
	return b.String()
}

// index is the package index of the tests, and torch's own below /whl.
func index(t *testing.T) (Network, *int) {
	t.Helper()
	url, asked := pages(t, map[string]string{
		"/simple/deepspeed/": anchors(
			[3]string{"deepspeed-0.19.8.tar.gz", "", "0"}, [3]string{"deepspeed-0.19.9.tar.gz", "", "1"}, [3]string{"deepspeed-0.19.10.tar.gz", "", "2"},
			[3]string{"deepspeed-0.19.11.tar.gz", `data-yanked="breaks ZeRO-3&#27;[2J"`, "3"}, [3]string{"deepspeed-0.20.0rc1.tar.gz", "", "4"}, [3]string{"deepspeed-0.19.12.tar.gz", "", ""},
			[3]string{"deepspeed-0.19.13-py3-none-any.whl", "", "5"}, [3]string{"deepspeed-0.3.0.tar.gz", "", "6"}),
		"/whl/cu130/torch/": anchors(
			[3]string{"torch-2.16.0+cu130-cp312-cp312-manylinux_2_28_x86_64.whl", "", "1"}, [3]string{"torch-2.16.1+cu130-cp312-cp312-manylinux_2_28_aarch64.whl", "", "2"},
			[3]string{"torch-2.16.1+cu130-cp312-cp312-manylinux_2_28_x86_64.whl", "", "3"}, [3]string{"torch-2.16.1+cu130-cp313-cp313-manylinux_2_28_x86_64.whl", "", "4"},
			[3]string{"torch-2.16.1+cu130-cp313-cp313t-manylinux_2_28_x86_64.whl", "", "5"}, [3]string{"torch-2.17.0+cu130-cp312-cp312-win_amd64.whl", "", "7"}),
		"/whl/cu128/torch/": anchors([3]string{"torch-2.9.1+cu128-cp312-cp312-manylinux_2_28_x86_64.whl", "", "a"}),
		"/whl/cu126/torch/": anchors([3]string{"torch-2.12.0+cu126-cp311-cp311-linux_x86_64.whl", "", "b"}, [3]string{"torch-2.12.1+cu126-cp311-cp311-manylinux_2_28_x86_64.whl", "", "c"}),
	})
	return site(t, NetworkOptions{IndexURL: url + "/simple/"}, map[string]string{"DSBUILD_TORCH_INDEX": url + "/whl/"}), asked
}

func newTables(t *testing.T) *compat.Tables {
	t.Helper()
	tables, err := compat.NewTables()
	if err != nil {
		t.Fatal(err)
	}
	return tables
}

// A release that the tables lack comes from the index, with its hash; where that has
// none, or does not answer, the tables decide.
func TestReleasesOfDeepSpeed(t *testing.T) {
	s, asked := index(t)
	down := site(t, NetworkOptions{IndexURL: "http://127.0.0.1:9/simple"}, nil)
	empty, _ := pages(t, nil)
	for name, c := range map[string]struct {
		network Network
		version string
		sha     string // "": refused
		notes   []string
		hint    string
	}{
		"newer":            {s, "0.19.9", "1", []string{"DeepSpeed 0.19.9 is not in dsbuild's tables, which treat it like 0.19.8", "cannot compare the ops of DeepSpeed 0.19.9 with those that are proven: deepspeed-0.19.9.tar.gz: "}, ""},
		"the newest":       {s, compat.Latest, "2", []string{"DeepSpeed 0.19.10 is not in dsbuild's tables", "cannot compare"}, ""},
		"withdrawn":        {s, "0.19.11", "3", []string{"DeepSpeed 0.19.11 was yanked from the package index; used because you requested it: breaks ZeRO-3", "treat it like", "cannot compare"}, ""},
		"a candidate":      {s, "0.20.0rc1", "4", []string{"treat it like", "cannot compare"}, ""},
		"without a hash":   {s, "0.19.12", "", []string{"DeepSpeed 0.19.12: the package index has no source distribution with a sha256"}, "to get DeepSpeed 0.19.10 "},
		"a wheel alone":    {s, "0.19.13", "", []string{"DeepSpeed 0.19.13: the package index has no source distribution with a sha256"}, "to get DeepSpeed 0.19.10 "},
		"none":             {s, "0.30.0", "", []string{"no source distribution"}, "to get DeepSpeed 0.19.10 "},
		"too old":          {s, "0.3.0", "", nil, "to get DeepSpeed 0.19.8 "},
		"no index":         {down, "0.19.9", "", []string{"using dsbuild's own tables, because the package index did not respond for deepspeed: http://127.0.0.1:9/"}, "to get DeepSpeed 0.19.8 "},
		"newest, no index": {down, compat.Latest, "9e491abd", []string{"using dsbuild's own tables"}, ""},
		"an empty index":   {site(t, NetworkOptions{IndexURL: empty}, nil), "0.19.9", "", nil, "to get DeepSpeed 0.19.8 "},
		"beside":           {site(t, NetworkOptions{IndexURL: empty, ExtraIndexURLs: []string{s.Releases().indexes[0]}}, nil), "0.19.9", "1", []string{"treat it like", "cannot compare"}, ""},
	} {
		found, err := c.network.Releases().DeepSpeed(t.Context(), newTables(t), c.version)
		if err != nil {
			t.Error(name, err)
			continue
		}
		compareNotes(t, name, found.Notes, c.notes)
		tc, err := found.Tables.Resolve(wheel.Request{DeepSpeed: found.Version, GPUs: []string{"A100"}})
		if (err == nil) != (c.sha != "") || !strings.HasPrefix(tc.Source, c.sha) || !strings.Contains(fault.Hint(err), c.hint) {
			t.Errorf("%s: %s %s, %v, %s", name, tc.DeepSpeed, tc.Source, err, fault.Hint(err))
		}
	}
	before := *asked
	for _, known := range []string{"", "0.19.8", "0.14.0"} {
		if found, err := s.Releases().DeepSpeed(t.Context(), newTables(t), known); err != nil || found.Version != known {
			t.Error(found, err)
		}
	}
	if *asked != before {
		t.Error("an index was asked for a release that the tables know")
	}
}

// The ops of a release that the tables lack are compared with those that were proven, if its source distribution has the sha256 of the index.
func TestReleasesAreCompared(t *testing.T) {
	sdist, err := os.ReadFile(sourceTar(t, tar.Header{Name: "deepspeed-0.19.9/csrc/adam/cpu_adam.cpp", PAXRecords: map[string]string{"comment": "int adam;\n"}}))
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(sdist)
	url, _ := pages(t, map[string]string{
		"/simple/deepspeed/":             fmt.Sprintf("<a href=\"/files/deepspeed-0.19.9.tar.gz#sha256=%x\">deepspeed-0.19.9.tar.gz</a>", sum),
		"/files/deepspeed-0.19.9.tar.gz": string(sdist),
	})
	found, err := site(t, NetworkOptions{IndexURL: url + "/simple/"}, nil).Releases().DeepSpeed(t.Context(), newTables(t), "0.19.9")
	if err != nil {
		t.Fatal(err)
	}
	compareNotes(t, "0.19.9", found.Notes, []string{"treat it like"})
	row := found.Tables.DeepSpeeds[0]
	if got := row.Changed[wheel.X86]["cpu_adam"]; row.Version != "0.19.9" || got != "op_builder: no op cpu_adam" {
		t.Errorf("%+v; want that there is no op cpu_adam", row)
	}
	// No op is as it was proven, so the wheel is for one torch.
	tc, err := found.Tables.Resolve(wheel.Request{DeepSpeed: "0.19.9"})
	if err != nil || tc.ABI != wheel.TorchMinor {
		t.Errorf("ABI %s, %v; want %s", tc.ABI, err, wheel.TorchMinor)
	}
}

func compareNotes(t *testing.T, name string, got, want []string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: notes %q, want %q", name, got, want)
		return
	}
	for i, note := range got {
		if !strings.Contains(note, want[i]) {
			t.Errorf("%s: note %q, want %q", name, note, want[i])
		}
	}
}

// A torch that the tables lack, also for another CUDA or an older driver, comes from torch's own indexes.
func TestReleasesOfTorch(t *testing.T) {
	s, asked := index(t)
	down := site(t, NetworkOptions{IndexURL: "http://127.0.0.1:9/simple"}, map[string]string{"DSBUILD_TORCH_INDEX": "http://127.0.0.1:9/whl"})
	for name, c := range map[string]struct {
		network Network
		r       wheel.Request
		want    string // torch, CUDA, toolkit, index and digest; "": refused
		notes   []string
		hint    string
	}{
		"newer":              {s, wheel.Request{Torch: "2.16.1"}, "2.16.1 13.0 13.0.3 cu130 4", nil, ""},
		"its Python":         {s, wheel.Request{Torch: "2.16.1", Python: "3.12"}, "2.16.1 13.0 13.0.3 cu130 3", nil, ""},
		"a minor":            {s, wheel.Request{Torch: "2.16"}, "2.16.1 13.0 13.0.3 cu130 4", nil, ""},
		"for Windows":        {s, wheel.Request{Torch: "2.17.0"}, "", []string{"torch 2.17.0 is neither in dsbuild's tables nor on PyTorch's indexes"}, "to get torch 2.15.0 "},
		"no index":           {down, wheel.Request{Torch: "2.16.1"}, "", []string{"did not respond"}, "to get torch 2.15.0 "},
		"another CUDA":       {s, wheel.Request{Torch: "2.12", CUDA: "12.6"}, "2.12.1 12.6 12.4 cu126 c", nil, ""},
		"an older driver":    {s, wheel.Request{Torch: "2.12", Driver: "550.54"}, "2.12.1 12.6 12.4 cu126 c", nil, ""},
		"the very one":       {s, wheel.Request{Torch: "2.12.0", CUDA: "12"}, "2.12.0 12.6 12.4 cu126 b", nil, ""},
		"the driver runs it": {s, wheel.Request{Torch: "2.12", Driver: "580.65.06"}, "2.12.1 13.0 13.0.2  ", nil, ""},
		"a CUDA of none":     {s, wheel.Request{Torch: "2.12", CUDA: "12.4"}, "", []string{"torch 2.12 for CUDA 12.4 is neither in dsbuild's tables nor on PyTorch's indexes"}, "to get torch 2.6.0 "},
		"a driver of none":   {s, wheel.Request{Torch: "2.13", Driver: "550"}, "", []string{"torch 2.13 for driver 550 is neither"}, "to get torch 2.10.0 "},
		"no torch index":     {down, wheel.Request{Torch: "2.12", Driver: "550"}, "", []string{"torch 2.12 for driver 550 is not in dsbuild's tables, and PyTorch's index did not respond (set a mirror with DSBUILD_TORCH_INDEX): http://127.0.0.1:9/"}, "to get torch 2.10.0 "},
	} {
		found, err := c.network.Releases().Torch(t.Context(), newTables(t), c.r)
		if err != nil {
			t.Error(name, err)
			continue
		}
		compareNotes(t, name, found.Notes, c.notes)
		c.r.GPUs = []string{"A100"}
		tc, err := found.Tables.Resolve(c.r)
		got := ""
		if err == nil {
			got = strings.Join([]string{tc.Torch, tc.CUDA, tc.Toolkit, tc.Index, tc.TorchHash[:min(len(tc.TorchHash), 1)]}, " ")
		}
		if got != c.want || !strings.Contains(fault.Hint(err), c.hint) {
			t.Errorf("%s: %q, %v, %s", name, got, err, fault.Hint(err))
		}
	}
	before := *asked
	for _, r := range []wheel.Request{{}, {Torch: "2.15"}, {Torch: "2.10.0", CUDA: "12.8"}, {Torch: "1.13"}, {Torch: "2.10", Driver: "550"}, {Torch: "2.15.0+cu130"}, {Torch: "rubbish"}} {
		if found, err := s.Releases().Torch(t.Context(), newTables(t), r); err != nil || len(found.Notes) > 0 {
			t.Error(found, err)
		}
	}
	if *asked != before {
		t.Error("an index was asked for a torch that the tables know")
	}
}

// What was found is part of the plan: another digest is another plan.
func TestFoundReleasesArePinned(t *testing.T) {
	s, _ := index(t)
	r := s.Releases()
	found, err := r.Torch(t.Context(), newTables(t), wheel.Request{Torch: "2.12", Driver: "550"})
	if err != nil {
		t.Fatal(err)
	}
	tc, err := found.Tables.Resolve(wheel.Request{Torch: "2.12", Driver: "550", GPUs: []string{"A100"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, locked := LockedPackages(tc); locked {
		t.Error("the lock has the packages of a torch that the tables lack")
	}
	packages := dockerfiles.Packages{Runtime: []dockerfiles.Package{{Name: "torch", Version: "2.12.1+cu126", SHA256: sha("c")}}}
	p, err := NewPlan([]Part{{tc, packages}}, Release(tc.DeepSpeed, tc.Source), Base{Ref: "debian:bookworm-slim"}, false)
	if err != nil {
		t.Fatal(err)
	}
	if want := "torch==2.12.1+cu126 --hash=sha256:" + sha("c") + "\n"; p.Context["packages.txt"] != want {
		t.Errorf("%s, want %s", p.Context["packages.txt"], want)
	}
	for name, want := range map[string]string{"TORCH": "2.12.1", "TORCH_INDEX": "cu126"} {
		if p.Args[name] != want {
			t.Errorf("%s=%s, want %s", name, p.Args[name], want)
		}
	}
	if !slices.Contains(tc.Notes, "torch 2.12.1 for CUDA 12.6 comes from PyTorch's index, cu126") {
		t.Errorf("notes %q", tc.Notes)
	}
}

// An index is reached as pip reaches it: with the site's certificates, by its proxy.
func TestReleasesByTheSite(t *testing.T) {
	page := anchors([3]string{"deepspeed-0.19.9.tar.gz", "", "1"})
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, page)
	})
	secure, proxy := httptest.NewTLSServer(handler), httptest.NewServer(handler)
	t.Cleanup(secure.Close)
	t.Cleanup(proxy.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		network Network
		notes   []string
	}{
		"its certificate":       {site(t, NetworkOptions{IndexURL: secure.URL, CA: ca}, nil), []string{"is not in dsbuild's tables, which", "its sha256 differs from the index"}},
		"no certificate":        {site(t, NetworkOptions{IndexURL: secure.URL}, nil), []string{"certificate signed by unknown authority"}},
		"a proxy":               {site(t, NetworkOptions{IndexURL: "http://index.example.org/simple"}, map[string]string{"http_proxy": proxy.URL}), []string{"is not in dsbuild's tables, which", "its sha256 differs from the index"}},
		"a proxy for all":       {site(t, NetworkOptions{IndexURL: "http://index.example.org/simple"}, map[string]string{"ALL_PROXY": proxy.URL}), []string{"is not in dsbuild's tables, which", "its sha256 differs from the index"}},
		"a proxy, but not here": {site(t, NetworkOptions{IndexURL: "http://127.0.0.1:9/simple"}, map[string]string{"http_proxy": proxy.URL, "no_proxy": "127.0.0.1"}), []string{"connection refused"}},
	} {
		found, err := c.network.Releases().DeepSpeed(t.Context(), newTables(t), "0.19.9")
		if err != nil {
			t.Fatal(err)
		}
		compareNotes(t, name, found.Notes, c.notes)
	}
}

// pip takes the bytes of the plan and no others from whatever index, and setup.py
// sees no Triton.
func TestSourceHasTheHashOfThePlan(t *testing.T) {
	var entries []tar.Header
	for name, text := range map[string]string{
		"deepspeed-0.19.9/PKG-INFO":       "Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.19.9\n",
		"deepspeed-0.19.9/pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = \"backend\"\nbackend-path = [\".\"]\n",
		"deepspeed-0.19.9/backend.py": `import os
def prepare_metadata_for_build_wheel(folder, settings=None):
    try:
        import triton
        raise SystemExit("there is Triton")
    except ImportError:
        pass
    os.mkdir(os.path.join(folder, "deepspeed-0.19.9.dist-info"))
    for name, text in {"METADATA": "Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.19.9\n", "WHEEL": "Wheel-Version: 1.0\n"}.items():
        with open(os.path.join(folder, "deepspeed-0.19.9.dist-info", name), "w") as f:
            f.write(text)
    return "deepspeed-0.19.9.dist-info"
`,
	} {
		entries = append(entries, tar.Header{Name: name, Mode: 0o644, PAXRecords: map[string]string{"comment": text}})
	}
	sdist, err := os.ReadFile(sourceTar(t, entries...))
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(sdist)
	hash := hex.EncodeToString(sum[:])
	url, _ := pages(t, map[string]string{
		"/simple/deepspeed/":             "<a href=/files/deepspeed-0.19.9.tar.gz>deepspeed-0.19.9.tar.gz</a>",
		"/files/deepspeed-0.19.9.tar.gz": string(sdist),
	})
	s := site(t, NetworkOptions{IndexURL: url + "/simple"}, nil)
	env := t.TempDir() // the script calls "python", which many systems have in environments only
	if out, err := exec.Command("python3", "-m", "venv", "--without-pip", env).CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	pip, err := python.Pip(t.Context(), "python3")
	if err != nil {
		t.Fatal(err)
	}
	sites, _ := filepath.Glob(filepath.Join(env, "lib", "python3*", "site-packages"))
	if len(sites) != 1 {
		t.Fatal("no site-packages in a new environment")
	}
	if err := os.Symlink(filepath.Join(pip, "pip"), filepath.Join(sites[0], "pip")); err != nil {
		t.Fatal(err)
	}
	for want, said := range map[string]string{hash: "deepspeed-0.19.9.tar.gz", sha("1"): "DO NOT MATCH THE HASHES"} {
		dir := t.TempDir()
		file := filepath.Join(dir, "site")
		if err := errors.Join(os.WriteFile(file, []byte(s.Script()), 0o600), os.Mkdir(filepath.Join(dir, "out"), 0o700)); err != nil {
			t.Fatal(err)
		}
		tools := filepath.Join(dir, "tools")
		if out, err := exec.Command("cp", "-r", "scripts", tools).CombinedOutput(); err != nil {
			t.Fatal(err, string(out))
		}
		if out, err := exec.Command("cp", "../dockerfiles/site.sh", tools).CombinedOutput(); err != nil {
			t.Fatal(err, string(out))
		}
		cmd := exec.Command("sh", filepath.Join(tools, "source.sh"))
		cmd.Env = append(os.Environ(), "PATH="+filepath.Join(env, "bin")+":"+os.Getenv("PATH"), "DSBUILD_SITE="+file, "DSBUILD_TOOLS="+tools, "DSBUILD_WORK="+dir, "DSBUILD_OUT="+filepath.Join(dir, "out"), "DSBUILD_DEEPSPEED=0.19.9", "DSBUILD_SHA256="+want, "PIP_NO_CACHE_DIR=1")
		out, err := cmd.CombinedOutput()
		if (err == nil) != (want == hash) || !strings.Contains(string(out), said) {
			t.Errorf("%v\n%s", err, out)
		}
	}
}
