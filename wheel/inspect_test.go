package wheel_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/wheel"
)

func inspect(t *testing.T, path string) wheel.Contents {
	t.Helper()
	c, err := wheel.Inspect(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestInspect(t *testing.T) {
	path := wheeltest.Compiled(t, t.TempDir(), wheeltest.Options{Ops: []wheeltest.Op{
		{Name: "cpu_adam", Dir: "adam", Code: "vpaddd %ymm1, %ymm2, %ymm3\naesenc %xmm1, %xmm2"},
		{Name: "fused_adam", Dir: "adam", SASS: []string{"9.0", "8.0", "8.0"}, PTX: []string{"9.0"}, Unlinked: []string{"7.5"}},
		{Name: "utils", Code: "vpaddd %zmm1, %zmm2, %zmm3\ncpuid\nxgetbv\naddps %xmm1, %xmm2\npopcnt %eax, %ebx"},
	}})
	c := inspect(t, path)
	if c.Name != "deepspeed" || c.Torch != "2.15" || c.CUDA != "13.2" || c.Python != "3.11" ||
		!slices.Equal(c.Tags, []string{"cp311-cp311-linux_x86_64"}) || !slices.Equal(c.Ops, []string{"cpu_adam", "fused_adam", "utils"}) ||
		!slices.Equal(c.Requires, []string{"torch>=2.0.0"}) || len(c.Extensions) != 3 {
		t.Fatalf("%+v", c)
	}
	adam, fused, utils := c.Extensions[0], c.Extensions[1], c.Extensions[2]
	if adam.CPU.Max != wheel.CPUv3 || adam.CPU.Requires != wheel.CPUv3 || adam.CPU.Dispatch || !slices.Equal(adam.CPU.Beyond, []string{"aes"}) ||
		adam.Glibc != "2.14" || !adam.Stripped || adam.Machine != "x86_64" || !slices.Equal(adam.Needs, []string{"libc.so.6"}) || len(adam.SASS) > 0 {
		t.Errorf("%+v", adam)
	}
	if !slices.Equal(fused.SASS, []string{"8.0", "9.0"}) || !slices.Equal(fused.PTX, []string{"7.5", "9.0"}) || fused.CPU.Max != wheel.CPUv1 {
		t.Errorf("%+v", fused)
	}
	if utils.CPU.Max != wheel.CPUv4 || utils.CPU.Requires != wheel.CPUv2 || !utils.CPU.Dispatch {
		t.Errorf("%+v", utils)
	}
	if c.CPU() != wheel.CPUv3 || c.Floors().Glibc != "2.14" {
		t.Errorf("%s, %+v", c.CPU(), c.Floors())
	}
}

// What an extension requires is less than what it holds only where it asks the
// CPU, in earnest, and has code for those that say no.
func TestInspectDispatch(t *testing.T) {
	for code, want := range map[string]wheel.CPULevel{
		"vaddps %ymm1, %ymm2, %ymm3":                                                                                      wheel.CPUv3,
		"vaddps %ymm1, %ymm2, %ymm3\ncpuid":                                                                               wheel.CPUv3, // the size of a cache
		"vaddps %ymm1, %ymm2, %ymm3\ncpuid\nxgetbv":                                                                       wheel.CPUv3, // chooses among higher levels
		"vaddps %ymm1, %ymm2, %ymm3\ncpuid\nxgetbv\naddps %xmm1, %xmm2":                                                   wheel.CPUv1,
		"vaddps %ymm1, %ymm2, %ymm3\naddps %xmm1, %xmm2":                                                                  wheel.CPUv3, // never asks
		"vaddps %zmm1, %zmm2, %zmm3\ncpuid\naddps %xmm1, %xmm2":                                                           wheel.CPUv1, // as simsimd and numkong
		strings.Repeat("vaddps %zmm1, %zmm2, %zmm3\n", 9) + "vaddps %ymm1, %ymm2, %ymm3\ncpuid\naddps %xmm1, %xmm2":       wheel.CPUv4,
		"popcnt %eax, %ebx\ncpuid\nxgetbv\naddps %xmm1, %xmm2":                                                            wheel.CPUv2,
		"vaddps %zmm1, %zmm2, %zmm3\naddps %xmm1, %xmm2\n.data\n.type f, %gnu_indirect_function\n.globl f\n.text\nf: ret": wheel.CPUv1,
	} {
		c := inspect(t, wheeltest.Compiled(t, t.TempDir(), wheeltest.Options{Ops: []wheeltest.Op{{Name: "x", Code: code}}}))
		if got := c.Extensions[0].CPU.Requires; got != want || c.CPU() != want {
			t.Errorf("%q requires %s, want %s", code, got, want)
		}
	}
}

// A library that lets another one of the wheel ask the CPU needs no more than that one: libavcodec of FFmpeg asks libavutil.
func TestInspectDispatchByLibrary(t *testing.T) {
	dir := t.TempDir()
	asm := func(name, code string, args ...string) string {
		t.Helper()
		source, object := filepath.Join(dir, name+".s"), filepath.Join(dir, name)
		if err := os.WriteFile(source, []byte(code+"\nret\n.section .note.GNU-stack,\"\",@progbits\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		args = append([]string{"-shared", "-nostdlib", "-Wl,-soname," + name, "-Wl,--no-as-needed", "-o", object, source}, args...)
		if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return object
	}
	const code = "vaddps %zmm1, %zmm2, %zmm3\nvaddps %ymm1, %ymm2, %ymm3\naddps %xmm1, %xmm2"
	util := asm("libutil.so.1", "cpuid\nxgetbv")
	files := map[string]string{"a-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: a\nVersion: 1\n", "a-1.dist-info/WHEEL": "Wheel-Version: 1.0\n"}
	codec := asm("libcodec.so.1", code, util)
	for _, path := range []string{util, codec, asm("libformat.so.1", code, codec), asm("libother.so.1", code)} {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		files["a.libs/"+filepath.Base(path)] = string(data)
	}
	path := filepath.Join(dir, "a-1-py3-none-any.whl")
	wheeltest.Write(t, path, files)
	for _, e := range inspect(t, path).Extensions {
		want := wheel.CPUv1
		if e.Path == "a.libs/libother.so.1" {
			want = wheel.CPUv4
		}
		if e.CPU.Requires != want {
			t.Errorf("%s requires %s, want %s", e.Path, e.CPU.Requires, want)
		}
	}
}

// The JSON has the keys that scripts rely on (docs/schema/inspect.json), and a list where
// one is promised, though nothing be in it.
func TestContentsJSON(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pkg-1.0-py3-none-any.whl")
	wheeltest.Write(t, path, map[string]string{
		"pkg-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: pkg\nVersion: 1.0\n",
		"pkg-1.0.dist-info/WHEEL":    "Wheel-Version: 1.0\n",
		"pkg/32bit.so":               "\x7fELF\x01\x01\x01\x00" + strings.Repeat("\x00", 56),
		"pkg/empty.so":               sectioned(".text", 0, 1, 1),
	})
	none := []any{}
	var doc map[string]any
	if err := json.Unmarshal([]byte(text(t, inspect(t, path))), &doc); err != nil {
		t.Fatal(err)
	}
	list, _ := doc["extensions"].([]any)
	delete(doc, "extensions")
	if want := map[string]any{
		"name": "pkg", "version": "1.0", "build": "", "tags": []any{"py3-none-any"}, "requires": none, "ops": none, "torch": "", "cuda": "", "python": "", "torch_abi": nil, "variants": none,
	}; !reflect.DeepEqual(doc, want) || len(list) != 2 {
		t.Errorf("%v\nwant %v", doc, want)
	}
	for _, e := range list {
		e := e.(map[string]any)
		cpu := e["cpu"].(map[string]any)
		for _, key := range []string{"sass", "ptx", "needs", "rpath"} {
			if !reflect.DeepEqual(e[key], none) {
				t.Errorf("%v: %s is %v", e["path"], key, e[key])
			}
		}
		if !reflect.DeepEqual(cpu["beyond"], none) {
			t.Errorf("%v: beyond is %v", e["path"], cpu["beyond"])
		}
		for _, key := range []string{"path", "size", "machine", "glibc", "glibcxx", "cxxabi", "libgcc", "cxx11abi", "stripped", "unread"} {
			if _, ok := e[key]; !ok {
				t.Errorf("no %s in %v", key, e)
			}
		}
	}
}

// What a wheel of somebody else's is bound to is read from what it has.
func TestInspectForeign(t *testing.T) {
	for name, c := range map[string]struct {
		version, tag, requires string
		torch, cuda, python    string
	}{
		"flash-attn":   {"2.5.8+cu122torch2.3cxx11abiFALSE", "cp310-cp310-linux_x86_64", "torch", "2.3", "12.2", "3.10"},
		"pyg":          {"0.6.1+pt20cu118", "cp39-cp39-linux_x86_64", "numpy", "2.0", "11.8", "3.9"},
		"pinned":       {"0.15.2", "cp38-cp38-manylinux1_x86_64", "torch==2.0.1", "2.0", "", "3.8"},
		"stable ABI":   {"1.0", "cp38-abi3-manylinux_2_28_x86_64", "torch>=2.0", "", "", "3.8+"},
		"pure":         {"1.0", "py3-none-any", "torch>=2.0", "", "", ""},
		"three digits": {"1.0+cu130", "cp313-cp313-linux_x86_64", "torch", "", "13.0", "3.13"},
	} {
		path := filepath.Join(t.TempDir(), "other-"+c.version+"-"+c.tag+".whl")
		info := "other-" + c.version + ".dist-info/"
		wheeltest.Write(t, path, map[string]string{
			info + "METADATA": "Metadata-Version: 2.1\nName: other\nVersion: " + c.version + "\nRequires-Dist: " + c.requires + "\n",
			info + "WHEEL":    "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: " + c.tag + "\n",
		})
		got := inspect(t, path)
		if got.Torch != c.torch || got.CUDA != c.cuda || got.Python != c.python || len(got.Ops)+len(got.Extensions) > 0 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// What several CUDA runtimes may serve is bound to none; DeepSpeed is DeepSpeed
// however its name is written, and without ops bound to no torch.
func TestInspectBound(t *testing.T) {
	path := filepath.Join(t.TempDir(), "DeepSpeed-1.0-py3-none-any.whl")
	files := map[string]string{
		"deepspeed-1.0.dist-info/METADATA":        "Metadata-Version: 2.1\nName: DeepSpeed\nVersion: 1.0\n",
		"deepspeed-1.0.dist-info/WHEEL":           "Wheel-Version: 1.0\nTag: py3-none-any\n",
		"deepspeed/git_version_info_installed.py": "torch_info={'version': '2.15', 'cuda_version': '13.2'}\n",
	}
	wheeltest.Write(t, path, files)
	if c := inspect(t, path); c.Torch+c.CUDA != "" || c.CPU() != "" || !c.IsDeepSpeed() || c.Manifest().CPU != "" {
		t.Errorf("%+v", c)
	}
	files["deepspeed/ops/utils_op.so"] = needing("libcudart.so.12", 1)
	files["deepspeed/ops/other_op.so"] = needing("libcudart.so.12", 2)
	wheeltest.Write(t, path, files)
	if c := inspect(t, path); c.Torch != "2.15" || c.CUDA != "13.2" || len(c.Ops) != 2 {
		t.Errorf("%+v", c)
	}
	delete(files, "deepspeed/git_version_info_installed.py")
	wheeltest.Write(t, path, files)
	if c := inspect(t, path); c.CUDA != "12" {
		t.Errorf("%+v", c)
	}
	files["deepspeed/ops/other_op.so"] = needing("libcudart.so.11.0", 1)
	wheeltest.Write(t, path, files)
	if c := inspect(t, path); c.CUDA != "" {
		t.Errorf("%+v", c)
	}
}

// DeepSpeed's own wheels for Windows name their ops, and the torch and the CUDA that they were built for.
func TestInspectWindows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deepspeed-0.16.5-cp311-cp311-win_amd64.whl")
	wheeltest.Write(t, path, map[string]string{
		"deepspeed-0.16.5.dist-info/METADATA":                "Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.16.5\n",
		"deepspeed-0.16.5.dist-info/WHEEL":                   "Wheel-Version: 1.0\nTag: cp311-cp311-win_amd64\n",
		"deepspeed/git_version_info_installed.py":            "torch_info={'version': '2.6', 'cuda_version': '12.4'}\n",
		"deepspeed/ops/adam/cpu_adam_op.cp311-win_amd64.pyd": "MZ",
		"deepspeed/ops/aio_op.pyd":                           "MZ",
	})
	if c := inspect(t, path); !slices.Equal(c.Ops, []string{"aio", "cpu_adam"}) || c.Torch != "2.6" || c.CUDA != "12.4" || len(c.Extensions) > 0 {
		t.Errorf("%+v", c)
	}
}

// A broken ELF file is an error that names it, with exit code 4.
func TestInspectDamaged(t *testing.T) {
	path := wheeltest.Compiled(t, t.TempDir(), wheeltest.Options{})
	files := wheeltest.Read(t, path)
	fused := wheeltest.Member(t, files, "fused_adam_op.cpython-311-x86_64-linux-gnu.so")
	good := files[fused]
	i := strings.Index(good, "\x50\xed\x55\xba")
	for name, data := range map[string]string{
		"cut off":                good[:len(good)/2],
		"fat binary without end": good[:i+8] + strings.Repeat("\xff", 8) + good[i+16:],
		"section headers beyond": good[:40] + strings.Repeat("\xee", 6) + good[46:],
	} {
		files[fused] = data
		wheeltest.Write(t, path, files)
		_, err := wheel.Inspect(t.Context(), path)
		if fault.ExitCode(err) != fault.Wheel || !strings.Contains(err.Error(), fused) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestInspectStops(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("interrupted")
	cancel(stop)
	path := wheeltest.Compiled(t, t.TempDir(), wheeltest.Options{})
	if _, err := wheel.Inspect(ctx, path); err != stop { //nolint:errorlint // that and no more is said
		t.Error(err)
	}
	if _, err := wheel.Verify(ctx, path); err != stop { //nolint:errorlint // likewise
		t.Error(err)
	}
}
