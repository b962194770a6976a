package pipeline

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The CPU level of real machine code: assembled here, disassembled and judged
// by the script that judges wheels.
func TestCPULevelOfCode(t *testing.T) {
	for _, tool := range []string{"gcc", "objdump", "python3"} {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatal(err)
			}
			t.Skip(err)
		}
	}
	for code, want := range map[string]string{
		"addps %xmm1, %xmm2":                               "x86-64-v2 ",
		"popcnt %eax, %ebx":                                "x86-64-v2 ",
		"rep bsf %eax, %ebx":                               "x86-64-v2 ", // tzcnt: older CPUs run it as bsf
		"vfmadd132ss %xmm1, %xmm2, %xmm3":                  "x86-64-v3 ",
		"vaddps %ymm1, %ymm2, %ymm3":                       "x86-64-v3 ",
		"andn %eax, %ebx, %ecx":                            "x86-64-v3 ",
		"lzcnt %eax, %ebx":                                 "x86-64-v3 ",
		"movbe (%rax), %ebx":                               "x86-64-v3 ",
		"vaddps %fs:(%rax), %ymm2, %ymm3":                  "x86-64-v3 ",
		"vaddps %zmm1, %zmm2, %zmm3":                       "x86-64-v4 ",
		"vpternlogq $1, %ymm2, %ymm1, %ymm0":               "x86-64-v4 ",
		"vaddps %fs:(%rax), %zmm2, %zmm3":                  "x86-64-v4 ",
		"{vex} vpdpbusd %ymm1, %ymm2, %ymm3":               "x86-64-v3 vpdpbusd",
		"aesenc %xmm1, %xmm2\nvaesenc %ymm1, %ymm2, %ymm3": "x86-64-v3 aesenc,vaesenc",
		"sha256rnds2 %xmm0, %xmm1, %xmm2":                  "x86-64-v2 sha256rnds2",
	} {
		dir := t.TempDir()
		src, obj := filepath.Join(dir, "code.s"), filepath.Join(dir, "code.o")
		if err := os.WriteFile(src, []byte(".text\n"+code+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		output(t, "gcc", "-c", "-o", obj, src)
		got := output(t, "python3", "-B", "-c", `
import sys; sys.path.insert(0, "scripts")
import contents
found = contents.cpu(contents.output("objdump", "-d", "--wide", "--insn-width=16", sys.argv[1]))
print(found["max"], ",".join(found["beyond"]), end="")`, obj)
		if got != want {
			t.Errorf("%q: %q, want %q", code, got, want)
		}
	}
}

// The compiler wrapper decides the level in the arguments, whatever the
// building machine is.
func TestCompilerWrapper(t *testing.T) {
	dir := t.TempDir()
	ccache := "#!/bin/sh\necho \"$@\"\n"
	if err := os.WriteFile(filepath.Join(dir, "ccache"), []byte(ccache), 0o755); err != nil {
		t.Fatal(err)
	}
	script, err := scripts.ReadFile("scripts/cxx")
	if err != nil {
		t.Fatal(err)
	}
	wrapper := filepath.Join(dir, "c++")
	if err := os.WriteFile(wrapper, script, 0o755); err != nil {
		t.Fatal(err)
	}
	for level, want := range map[string]string{
		"x86-64-v2": "-march=x86-64-v2 -D__SCALAR__",
		"x86-64-v3": "-march=x86-64-v3 -D__AVX256__",
		"x86-64-v4": "-march=x86-64-v4 -D__AVX512__",
	} {
		for _, simd := range []string{"-D__AVX512__", "-D__AVX256__", "-D__SCALAR__"} {
			cmd := exec.Command(wrapper, "-march=native", simd, "-g", "-DX=a b", "x.cpp")
			cmd.Env = []string{"PATH=" + dir + ":/usr/bin:/bin", "DSBUILD_CPU=" + level, "DSBUILD_SRC=/src"}
			out, err := cmd.CombinedOutput()
			if got := strings.TrimSpace(string(out)); err != nil || got != "/usr/bin/g++ -ffile-prefix-map=/src=/ds "+want+" -DX=a b x.cpp" {
				t.Errorf("%s, %s: %v %s", level, simd, err, got)
			}
		}
	}
}

func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
	return string(out)
}
