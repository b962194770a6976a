//go:build full

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/testkit/built"
	"github.com/dsbuild/dsbuild/internal/testkit/fulltools"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/wheel"
)

// fullTool runs one of the tools of the long proofs.
func fullTool(t *testing.T, name string, args ...string) string {
	t.Helper()
	return command(t, ".", filepath.Join(fulltools.Tools(t), name), args...)
}

func TestFullInsideTwine(t *testing.T) {
	out := fullTool(t, "twine", "--no-color", "check", "--strict", built.Wheel(t))
	if !strings.Contains(out, "PASSED") {
		t.Error(out)
	}
}

func TestFullInsideAuditwheel(t *testing.T) {
	compareWithAuditwheel(t, built.Wheel(t))
}

// compareWithAuditwheel checks that auditwheel finds the same policy in the symbols as the wheel is tagged with.
func compareWithAuditwheel(t *testing.T, file string) {
	t.Helper()
	out := strings.Join(strings.Fields(fullTool(t, "auditwheel", "show", file)), " ")
	m := regexp.MustCompile(`constrains the platform tag to "(\w+)"`).FindStringSubmatch(out)
	if m == nil {
		t.Fatalf("auditwheel names no platform tag: %s", out)
	}
	if !strings.HasSuffix(file, "-"+m[1]+".whl") {
		t.Errorf("auditwheel says %s of %s", m[1], filepath.Base(file))
	}
	t.Logf("result: platform tag by auditwheel: %s", m[1])
}

// makeProgram returns the dsbuild that make test-full has compiled.
func makeProgram(t *testing.T) string {
	t.Helper()
	program := absolute(t, filepath.Join(repository, "bin", "dsbuild"))
	if _, err := os.Stat(program); err != nil {
		t.Fatalf("%v: run make", err)
	}
	return program
}

// build runs dsbuild wheel and returns what it printed.
func build(t *testing.T, args ...string) wheel.Artifact {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), append([]string{"wheel", "--json"}, args...), strings.NewReader(""), &stdout, io.MultiWriter(&stderr, testLog{t})); code != 0 {
		t.Fatalf("exit %d\n%s", code, &stderr)
	}
	var doc wheelResult
	if err := json.Unmarshal(stdout.Bytes(), &doc); err != nil || len(doc.Wheels) != 1 {
		t.Fatalf("%v: %s", err, &stdout)
	}
	return doc.Wheels[0]
}

type testLog struct{ t *testing.T }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Logf("%s", bytes.TrimSpace(p))
	return len(p), nil
}

// A wheel for one torch and one GPU, too, is what was requested, and reproducible: compiled with nothing cached, from another
// directory, it has the bytes of the wheel that TestFullPairs builds, or this test. So has the default wheel: TestFullDockerWheel.
func TestFullInsideForOneTorch(t *testing.T) {
	first := build(t, "--gpu", "A100", "--abi", "torch", "-o", t.TempDir())
	t.Chdir(t.TempDir())
	began := time.Now()
	second := build(t, "--arch", "8.0", "--abi", "torch", "--no-cache", "-o", "dist")
	checkBuildLog(t, second.Manifest, began)
	const name = "deepspeed-0.19.8+torch2.15.cu132.sm80.v3-cp311-cp311-manylinux_2_27_x86_64.whl" // async_io needs CXXABI_1.3.11
	checkFiles(t, second, "dist", name, 4_000_000)
	checkManifest(t, second.Manifest, "dist", "8.0  x86-64-v3 3.11 2.15.0 13.2", "torch<2.16,>=2.15")
	checkInstructions(t, filepath.Join("dist", name), "adam/cpu_adam_op.*.so", "utils_op.*.so", "adam/fused_adam_op.*.so")
	if second.Cached || second.SHA256 != first.SHA256 {
		t.Errorf("cached %v, sha256 %s and %s", second.Cached, first.SHA256, second.SHA256)
	}
	t.Logf("result: sha256 of two builds for one torch, the second without any cache: %s", first.SHA256)
}

// The CPU level of DeepSpeed's ops, compiled for each, is that which objdump's
// mnemonics tell; so is that of an extension compiled for this very machine.
func TestFullInsideCPULevels(t *testing.T) {
	for _, level := range wheel.CPULevels(wheel.X86) {
		a := build(t, "--ops", "cpu_adam", "--cpu", string(level), "-o", t.TempDir())
		t.Logf("result: CPU level of cpu_adam built for %s: %s", level, compareLevels(t, a.Path))
	}
	source := filepath.Join(t.TempDir(), "op.cpp")
	text := "#include <cmath>\nextern \"C\" void PyInit_native(float *a, double *b, int n) {\n" +
		"for (int i = 0; i < n; i++) { a[i] = std::sqrt(a[i]) * a[i] + 1; b[i] = b[i] < 0 ? a[i] : b[i] * a[i]; }\n}\n"
	if err := os.WriteFile(source, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	object := filepath.Join(t.TempDir(), "op.so")
	command(t, ".", "g++", "-O3", "-march=native", "-ffast-math", "-fPIC", "-shared", "-o", object, source)
	code, err := os.ReadFile(object)
	if err != nil {
		t.Fatal(err)
	}
	path := wheeltest.Compiled(t, t.TempDir(), wheeltest.Options{Ops: []wheeltest.Op{}, Files: map[string]string{"deepspeed/ops/native_op.so": string(code)}})
	t.Logf("result: CPU level of an extension built for native: %s", compareLevels(t, path))
}

// compareLevels holds cpu.max of each extension against objdump's, and returns
// the highest.
func compareLevels(t *testing.T, path string) wheel.CPULevel {
	t.Helper()
	c, err := wheel.Inspect(t.Context(), path)
	if err != nil || len(c.Extensions) == 0 {
		t.Fatal(c, err)
	}
	tmp := t.TempDir()
	command(t, ".", "python3", "-m", "zipfile", "-e", path, tmp)
	highest := wheel.CPUv1
	for _, e := range c.Extensions {
		want := objdumpLevel(t, filepath.Join(tmp, e.Path))
		if e.CPU.Max != want {
			t.Errorf("%s: %s, by objdump %s", e.Path, e.CPU.Max, want)
		}
		if want.Includes(highest) {
			highest = want
		}
	}
	return highest
}

// What only CPUs of a level run, by the names that objdump gives: instructions
// of SSE3 to SSE4.2 and their like, of AVX, FMA and BMI (whose names begin with a
// v, or are listed), and registers and suffixes of AVX-512.
var (
	mnemonic = regexp.MustCompile(`(?m)^ *[0-9a-f]+:\t(?:(?:rep[nz]*|lock|data16|addr32|notrack|bnd|[c-gs]s|rex\S*) )*(\S+)(.*)$`)
	onlyV4   = regexp.MustCompile(`%zmm|%k[0-7]|%[xy]mm(?:1[6-9]|2\d|3[01])|\{1to\d+\}|\{z\}`)
	named4   = regexp.MustCompile(`^(?:vpternlog|vmovdq[au](?:8|16|32|64)$|vpmov[a-z]+[bwdq]2m|vrndscale|vgetexp|vgetmant|vscalef|vfixupimm|vreduce|vrange|vperm[it]2|valign|vp(?:and|or|xor|andn)[dq]$|vextract[if](?:32|64)|vinsert[if](?:32|64)|vbroadcast[if](?:32|64)|vshuf[if](?:32|64)|vp(?:max|min)[us]q|vpabsq|vpsraq|vpro[lr]|vpmullq|vcvt\S*(?:uq|ud)|vcvtu|vpcmpu?[bwdq]$|vpcompress|vpexpand|vcompress|vexpand)`)
	named3   = regexp.MustCompile(`^(?:v(?:$|[^e]|e[^r])|andn|bextr|blsi|blsmsk|blsr|bzhi|mulx|pdep|pext[lq]?$|rorx|sarx|shlx|shrx|lzcnt|movbe)`)
	named2   = regexp.MustCompile(`^(?:popcnt|crc32|cmpxchg16b|[ls]ahf|addsub|h(?:add|sub)p|lddqu|movddup|movs[hl]dup|fisttp|p(?:abs|sign|align|shufb|hadd|hsub|mulhrs|maddubs|blend|cmpeqq|cmpgtq|extr[bdq]|insr[bdq]|m(?:ax|in)(?:sb|sd|uw|ud)|mov[sz]x|muldq|mulld|test|ackusdw|cmp[ei]str|hminposuw)|blend|dpp|extractps|insertps|mpsadbw|movntdqa|round)`)
)

func objdumpLevel(t *testing.T, file string) wheel.CPULevel {
	t.Helper()
	out, err := exec.Command("objdump", "-d", "--wide", "--no-show-raw-insn", file).Output()
	if err != nil {
		t.Fatal(fmt.Errorf("objdump %s: %w", file, err))
	}
	level := wheel.CPUv1
	for _, m := range mnemonic.FindAllStringSubmatch(string(out), -1) {
		need := wheel.CPUv1
		switch {
		case onlyV4.MatchString(m[2]) || named4.MatchString(m[1]):
			need = wheel.CPUv4
		case named3.MatchString(m[1]):
			need = wheel.CPUv3
		case named2.MatchString(m[1]):
			need = wheel.CPUv2
		}
		if need.Includes(level) {
			level = need
		}
	}
	return level
}
