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
	"time"

	"github.com/dsbuild/dsbuild/internal/testkit/built"
	"github.com/dsbuild/dsbuild/internal/testkit/schema"
	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/wheel"
)

// realWheel returns what `dsbuild wheel --json` printed for make test, and its output directory.
func realWheel(t *testing.T) (wheelResult, string) {
	t.Helper()
	dir := built.Dir(t)
	text, err := os.ReadFile(filepath.Join(dir, "wheel.json"))
	if err != nil {
		t.Fatal(err)
	}
	schema.Check(t, "wheel", text)
	var doc wheelResult
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

// One test waits for the wheel of make test: the others of this package run meanwhile.
func TestRealWheel(t *testing.T) {
	t.Parallel()
	doc, dist := realWheel(t)
	m := doc.Wheels[0].Manifest
	if kind := wheel.KindOf(m); kind != wheel.KindComplete {
		t.Errorf("%s is a %s wheel", m.Version, kind)
	}
	checkFiles(t, doc.Wheels[0], dist, "deepspeed-0.19.8-"+m.BuildTag()+"-py3-none-manylinux_2_24_x86_64.whl", 4_500_000)
	checkManifest(t, m, dist, "5.0,5.2,6.0,6.1,7.0,7.5,8.0,8.6,8.9,9.0,10.0,10.3,12.0 9.0,12.0 x86-64-v2 3.10+ 2.10 ", "torch>=2.10")
	checkInstructions(t, filepath.Join(dist, m.Name), "adam/libcpu_adam_op.v2.so", "adam/libcpu_adam_op.v3.so", "adam/libcpu_adam_op.v4.so", "libutils_op.so", "adam/libfused_adam_op.cu13.so")
	result, err := os.Stat(filepath.Join(dist, "../wheel.json"))
	if err != nil {
		t.Fatal(err)
	}
	checkBuildLog(t, m, result.ModTime())
	checkWheelAgain(t, m.SHA256)
}

// checkFiles checks the name and the size of a wheel, and its sidecar files.
func checkFiles(t *testing.T, w wheel.Artifact, dist, name string, limit int64) {
	t.Helper()
	if filepath.Base(w.Path) != name || w.Cached {
		t.Errorf("%s, cached %v", w.Path, w.Cached)
	}
	if w.Size > limit {
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
	if want := []string{".dsbuild.lock", "SHA256SUMS", name, name + wheel.ByteCodeSuffix, name + wheel.ManifestSuffix, name + wheel.ProvenanceSuffix}; !slices.Equal(names, want) {
		t.Errorf("dist holds %q", names)
	}
	command(t, dist, "sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS")
}

// checkManifest checks the manifests of a wheel: in it, and in its sidecar file.
func checkManifest(t *testing.T, m wheel.Manifest, dist, targets, requires string) {
	t.Helper()
	got := strings.Join([]string{
		m.Source.Kind, m.Source.Ref, strings.Join(m.Ops, ","), strings.Join(m.Archs, ","), strings.Join(m.PTX, ","),
		m.CPU, m.Python, m.Torch, m.CUDA, m.Builder,
	}, " ")
	builder := "dagger"
	if m.Builder == "host" && os.Getenv("CI") != "true" {
		builder = m.Builder // make test found no container engine
	}
	if got != "release 0.19.8 "+strings.Join(slices.Sorted(slices.Values(wheel.DefaultOps())), ",")+" "+targets+" "+builder {
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
	if err != nil || !slices.Contains(c.Requires, requires) {
		t.Errorf("%v, %v", c.Requires, err)
	}
}

// checkInstructions checks by the machine's own objdump that the CPU ops have AVX2 and nothing newer.
func checkInstructions(t *testing.T, file string, ops ...string) {
	t.Helper()
	tmp := t.TempDir()
	command(t, ".", "python3", "-m", "zipfile", "-e", file, tmp)
	for _, op := range ops {
		files, _ := filepath.Glob(filepath.Join(tmp, "deepspeed", "ops", op))
		if len(files) != 1 {
			t.Fatalf("%s: %v", op, files)
		}
		code := command(t, tmp, "objdump", "-d", files[0])
		if n, wants := strings.Count(code, "%zmm"), strings.Contains(op, ".v4."); n > 0 != wants {
			t.Errorf("%s: %d references to zmm registers, which AVX-512 has; wanted %v", op, n, wants)
		}
		if uses, wants := strings.Contains(code, "%ymm"), !strings.Contains(op, ".v2."); strings.Contains(op, "cpu_adam") && uses != wants {
			t.Errorf("%s: uses ymm registers, which AVX2 has: %v, want %v", op, uses, wants)
		}
	}
}

// checkBuildLog checks the log of a build that ended at a time.
func checkBuildLog(t *testing.T, m wheel.Manifest, end time.Time) {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(pipeline.DefaultLogs(), "wheel-*-"+m.PlanDigest[:12]+".log"))
	if err != nil {
		t.Fatal(err)
	}
	// A later run of the same plan, by whoever uses this machine, has a log too: the build's is the last before its result.
	logs = slices.DeleteFunc(logs, func(log string) bool {
		info, err := os.Stat(log)
		return err != nil || info.ModTime().After(end)
	})
	if len(logs) == 0 {
		t.Fatal("no log of the build")
	}
	text, err := os.ReadFile(slices.Max(logs))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`created with AVX(2|512) arithmetic capability`,
		`cpu_adam: one step equals torch's within`,
		`fused_adam: loaded from ops/adam/(lib)?fused_adam_op\.`,
		`7 ops work`,
	} {
		if !regexp.MustCompile(want).Match(text) {
			t.Errorf("the log does not say %q", want)
		}
	}
}

// checkWheelAgain asks for the wheel again: it comes from the store, the same to the byte.
func checkWheelAgain(t *testing.T, sum string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	out := t.TempDir()
	if code := run(t.Context(), []string{"wheel", "--json", "-o", out}, strings.NewReader(""), &stdout, &stderr); code != 0 {
		t.Fatalf("exit %d\n%s", code, &stderr)
	}
	var again wheelResult
	if err := json.Unmarshal(stdout.Bytes(), &again); err != nil {
		t.Fatal(err)
	}
	if w := again.Wheels[0]; !w.Cached || w.SHA256 != sum {
		t.Errorf("cached %v, %s", w.Cached, w.SHA256)
	}
}
