//go:build full && linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/pipeline"
	"github.com/dsbuild/dsbuild/wheel"
)

// A wheel for GH200 that x86_64 builds is the same twice. Other programs find in it what dsbuild says of it, and its device code is that
// of the wheel for x86_64. In the smoke test of the build, which qemu-user runs on a CPU with Armv8-A alone, each op loads, and the CPU
// optimizers compute what torch does. No CPU of aarch64 and no GPU takes part.
func TestFullAarch64(t *testing.T) {
	ops := []string{"cpu_adam", "cpu_adagrad", "cpu_lion", "utils", "fused_adam", "fused_lamb", "pin_memory", "async_io"}
	flags := []string{"--ops", strings.Join(ops, ","), "-o", t.TempDir()}
	w := build(t, append(flags, "--gpu", "GH200")...)
	name := regexp.MustCompile(`^deepspeed-.*\+torch2\.10\.cu13\.sm90\.armv8a-py3-none-(manylinux_2_(?:17|24)_aarch64)\.whl$`).FindStringSubmatch(filepath.Base(w.Path))
	if name == nil {
		t.Fatal(w.Path)
	}
	t.Logf("result: dsbuild wheel --gpu GH200: %s, %d bytes, built in %.0f s", filepath.Base(w.Path), w.Size, w.Seconds)
	if again := build(t, append(flags, "--gpu", "GH200", "--no-cache", "-o", t.TempDir())...); again.SHA256 != w.SHA256 || again.Cached {
		t.Errorf("a second build without caches: %s, %s", w.SHA256, again.SHA256)
	}
	if out := strings.Join(strings.Fields(fullTool(t, "auditwheel", "show", w.Path)), " "); !strings.Contains(out, name[1]) {
		t.Errorf("auditwheel: %s", out)
	}
	if sass, ptx := cuobjdump(t, w.Path, "libfused_adam_op"); !slices.Equal(sass, []string{"9.0"}) || len(ptx) > 0 {
		t.Errorf("cuobjdump: %v %v", sass, ptx)
	}
	installsOn(t, w.Path)
	smokeTestRan(t, w, len(ops))

	arm := unzipped(t, w.Path)
	x86 := unzipped(t, build(t, append(flags, "--gpu", "H100", "-o", t.TempDir())...).Path)
	for _, file := range sharedObjects(t, arm) {
		for _, row := range strings.Split(command(t, arm, "readelf", "-lW", file), "\n") {
			if fields := strings.Fields(row); len(fields) > 0 && fields[0] == "LOAD" && fields[len(fields)-1] != "0x10000" {
				t.Errorf("%s: %s", file, row)
			}
		}
		if one, two := deviceCode(t, filepath.Join(arm, file)), deviceCode(t, filepath.Join(x86, file)); one != two {
			t.Errorf("%s: %d bytes of device code, that for x86_64 has %d others", file, len(one), len(two))
		} else {
			t.Logf("result: %s: %d bytes of device code, as for x86_64", filepath.Base(file), len(one))
		}
	}
}

// installsOn checks that an installer takes a wheel for aarch64 on such a machine, and on no other.
func installsOn(t *testing.T, path string) {
	t.Helper()
	uv := uvProgram(t)
	for platform, want := range map[string]bool{"aarch64-manylinux_2_28": true, "x86_64-manylinux_2_28": false} {
		out, err := exec.Command(uv, "pip", "install", "--dry-run", "--no-deps", "--target", t.TempDir(), "--python-platform", platform, "--python-version", "3.11", path).CombinedOutput()
		if (err == nil) != want {
			t.Errorf("uv on %s: %v %s", platform, err, out)
		}
	}
}

func uvProgram(t *testing.T) string {
	t.Helper()
	_, uv, err := pythonAndUV(t)
	if err != nil {
		t.Fatal(err)
	}
	return uv
}

// sharedObjects lists the ops of an unzipped wheel.
func sharedObjects(t *testing.T, dir string) []string {
	t.Helper()
	files := strings.Fields(command(t, dir, "find", "deepspeed", "-name", "*.so"))
	if len(files) == 0 {
		t.Fatal("no ops")
	}
	return files
}

// deviceCode returns the section of an op that holds its device code; "" if there is none.
func deviceCode(t *testing.T, file string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "code")
	command(t, ".", "objcopy", "-I", "elf64-little", "-O", "binary", "--only-section=.nv_fatbin", file, out)
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// smokeTestRan checks what the smoke test of the newest build of a plan said.
func smokeTestRan(t *testing.T, w wheel.Artifact, ops int) {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(pipeline.DefaultLogs(), "wheel-*-"+w.Manifest.PlanDigest[:12]+".log"))
	if err != nil || len(logs) == 0 {
		t.Fatalf("no log of the build: %v", err)
	}
	text, err := os.ReadFile(slices.Max(logs))
	if err != nil {
		t.Fatal(err)
	}
	_, smoke, _ := strings.Cut(string(text), "== "+pipeline.SmokeStep+":")
	for _, want := range []string{"with NEON arithmetic capability", "cpu_adam: one step equals torch's", "cpu_adagrad: one step equals", "cpu_lion: one step equals", fmt.Sprintf("%d ops work", ops)} {
		if !strings.Contains(smoke, want) {
			t.Fatalf("want %q of the smoke test:\n%s", want, smoke)
		}
	}
	for line := range strings.Lines(smoke) {
		if strings.Contains(line, ": ") && !strings.HasPrefix(line, "/") && !strings.HasPrefix(line, "Config") { // those are of torch and DeepSpeed
			t.Logf("result: under qemu-user: %s", strings.TrimSpace(line))
		}
	}
}
