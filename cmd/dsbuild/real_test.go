package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/schema"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/wheel"
)

// built returns what `dsbuild wheel --arch 8.0 --abi torch --json` printed and wrote for
// make test, which sets DSBUILD_TEST_DIR.
func built(t *testing.T) (wheelsDocument, string) {
	t.Helper()
	dir := os.Getenv("DSBUILD_TEST_DIR")
	if dir == "" {
		if os.Getenv("CI") == "true" {
			t.Fatal("DSBUILD_TEST_DIR is not set: run make test")
		}
		t.Skip("needs a wheel: run make test")
	}
	text, err := os.ReadFile(filepath.Join(dir, "wheel.json"))
	if err != nil {
		t.Fatal(err)
	}
	schema.Check(t, "wheel", text)
	var doc wheelsDocument
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&doc); err != nil || len(doc.Wheels) != 1 {
		t.Fatalf("%v: %s", err, text)
	}
	return doc, filepath.Join(dir, "dist")
}

// command runs a program and returns its output.
func command(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

func TestRealWheelFiles(t *testing.T) {
	doc, dist := built(t)
	w := doc.Wheels[0]
	const name = "deepspeed-0.19.8+torch2.15.cu132.sm80.v3-cp311-cp311-manylinux_2_24_x86_64.whl"
	if filepath.Base(w.Path) != name || w.Cached {
		t.Errorf("%s, cached %v", w.Path, w.Cached)
	}
	if limit := int64(2_600_000); w.Size > limit {
		t.Errorf("%d bytes, more than %d", w.Size, limit)
	}
	entries, err := os.ReadDir(dist)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if want := []string{"SHA256SUMS", name, name + wheel.ByteCodeSuffix, name + wheel.ManifestSuffix, name + wheel.ProvenanceSuffix}; !slices.Equal(names, want) {
		t.Errorf("dist holds %q", names)
	}
	command(t, dist, "sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS")
}

func TestRealManifest(t *testing.T) {
	doc, dist := built(t)
	m := doc.Wheels[0].Manifest
	got := strings.Join([]string{
		m.Source.Kind, m.Source.Ref, strings.Join(m.Ops, ","), strings.Join(m.Archs, ","), strings.Join(m.PTX, ","),
		m.CPU, m.Python, m.Torch, m.CUDA, m.Builder,
	}, " ")
	builder := "dagger"
	if m.Builder == "host" && os.Getenv("CI") != "true" {
		builder = m.Builder // make test found no container engine
	}
	if got != "release 0.19.8 cpu_adam,fused_adam,utils 8.0  x86-64-v3 3.11 2.15.0 13.2 "+builder {
		t.Error(got)
	}
	if len(m.Source.SHA256) != 64 || m.GCC == "" || m.Glibc == "" || !m.CXX11ABI || m.PlanDigest == "" || m.BuiltAt == nil || m.ByteCode == nil {
		t.Errorf("%+v", m)
	}
	inside, err := wheel.ReadManifest(filepath.Join(dist, m.Name))
	if err != nil {
		t.Fatal(err)
	}
	if inside.SHA256 != m.SHA256 || inside.PlanDigest != m.PlanDigest || inside.Builder != "" || inside.BuiltAt != nil {
		t.Errorf("inside: %+v", inside)
	}
	c, err := wheel.Inspect(t.Context(), filepath.Join(dist, m.Name))
	if err != nil || !slices.Contains(c.Requires, "torch<2.16,>=2.15") {
		t.Errorf("%v, %v", c.Requires, err)
	}
}

// The CPU ops hold AVX2 and nothing newer, by the machine's own objdump.
func TestRealInstructions(t *testing.T) {
	doc, dist := built(t)
	tmp := t.TempDir()
	command(t, tmp, "python3", "-m", "zipfile", "-e", filepath.Join(dist, doc.Wheels[0].Manifest.Name), tmp)
	for _, op := range []string{"adam/cpu_adam_op", "utils_op", "adam/fused_adam_op"} {
		files, _ := filepath.Glob(filepath.Join(tmp, "deepspeed", "ops", op+".*.so"))
		if len(files) != 1 {
			t.Fatalf("%s: %v", op, files)
		}
		code := command(t, tmp, "objdump", "-d", files[0])
		if n := strings.Count(code, "%zmm"); n > 0 {
			t.Errorf("%s: %d references to zmm registers", op, n)
		}
		if op == "adam/cpu_adam_op" && !strings.Contains(code, "%ymm") {
			t.Errorf("%s: no ymm register: AVX2 is not used", op)
		}
	}
}

func TestRealBuildLog(t *testing.T) {
	doc, _ := built(t)
	logs, err := filepath.Glob(filepath.Join(pipeline.DefaultLogs(), "wheel-*-"+doc.Wheels[0].Manifest.PlanDigest[:12]+".log"))
	if err != nil {
		t.Fatal(err)
	}
	// A later run of the same plan, by whoever uses this machine, has a log too: the build's is the last before its result.
	result, err := os.Stat(filepath.Join(os.Getenv("DSBUILD_TEST_DIR"), "wheel.json"))
	if err != nil {
		t.Fatal(err)
	}
	logs = slices.DeleteFunc(logs, func(log string) bool {
		info, err := os.Stat(log)
		return err != nil || info.ModTime().After(result.ModTime())
	})
	if len(logs) == 0 {
		t.Fatal("no log of the build")
	}
	text, err := os.ReadFile(slices.Max(logs))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`created with AVX2 arithmetic capability`,
		`cpu_adam: one step equals torch's within`,
		`fused_adam: loaded from ops/adam/fused_adam_op\.`,
		`3 ops work`,
	} {
		if !regexp.MustCompile(want).Match(text) {
			t.Errorf("the log does not say %q", want)
		}
	}
}

// Asked again, the wheel comes from the store, the same to the byte.
func TestRealWheelAgain(t *testing.T) {
	doc, _ := built(t)
	var stdout, stderr bytes.Buffer
	out := t.TempDir()
	if code := run(t.Context(), []string{"wheel", "--arch", "8.0", "--abi", "torch", "--json", "-o", out}, strings.NewReader(""), &stdout, &stderr); code != 0 {
		t.Fatalf("exit %d\n%s", code, &stderr)
	}
	var again wheelsDocument
	if err := json.Unmarshal(stdout.Bytes(), &again); err != nil {
		t.Fatal(err)
	}
	if w := again.Wheels[0]; !w.Cached || w.SHA256 != doc.Wheels[0].SHA256 {
		t.Errorf("cached %v, %s", w.Cached, w.SHA256)
	}
}
