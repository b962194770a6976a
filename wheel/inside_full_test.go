//go:build full

package wheel_test

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/built"
	"github.com/dsbuild/dsbuild/internal/testkit/fulltools"
	"github.com/dsbuild/dsbuild/wheel"
)

func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// The archs of every extension of every wheel are those that NVIDIA's
// cuobjdump finds.
func TestFullInsideCuobjdump(t *testing.T) {
	wheels, tools := fulltools.Wheels(t), fulltools.Tools(t)
	programs := []string{filepath.Join(tools, "cuobjdump"), olderCuobjdump(t)}
	for _, path := range append(wheels, built.Wheel(t)) {
		if strings.HasPrefix(filepath.Base(path), "triton-") {
			continue // it is here for its cuobjdump
		}
		t.Run(filepath.Base(path), func(t *testing.T) {
			c := inspect(t, path)
			tmp := t.TempDir()
			command(t, filepath.Join(tools, "python"), "-m", "zipfile", "-e", path, tmp)
			device := 0
			for _, e := range c.Extensions {
				file := filepath.Join(tmp, e.Path)
				sass, ptx := fulltools.DeviceCode(t, file, programs...)
				sass, ptx = sorted(sass), sorted(ptx)
				if !slices.Equal(e.SASS, sass) || !slices.Equal(e.PTX, ptx) {
					t.Errorf("%s: SASS %v, PTX %v; cuobjdump: %v, %v", e.Path, e.SASS, e.PTX, sass, ptx)
				}
				if len(sass)+len(ptx) > 0 {
					device++
				}
			}
			if device == 0 {
				t.Error("no extension has device code: nothing was compared")
			}
			sass, ptx := c.Archs()
			t.Logf("result: %s: %d of %d extensions with device code equal; SASS %s; PTX %s", c.Name+" "+c.Version, device, len(c.Extensions),
				strings.Join(sass, " "), strings.Join(ptx, " "))
		})
	}
}

// olderCuobjdump is that of CUDA 12.8, out of triton's wheel: newer ones read
// no cubins of before sm_50.
func olderCuobjdump(t *testing.T) string {
	t.Helper()
	a, err := wheel.Open(fulltools.Wheel(t, "triton-3.3.1-"))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	program, err := a.ReadFile("triton/backends/nvidia/bin/cuobjdump", 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "cuobjdump-12.8")
	if err := os.WriteFile(path, program, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// sorted orders archs as the package does, by their numbers.
func sorted(archs []string) []string {
	c := wheel.Contents{Extensions: []wheel.Extension{{SASS: archs}}}
	sass, _ := c.Archs()
	return sass
}

// torch's own wheel, half a GB: memory does not grow with it, and time is that
// of unpacking it and little more.
func TestFullInsideTorch(t *testing.T) {
	torch := fulltools.Wheel(t, "torch-2.")
	dsbuild := filepath.Join("..", "bin", "dsbuild")
	python := filepath.Join(fulltools.Tools(t), "python")
	unpack, inspect := math.Inf(1), math.Inf(1) // seconds
	var peak int64                              // KiB
	for range 3 {                               // the best of each: other work on the machine only adds
		seconds, _ := measured(t, python, python, "-m", "zipfile", "-e", torch, t.TempDir())
		unpack = min(unpack, seconds)
		seconds, memory := measured(t, python, dsbuild, "inspect", "--json", torch)
		inspect, peak = min(inspect, seconds), max(peak, memory)
	}
	t.Logf("result: peak memory of inspecting %s: %d MiB", filepath.Base(torch), peak>>10)
	t.Logf("result: time of inspecting it by that of unpacking it (python -m zipfile): %.1f s / %.1f s = %.2f", inspect, unpack, inspect/unpack)
	if peak > 200<<10 {
		t.Errorf("%d KiB at its peak, more than 200 MiB", peak)
	}
	if inspect > 3*unpack {
		t.Errorf("%.1f s, more than three times the %.1f s of unpacking", inspect, unpack)
	}
	profile(t, torch)
}

// measured runs a program and returns its time and its peak memory in KiB. It
// is started by a small process: for the kernel, a program's peak begins with
// the memory of the process that started it.
func measured(t *testing.T, python string, program ...string) (seconds float64, kib int64) {
	t.Helper()
	const script = "import resource, subprocess, sys, time\n" +
		"start = time.monotonic()\n" +
		"subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)\n" +
		"print(time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n"
	out := command(t, python, append([]string{"-c", script}, program...)...)
	if _, err := fmt.Sscan(out, &seconds, &kib); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return seconds, kib
}

// profile reports where the time of an inspection goes.
func profile(t *testing.T, path string) {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "cpu.pprof"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := pprof.StartCPUProfile(file); err != nil {
		t.Fatal(err)
	}
	inspect(t, path)
	pprof.StopCPUProfile()
	out := command(t, "go", "tool", "pprof", "-top", "-cum", "-nodecount=400", file.Name())
	for _, part := range []string{"compress/flate.(*decompressor).Read", "x86.(*Scanner).Write", "fatbin.Scan", "elf.Read", "hash/crc32.Update"} {
		for _, line := range strings.Split(out, "\n") {
			fields := strings.Fields(line)
			if len(fields) == 6 && strings.HasSuffix(fields[5], part) {
				t.Logf("result: share of CPU time in %s: %s", part, fields[4])
			}
		}
	}
}
