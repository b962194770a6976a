//go:build full

package main

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/fulltools"
	"github.com/dsbuild/dsbuild/pipeline/engine"
	"github.com/dsbuild/dsbuild/wheel"
)

// shop is where wheels are built on this machine: caches that are empty but for the
// downloads, which are the user's own, as is the engine.
type shop struct {
	dir     string
	program string
	builder string
}

func newShop(t *testing.T) shop {
	t.Helper()
	hostPackages(t)
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	// On the file system of the downloads, for links.
	dir, err := os.MkdirTemp(fulltools.Dir(t), "speed-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := shop{dir, makeProgram(t), "host"}
	host, downloads := filepath.Join(dir, "dsbuild-cache", "dsbuild", "host"), filepath.Join(cache, "dsbuild", "uv")
	for _, d := range []string{host, downloads} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	state := filepath.Join(dir, "state", "dsbuild")
	if err := os.MkdirAll(state, 0o700); err != nil {
		t.Fatal(err)
	}
	for at, link := range map[string]string{downloads: filepath.Join(host, "uv-cache"), engine.Home(): filepath.Join(state, "engine")} {
		if err := os.Symlink(at, link); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// wheel builds one, and returns the log of the build.
func (s shop) wheel(t *testing.T, args ...string) (a wheel.Artifact, log string) {
	t.Helper()
	out := t.TempDir()
	logs := filepath.Join(s.dir, "state", "dsbuild", "logs")
	if err := os.RemoveAll(logs); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(s.program, append([]string{"wheel", "--builder", s.builder, "--json", "-o", out}, args...)...)
	cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+filepath.Join(s.dir, "dsbuild-cache"), "XDG_STATE_HOME="+filepath.Join(s.dir, "state"))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, io.MultiWriter(&stderr, testLog{t})
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, &stderr)
	}
	var doc wheelResult
	if err := json.Unmarshal(stdout.Bytes(), &doc); err != nil || len(doc.Wheels) != 1 {
		t.Fatalf("%v: %s", err, &stdout)
	}
	files, _ := filepath.Glob(filepath.Join(logs, "*.log")) // a bad pattern finds none
	if len(files) == 1 {
		text, err := os.ReadFile(files[0])
		if err != nil {
			t.Fatal(err)
		}
		log = string(text)
	}
	return doc.Wheels[0], log
}

// one is the only file of a pattern in the shop's host cache.
func (s shop) one(t *testing.T, pattern ...string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(append([]string{s.dir, "dsbuild-cache", "dsbuild", "host"}, pattern...)...))
	if err != nil || len(found) != 1 {
		t.Fatalf("%v: %q, %v", pattern, found, err)
	}
	return found[0]
}

// symbols are those that the extensions below a folder show to others, by their kind, as
// nm names it.
func symbols(t *testing.T, dir, kind string) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for name := range tree(t, dir) {
		if !strings.HasSuffix(name, ".so") {
			continue
		}
		for line := range strings.Lines(command(t, dir, "nm", "-D", "--defined-only", name)) {
			if fields := strings.Fields(line); len(fields) == 3 && strings.Contains(kind, fields[1]) {
				all[filepath.Base(name)] = append(all[filepath.Base(name)], fields[2])
			}
		}
	}
	return all
}

// libraryCopy is a weak symbol of an inline function of the C++ library: g++ keeps a copy
// or puts it where it is called, as the size of the whole source suggests.
var libraryCopy = regexp.MustCompile(`^_ZN?K?(St|Ss|Sa|Sb|9__gnu_cxx)`)

// steps prints what CPU Adam makes of numbers, in full.
const steps = `
import hashlib, torch
from deepspeed.ops.adam import DeepSpeedCPUAdam
h = hashlib.sha256()
for kind in (torch.float32, torch.bfloat16, torch.float16):
    for size in (1, 7, 8, 1000, 70001):
        torch.manual_seed(size)
        p = torch.nn.Parameter(torch.randn(size).to(kind))
        o = DeepSpeedCPUAdam([p], lr=1e-2, weight_decay=1e-2, fp32_optimizer_states=True)
        for _ in range(4):
            p.grad = torch.randn(size).to(kind)
            o.step()
        h.update(p.detach().float().numpy().tobytes())
print("numbers", h.hexdigest())
`

// dsbuild's extensions for one torch are those of DeepSpeed's own recipe: they have the same symbols, and
// CPU Adam computes the same numbers to the last bit, also over the stable ABI.
func TestFullSpeedSame(t *testing.T) {
	s := newShop(t)
	a, _ := s.wheel(t, "--ops", "cpu_adam,utils", "--cpu", "native", "--no-cache", "--abi", "torch")
	universal, _ := s.wheel(t, "--ops", "cpu_adam,utils", "--cpu", "native", "--no-cache")
	toolchain := s.one(t, "environments", "*", "toolchain")
	bin := filepath.Join(toolchain, "bin")
	tree := filepath.Join(t.TempDir(), "deepspeed")
	unpackRelease(t, filepath.Join(bin, "python"), tree)
	cmd := exec.Command(filepath.Join(bin, "python"), "setup.py", "build_ext", "-j2", "bdist_wheel")
	cmd.Dir = tree
	cmd.Env = append(os.Environ(), "CUDA_HOME="+filepath.Join(filepath.Dir(toolchain), "cuda"), "DS_ACCELERATOR=cuda", "TORCH_CUDA_ARCH_LIST=8.0", "DS_BUILD_CPU_ADAM=1", "DS_BUILD_UTILS=1", "PATH="+bin+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("the stock recipe: %v\n%s", err, out)
	}
	wheels, _ := filepath.Glob(filepath.Join(tree, "dist", "*.whl")) // a bad pattern finds none
	if len(wheels) != 1 {
		t.Fatalf("the stock recipe made %q", wheels)
	}
	ours, stock := unzipped(t, a.Path), unzipped(t, wheels[0])
	strong, want := symbols(t, ours, "TDBR"), symbols(t, stock, "TDBR")
	if len(want) != 2 || !maps.EqualFunc(strong, want, slices.Equal) {
		t.Errorf("symbols\n%v\nof the stock recipe\n%v", strong, want)
	}
	var more []string
	all := symbols(t, stock, "TDBRWVu")
	for name, found := range symbols(t, ours, "WVu") {
		for _, symbol := range found {
			if !slices.Contains(all[name], symbol) && !libraryCopy.MatchString(symbol) {
				more = append(more, symbol)
			}
		}
	}
	if len(more) > 0 {
		t.Errorf("symbols that the stock recipe's have not: %q", more)
	}
	expected := s.numbers(t, stock)
	for abi, dir := range map[string]string{"torch": ours, "stable": unzipped(t, universal.Path)} {
		if got := s.numbers(t, dir); got != expected {
			t.Errorf("CPU Adam over the ABI %s: %s, of the stock recipe %s", abi, got, expected)
		}
	}
	info, err := os.Stat(wheels[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("result: the symbols of the stock recipe's extensions, CPU Adam's numbers to the last bit over both ABIs, %d of %d bytes (%.3f)",
		a.Size, info.Size(), float64(a.Size)/float64(info.Size()))
}

// numbers are what CPU Adam of an unpacked wheel computes.
func (s shop) numbers(t *testing.T, dir string) string {
	t.Helper()
	cmd := exec.Command(filepath.Join(s.one(t, "environments", "*", "runtime"), "bin", "python"), "-c", steps)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+dir, "DS_ACCELERATOR=cuda")
	cmd.Dir = t.TempDir()
	out, err := cmd.CombinedOutput()
	_, numbers, found := strings.Cut(string(out), "numbers ")
	if err != nil || !found {
		t.Fatalf("%v\n%s", err, out)
	}
	return strings.TrimSpace(numbers)
}

// The next commit compiles what it has changed. Another arch compiles the device code alone, and
// the wheel has the bytes of one from scratch.
func TestFullSpeedReuse(t *testing.T) {
	s := newShop(t)
	one := []string{"--ops", "cpu_adam,utils,fused_adam", "--cuda", "13", "--cpu", "v3"} // a plan of one part
	s.wheel(t, append(one, "--arch", "8.0")...)
	tree := filepath.Join(t.TempDir(), "deepspeed")
	unpackRelease(t, filepath.Join(s.one(t, "environments", "*", "toolchain"), "bin", "python"), tree)
	s.commits(t, tree, one)
	added, log := s.wheel(t, append(one, "--arch", "8.0;8.6")...)
	if !strings.Contains(log, "multi_tensor_adam.cu") || !strings.Contains(log, "objects: 5 from the cache, 1 compiled") {
		t.Errorf("with another arch:\n%s", jobLines(log))
	}
	scratch, log := s.wheel(t, append(one, "--arch", "8.0;8.6", "--no-cache")...)
	if !strings.Contains(log, "objects: 0 from the cache, 6 compiled") || scratch.SHA256 != added.SHA256 {
		t.Errorf("from scratch %s, with an arch added %s\n%s", scratch.SHA256, added.SHA256, jobLines(log))
	}
	s.builder = "dagger"
	s.wheel(t, append(one, "--arch", "8.0", "--deepspeed", tree)...)
	s.commits(t, tree, one)
	s.builder = "host"
	again, _ := s.wheel(t, append(one, "--arch", "8.0;8.6")...)
	if !again.Cached || again.SHA256 != added.SHA256 {
		t.Errorf("again: cached %v, %s", again.Cached, again.SHA256)
	}
	t.Logf("result: a Python file changed: 6 of 6 objects taken, a source changed: 5 of 6, on this machine and in an engine; an arch added: 5 of 6, and the bytes of a wheel from scratch; the same again from the store in %.1f s", again.Seconds)
}

// commits changes files of a tree, one at a time: only what is made of them is made anew.
func (s shop) commits(t *testing.T, tree string, one []string) {
	t.Helper()
	for file, want := range map[string]string{
		"deepspeed/constants.py":      "objects: 6 from the cache, 0 compiled",
		"csrc/adam/cpu_adam_impl.cpp": "objects: 5 from the cache, 1 compiled",
	} {
		text, err := os.ReadFile(filepath.Join(tree, file))
		if err != nil {
			t.Fatal(err)
		}
		comment := map[string]string{".py": "# ", ".cpp": "// "}[filepath.Ext(file)] + filepath.Base(s.dir) + "\n" // as no build before
		if err := os.WriteFile(filepath.Join(tree, file), append(text, comment...), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, log := s.wheel(t, append(one, "--arch", "8.0", "--deepspeed", tree)...); !strings.Contains(log, want) {
			t.Errorf("%s, with another %s: no %q in\n%s", s.builder, file, want, jobLines(log))
		}
		if err := os.WriteFile(filepath.Join(tree, file), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// jobLines are what a log says of jobs and objects.
func jobLines(log string) string {
	var b strings.Builder
	for line := range strings.Lines(log) {
		if strings.HasPrefix(line, "job ") || strings.HasPrefix(line, "objects: ") {
			b.WriteString(line)
		}
	}
	return b.String()
}
