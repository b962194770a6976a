package pipeline

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/wheel"
)

func TestOpenCompanion(t *testing.T) {
	repo := newCheckout(t, map[string]string{"pyproject.toml": "[project]\n", "src/build.py": "", "build/old.py": "", "tiny/data.so": "kept"})
	runGit(t, repo, "tag", "v4.57.0")
	for arg, want := range map[string]Companion{
		"transformers==4.57.0":        {Name: "transformers", Version: "4.57.0"},
		"Flash_Attn@2.8.3":            {Name: "flash-attn", Version: "2.8.3"},
		"tiny@git+file://" + repo:     {Name: "tiny", Source: &Source{Kind: SourceGit}},
		"Tiny@" + repo:                {Name: "tiny", Source: &Source{Kind: SourcePath}},
		"tiny@" + sdistOf(t, "a = 1"): {Name: "tiny", Source: &Source{Kind: SourceSdist}},
	} {
		c, err := OpenCompanion(t.Context(), arg, t.TempDir(), os.Environ())
		if err != nil || c.Name != want.Name || c.Version != want.Version || (c.Source == nil) != (want.Source == nil) {
			t.Errorf("%s: %+v, %v", arg, c, err)
			continue
		}
		if want.Source != nil && (c.Source.Kind != want.Source.Kind || filepath.Base(c.Source.File) != "tiny.tar.gz") {
			t.Errorf("%s: %+v", arg, c.Source)
		}
	}
	c, err := OpenCompanion(t.Context(), "tiny@git+file://"+repo+"@v4.57.0", t.TempDir(), os.Environ())
	if err != nil || c.assumedVersion() != "4.57.0" {
		t.Errorf("%v, %+v", err, c)
	}
	if got := packed(t, *c.Source); got["tiny/data.so"] != "kept" || got["build/old.py"] != "" {
		t.Errorf("%q", got)
	}
	if c, err = OpenCompanion(t.Context(), "tiny@git+file://"+repo+"@main", t.TempDir(), os.Environ()); err != nil || c.assumedVersion() != "0.1.dev0+g"+c.Source.Commit[:7] {
		t.Errorf("%v, %s", err, c.assumedVersion())
	}
	for arg, want := range map[string]string{
		"transformers": "missing version", "": "missing version", "-e@x": "missing version", "a b==1": "missing version",
		"a==one": "is not a version", "a==1;os_name=='x'": "is not a version", "torch==2.9": "torch and its packages cannot", "nvidia-nccl-cu12==2": "torch and its packages cannot",
		"Triton@git+https://git.example/x": "torch and its packages cannot", "deepspeed@0.19": "DeepSpeed cannot be an extra wheel",
		"a@/nowhere": "no such file", "a@" + t.TempDir(): "no pyproject.toml or setup.py", "a@git+ftp://u:s3cret@git.example/x": "unsupported scheme",
	} {
		_, err := OpenCompanion(t.Context(), arg, t.TempDir(), os.Environ())
		if fault.ExitCode(err) != fault.Usage || !strings.Contains(err.Error(), want) || fault.Hint(err) == "" || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v (hint %q), want %s", arg, err, fault.Hint(err), want)
		}
	}
}

// sdistOf is a source distribution of a project with one file.
func sdistOf(t *testing.T, setup string) string {
	t.Helper()
	return sdist(t, map[string]string{"setup.py": setup})
}

// someCompanions are one of the index and one of sources.
func someCompanions(t *testing.T) []Companion {
	t.Helper()
	c, err := OpenCompanion(t.Context(), "tiny@"+sdistOf(t, "a = 1"), t.TempDir(), os.Environ())
	if err != nil {
		t.Fatal(err)
	}
	return []Companion{c, {Name: "aside", Version: "1.0"}}
}

func bundlePlan(t *testing.T, p *Plan, companions []Companion, dependencies bool) *BundlePlan {
	t.Helper()
	b, err := NewBundlePlan(p, companions, dependencies)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestBundlePlanGolden(t *testing.T) {
	p := plan(t, image(), nil, "8.0")
	was := p.Digest
	companions := someCompanions(t)
	b := bundlePlan(t, p, companions, true)
	var out bytes.Buffer
	if err := b.PrintSteps(&out); err != nil {
		t.Fatal(err)
	}
	out = *bytes.NewBufferString(strings.ReplaceAll(out.String(), p.Digest, "DIGEST")) // it changes with every script
	golden := filepath.Join("testdata", "bundle.golden")
	if *update {
		if err := os.WriteFile(golden, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil || string(want) != out.String() {
		t.Errorf("%v\n%s", err, out.String())
	}
	if p.Digest != was || p.Steps[0].Name != SourceStep {
		t.Error("the plan of the wheel was changed")
	}
	digests := []string{b.Digest, p.Digest}
	for name, other := range map[string]*BundlePlan{
		"only companions": bundlePlan(t, p, companions, false), "one companion less": bundlePlan(t, p, companions[:1], true),
		"none": bundlePlan(t, p, nil, true), "another wheel": bundlePlan(t, plan(t, image(), nil, "9.0"), companions, true),
	} {
		if slices.Contains(digests, other.Digest) {
			t.Errorf("%s: the same digest", name)
		}
		digests = append(digests, other.Digest)
	}
	companions[0], companions[1] = companions[1], companions[0]
	if again := bundlePlan(t, p, companions, true); again.Digest != b.Digest {
		t.Error("the order of companions changes the plan")
	}
	if _, err := NewBundlePlan(p, []Companion{companions[0], companions[0]}, true); err == nil || !strings.Contains(err.Error(), "specified twice") {
		t.Error(err)
	}
}

// inMemory is a builder whose steps put files of the test into their output.
type inMemory struct {
	t       *testing.T
	outputs map[string]map[string]string // by step
	given   map[string][]string          // what was imported
	ran     []string
	fail    string
}

func (m *inMemory) Name() string { return "inMemory" }

func (m *inMemory) Open(context.Context, *Plan, Work) (Workspace, error) {
	return m, nil
}

func (m *inMemory) Run(_ context.Context, steps ...Step) error {
	s := steps[0]
	m.ran = append(m.ran, s.Name)
	if s.Name == m.fail {
		return errors.New("step " + s.Name + ": exit code 1")
	}
	return nil
}

func (m *inMemory) Export(_ context.Context, step, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, version := range m.outputs[step] {
		info := name + "-" + version + ".dist-info/"
		wheeltest.Write(m.t, filepath.Join(dir, name+"-"+version+"-py3-none-any.whl"), map[string]string{
			info + "METADATA": "Metadata-Version: 2.1\nName: " + name + "\nVersion: " + version + "\n",
			info + "WHEEL":    "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		})
	}
	return nil
}

func (m *inMemory) Import(step, dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		m.given[step] = append(m.given[step], e.Name())
	}
	return err
}

func newMemory(t *testing.T) *inMemory {
	return &inMemory{t: t, given: map[string][]string{}, outputs: map[string]map[string]string{
		WithStep:   {"tiny": "1.0", "aside": "1.0"},
		BundleStep: {"tiny": "1.0", "aside": "1.0", "hjson": "3.1.0"},
	}}
}

func TestBundleIsMade(t *testing.T) {
	a := artifact(t, "", "a-1-py3-none-any.whl", "bytes")
	out := filepath.Dir(a.Path)
	b := bundlePlan(t, plan(t, image(), nil, "8.0"), someCompanions(t), true)
	m := newMemory(t)
	runner := Runner{
		Store: Store{Dir: filepath.Join(t.TempDir(), "wheels"), Keep: 2}, Dir: out, Logs: t.TempDir(), Report: ui.New(io.Discard, ui.Options{}),
		Builder: func(context.Context) (Builder, error) { return m, nil },
	}
	// Of another run: it goes as a whole.
	writeTree(t, filepath.Join(out, "wheelhouse"), map[string]string{"old-1-py3-none-any.whl": ""})
	made, err := runner.Bundle(t.Context(), b, a)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(m.ran, []string{WithStep, BundleStep}) || !slices.Equal(m.given[PackStep], []string{"a-1-py3-none-any.whl"}) || !slices.Equal(m.given[CompanionsStep], []string{"tiny.tar.gz"}) {
		t.Errorf("ran %v, given %v", m.ran, m.given)
	}
	read, err := wheel.ReadBundle(t.Context(), filepath.Join(out, "wheelhouse"))
	if err != nil || len(read.Wheels) != 3 || len(made.Wheels) != 3 || read.Python != b.Toolchain().Python || made.Wheels[0].Path != read.Wheels[0].Path {
		t.Fatalf("%+v, %v", read, err)
	}
	for i, want := range []wheel.BundleWheel{{Name: "aside", Why: wheel.Companion}, {Name: "hjson", Why: wheel.Dependency}, {Name: "tiny", Why: wheel.Companion, Source: &wheel.Source{Kind: SourceSdist}}} {
		got := read.Wheels[i]
		if got.Name != want.Name || got.Why != want.Why || (got.Source == nil) != (want.Source == nil) || got.Source != nil && (got.Source.Kind != SourceSdist || got.Source.SHA256 == "") {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	check := exec.Command("sha256sum", "--check", "--strict", "SHA256SUMS")
	check.Dir = out
	if text, err := check.CombinedOutput(); err != nil || strings.Count(string(text), "wheelhouse/") != 4 {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestBundleThatFails(t *testing.T) {
	a := artifact(t, "", "a-1-py3-none-any.whl", "bytes")
	b := bundlePlan(t, plan(t, image(), nil, "8.0"), someCompanions(t), false)
	for want, change := range map[string]func(*inMemory){
		"step with: exit code 1":                         func(m *inMemory) { m.fail = WithStep },
		"extra wheel tiny: the step with built no wheel": func(m *inMemory) { delete(m.outputs[WithStep], "tiny") },
		"dsbuild never replaces torch":                   func(m *inMemory) { m.outputs[WithStep]["triton"] = "3.0" },
	} {
		m := newMemory(t)
		change(m)
		dir := t.TempDir()
		runner := Runner{
			Store: Store{Dir: filepath.Join(t.TempDir(), "wheels"), Keep: 2}, Dir: dir, Logs: t.TempDir(), Report: ui.New(io.Discard, ui.Options{}),
			Builder: func(context.Context) (Builder, error) { return m, nil },
		}
		if _, err := runner.Bundle(t.Context(), b, a); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
		if left, _ := os.ReadDir(dir); len(left) > 0 {
			t.Errorf("%s: left %v", want, left)
		}
	}
}

// wheelsPy runs lines of Python that know the functions of wheels.py.
func wheelsPy(t *testing.T, lines string) string {
	t.Helper()
	cmd := exec.Command("python3", "-c", "import sys; sys.path.insert(0, 'scripts'); sys.dont_write_bytecode = True; from wheels import *\n"+lines)
	for _, name := range []string{"ENV", "IN", "OUT", "WORK"} {
		cmd.Env = append(cmd.Env, "DSBUILD_"+name+"="+t.TempDir())
	}
	cmd.Env = append(cmd.Env, "PATH="+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// The script knows the same packages for torch's as dsbuild itself.
func TestScriptAgreesOnWhatIsTorchs(t *testing.T) {
	names := []string{"torch", "Triton", "nvidia_cublas_cu12", "nvidia-ml-py", "nvidia_ml_py", "pytorch_triton", "cuda.bindings", "cuda-toolkit", "torchvision", "numpy"}
	got := strings.Fields(wheelsPy(t, "print(*[from_torch(n) for n in "+`"`+strings.Join(names, " ")+`".split()])`))
	for i, name := range names {
		if want := map[bool]string{true: "True", false: "False"}[wheel.IsTorchPackage(name)]; i >= len(got) || got[i] != want {
			t.Errorf("%s: the script says %v, dsbuild %s", name, got, want)
		}
	}
}

// What only torch requires stays out, but not what others require as well.
func TestScriptLeavesOutWhatTorchBrings(t *testing.T) {
	got := wheelsPy(t, `
print(*sorted(needed({"deepspeed": (None, set()), "hjson": ("3", {"deepspeed"}), "torch": ("2", {"deepspeed", "mine"}), "nvidia-cublas": ("1", {"torch"}),
	"sympy": ("1", {"torch"}), "typing-extensions": ("4", {"pydantic", "torch"}), "pydantic": ("2", {"deepspeed"}), "triton": ("3", {"mine", "torch"}),
	"mine": (None, set()), "a": ("1", {"b"}), "b": ("1", {"mine", "a"})}, {"deepspeed", "mine"})))`)
	if got != "a b hjson pydantic typing-extensions" {
		t.Error(got)
	}
}
