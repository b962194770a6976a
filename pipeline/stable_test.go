package pipeline

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/compat/evidence"
	"github.com/dsbuild/dsbuild/wheel"
)

// fakeTorch is as much of torch as the loader needs: it notes what its ops are called with.
const fakeTorch = `
import os, types
__version__ = os.environ.get("TORCH", "2.15.0+cu132")
version = types.SimpleNamespace(cuda=os.environ.get("TORCH_CUDA", "13.2") or None)

class Tensor:
    def __repr__(self): return "tensor"
    def __getitem__(self, _): return self

def tensor(_values, device): return Tensor()

class Op:
    def __init__(self, name): self.name = name
    def default(self, *values):
        if self.name.endswith(".dsbuild_probe"):
            return os.environ.get("PROBE", "2/2 4 6, 2 of 2/2 4 6, absent, 0.5, -1099511627776, 1, \u00e9")
        called.append((self.name, values))
        return 4711 if self.name.endswith("__new") else self.name

class Space:
    def __init__(self, name): self.name = name
    def __getattr__(self, name): return Op(self.name + "." + name)

class Ops:
    def __getattr__(self, name): return Space(name)

ops, called = Ops(), []
`

// fakeOp is a library whose description is that of an op with functions, a class and an
// enumeration.
const fakeOp = `
#define TEXT(...) #__VA_ARGS__
const char *dsbuild_register(void) {
	return TEXT([
		{"function": "cast", "op": "cast", "doc": "one", "arguments": [{"type": "Tensor", "name": "x"}], "result": "Tensor"},
		{"function": "cast", "op": "cast__2", "doc": "many", "arguments": [{"type": "list Tensor", "name": "x"}], "result": "list Tensor"},
		{"function": "step", "op": "step", "doc": "", "arguments": [{"type": "int32"}, {"type": "uint64"}, {"type": "float"}, {"type": "bool"}], "result": "int32"},
		{"function": "put", "op": "put", "doc": "", "arguments": [{"type": "float", "name": "x"}], "result": "None"},
		{"function": "put", "op": "put__2", "doc": "", "arguments": [{"type": "int64", "name": "x"}], "result": "None"},
		{"class": "handle", "op": "handle__delete", "doc": "", "arguments": [{"type": "int64"}], "result": "None"},
		{"method": "__init__", "of": "handle", "op": "handle__new", "doc": "", "arguments": [{"type": "int32", "name": "size", "default": 8}, {"type": "str", "name": "name"}], "result": "int64"},
		{"method": "read", "of": "handle", "op": "handle_read", "doc": "reads", "arguments": [{"type": "class handle"}, {"type": "str", "name": "file"}, {"type": "int64", "name": "offset", "default": 0}], "result": "int64"},
		{"enum": "Kind"}, {"value": "Even", "of": "Kind", "number": 0}, {"value": "Odd", "of": "Kind", "number": 1}, {"export": "Kind"},
		{"function": "view", "op": "view", "doc": "", "arguments": [{"type": "tuple int64"}, {"type": "optional Tensor"}, {"type": "optional int32", "name": "n", "default": null}], "result": "Tensor"},
		{"function": "pick", "op": "pick", "doc": "", "arguments": [{"type": "tuple int64"}], "result": "None"},
		{"function": "pick", "op": "pick__2", "doc": "", "arguments": [{"type": "list int64"}], "result": "None"},
		{"function": "kind", "op": "kind", "doc": "", "arguments": [{"type": "enum Kind", "name": "k"}], "result": "None"}
	]);
}
`

const loads = `
import importlib.util, os, pathlib, sys, zlib
sys.path.insert(0, os.getcwd())
import torch
from torch import Tensor
spec = importlib.util.spec_from_file_location("_stable_abi", os.path.join(os.environ["DSBUILD_TOOLS"], "stable", "loader.py"))
loader = importlib.util.module_from_spec(spec)
spec.loader.exec_module(loader)

def op(cuda=(), name="x_op", variants=("",)):
    made = {"__name__": "deepspeed.ops." + name, "__file__": os.path.abspath(name + ".py")}
    built = pathlib.Path(os.environ.get("BUILT", "libx_op.so")).read_bytes()
    loader.expose(made, dict.fromkeys(variants, zlib.crc32(built)), cuda)
    return made

def refused(do):
    try:
        do()
    except (ImportError, TypeError) as e:
        return f"{type(e).__name__}: {e}"
    return "nothing was refused"
`

// stableOp makes a folder with the fake torch and the library of an op.
func stableOp(t *testing.T) string { return stableOpOf(t, fakeOp) }

// stableOpOf is stableOp with another source of the library.
func stableOpOf(t *testing.T, source string) string {
	t.Helper()
	dir := sources(t, map[string]string{"torch/__init__.py": fakeTorch, "op.c": source})
	cmd := exec.Command("gcc", "-shared", "-fPIC", "-o", filepath.Join(dir, "libx_op.so"), filepath.Join(dir, "op.c"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir
}

// The loader makes the module that pybind11 would: functions that take what their signatures take,
// by place and by name, with defaults and overloads, and refuse the rest in pybind11's words.
func TestStableLoader(t *testing.T) {
	const text = loads + `
x = op()
assert x["__file__"].endswith("/libx_op.so"), x["__file__"]
t, cast, step, put, handle, Kind = Tensor(), x["cast"], x["step"], x["put"], x["handle"], x["Kind"]

def calls(do, name, *values):
    torch.called.clear()
    do()
    assert torch.called == [("dsbuild_x_op." + name, values)], torch.called
    assert [type(v) for v in torch.called[0][1]] == [type(v) for v in values], torch.called

calls(lambda: cast(t), "cast", t)
calls(lambda: cast(x=t), "cast", t)
calls(lambda: cast([t, t]), "cast__2", [t, t])
calls(lambda: cast((t,)), "cast__2", [t])
calls(lambda: step(1, 2, 3, True), "step", 1, 2, 3.0, True)
calls(lambda: step(True, 2**64 - 1, 1.5, None), "step", 1, -1, 1.5, False)
# The overload that needs no conversion is taken before an earlier one that does.
calls(lambda: put(1), "put__2", 1)
calls(lambda: put(1.0), "put", 1.0)
calls(lambda: x["kind"](Kind.Odd), "kind", 1)
assert x["Odd"] is Kind.Odd and cast.__name__ == "cast" and cast.__doc__ == "one\n\nmany" and cast.__module__ == "deepspeed.ops.x_op"

for wrong in [
    lambda: cast(), lambda: cast(None), lambda: cast("x"), lambda: cast([None]), lambda: cast(t, t), lambda: cast(t, x=t), lambda: cast(y=t),
    lambda: step(2**31, 1, 1, True), lambda: step(1, -1, 1, True), lambda: step(1.0, 1, 1, True), lambda: step("1", 1, 1, True),
    lambda: step(1, 1, "1", True), lambda: step(1, 1, t, True), lambda: step(arg0=1), lambda: x["kind"](1), lambda: x["kind"]("Odd"),
]:
    torch.called.clear()
    assert refused(wrong).startswith("TypeError: ") and not torch.called, refused(wrong)
assert refused(lambda: step(1, t, 1.0, True)) == """TypeError: step(): incompatible function arguments. The following argument types are supported:
    1. (arg0: int, arg1: int, arg2: float, arg3: bool) -> int

Invoked with: 1, tensor, 1.0, True""", refused(lambda: step(1, t, 1.0, True))

torch.called.clear()
h = handle(name="n")
assert torch.called == [("dsbuild_x_op.handle__new", (8, "n"))]
calls(lambda: h.read("f"), "handle_read", 4711, "f", 0)
calls(lambda: h.read(b"f", offset=3), "handle_read", 4711, "f", 3)
assert "(self: handle, file: str, offset: int = 0) -> int" in refused(lambda: h.read(3))
assert refused(lambda: handle(1)).startswith("""TypeError: __init__(): incompatible constructor arguments. The following argument types are supported:
    1. deepspeed.ops.x_op.handle(size: int = 8, name: str)

Invoked with: <deepspeed.ops.x_op.handle object"""), refused(lambda: handle(1))
import pickle
assert refused(lambda: pickle.dumps(h)) == "TypeError: cannot pickle 'handle' object"
class Half(handle):
    def __init__(self): pass
assert refused(lambda: Half().read("f")).startswith("TypeError: read(): incompatible function arguments")
assert refused(lambda: handle.read(t, "f")).startswith("TypeError: read(): incompatible function arguments")
torch.called.clear()
del h
assert torch.called == [("dsbuild_x_op.handle__delete", (4711,))], torch.called
`
	pythonTest(t, stableOp(t), text)
}

// A tuple is taken as pybind11 takes it: no list, and its elements are looked at only when the function
// runs, so that a wrong one is a RuntimeError. What is optional may be None.
func TestStableLoaderTuplesAndOptionals(t *testing.T) {
	const text = loads + `
x = op()
t, view, pick = Tensor(), x["view"], x["pick"]

def given(do):
    torch.called.clear()
    do()
    return torch.called

assert given(lambda: view((2, 3), t)) == [("dsbuild_x_op.view", ([2, 3], t, None))], torch.called
assert given(lambda: view((), None, 7)) == [("dsbuild_x_op.view", ([], None, 7))], torch.called
assert given(lambda: view((2,), None, n=None)) == [("dsbuild_x_op.view", ([2], None, None))], torch.called
class Size(tuple): pass  # as torch.Size is
assert given(lambda: view(Size((4,)), t)) == [("dsbuild_x_op.view", ([4], t, None))], torch.called
# Of two overloads the one for what was given.
assert given(lambda: pick((1, 2))) == [("dsbuild_x_op.pick", ([1, 2],))], torch.called
assert given(lambda: pick([1, 2])) == [("dsbuild_x_op.pick__2", ([1, 2],))], torch.called

torch.called.clear()
for wrong in (lambda: view([2, 3], t), lambda: view(2, t), lambda: view(None, t), lambda: view((2,)), lambda: view((2,), 1), lambda: view((2,), [t]), lambda: view((2,), t, 2**31), lambda: view((2,), t, "1")):
    assert refused(wrong).startswith("TypeError: view(): incompatible function arguments"), refused(wrong)
for wrong in ((2, "3"), (2, None), (2**63,), (1.5,), (t,)):
    try:
        view(wrong, t)
    except RuntimeError as e:
        assert str(e).startswith("Unable to cast Python instance of type <class 'tuple'>"), e
    else:
        raise AssertionError(wrong)
assert not torch.called, torch.called
assert "1. (arg0: tuple, arg1: torch.Tensor | None, n: int | None = None) -> torch.Tensor" in refused(lambda: view()), refused(lambda: view())
`
	pythonTest(t, stableOp(t), text)
}

// A torch that hands values over in another way than it promises is refused, and so is a library
// that does not register.
func TestStableLoaderProbes(t *testing.T) {
	dir := stableOp(t)
	for _, told := range []string{"", "2/2 4 6, 2 of 2/2 4 6, absent, 0.5, 0, 1, \u00e9"} {
		got := pythonTest(t, dir, loads+"print(refused(op))", "PROBE="+told)
		if want := "Refused: DeepSpeed's op x does not work with torch 2.15.0+cu132, whose stable ABI differs from torch 2.10's: got '"; !strings.HasPrefix(got, want) || !strings.Contains(got, "\nhint: report it") {
			t.Errorf("%q: %s\nwant %s", told, got, want)
		}
	}
	const unread = loads + `
torch.tensor = lambda *_, **__: type("FakeTensor", (Tensor,), {})()
print(refused(op))`
	if got := pythonTest(t, dir, unread, "PROBE=read at address 0"); !strings.HasPrefix(got, "nothing was refused") {
		t.Errorf("under FakeTensorMode: %s", got)
	}
	failing := stableOpOf(t, `const char *dsbuild_register(void) { return "{\"error\": \"twice\"}"; }`)
	if got, want := pythonTest(t, failing, loads+"print(refused(op))"), "Refused: DeepSpeed's op x cannot be registered with torch 2.15.0+cu132: twice\nhint: one process can have one DeepSpeed"; !strings.HasPrefix(got, want) {
		t.Errorf("%s\nwant %s", got, want)
	}
}

// A torch that lacks a library that the op needs is refused in the words of the linker.
func TestStableLoaderWithoutTorchCUDA(t *testing.T) {
	dir := stableOp(t)
	for _, args := range [][]string{
		{"-o", "libtorch_cuda.so", "-Wl,-soname,libtorch_cuda.so", "-x", "c", "/dev/null"},
		{"-o", "libx_op.so", "op.c", "-Wl,--no-as-needed", "-L.", "-ltorch_cuda"},
	} {
		gcc := exec.Command("gcc", append([]string{"-shared", "-fPIC", "-nostdlib"}, args...)...)
		gcc.Dir = dir
		if out, err := gcc.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	if err := os.Remove(filepath.Join(dir, "libtorch_cuda.so")); err != nil {
		t.Fatal(err)
	}
	got := pythonTest(t, dir, loads+"print(refused(op))")
	if want := "Refused: DeepSpeed's op x cannot be loaded with torch 2.15.0+cu132: libtorch_cuda.so: cannot open shared object file: No such file or directory\nhint: report it, with this torch and the wheel's name"; !strings.HasPrefix(got, want) {
		t.Errorf("%s\nwant %s", got, want)
	}
}

// A torch that cannot have the op is refused before anything is loaded, with a hint.
func TestStableLoaderRefuses(t *testing.T) {
	dir := stableOp(t)
	for name, c := range map[string]struct {
		torch, cuda, call, want string
	}{
		"older torch":    {"2.9.1+cu128", "12.8", `op(name="none_op")`, "needs torch 2.10 or newer, but this environment has torch 2.9.1+cu128\nhint: install a newer torch, or a DeepSpeed that was built for this one (dsbuild wheel --abi torch --torch 2.9)"},
		"no CUDA":        {"2.12.0+cpu", "", `op(("13",), "none_op")`, "needs a torch for CUDA 13, but this torch 2.12.0+cpu has no CUDA\nhint: install a torch for CUDA 13"},
		"no CUDA of two": {"2.12.0+cpu", "", `op(("12", "13"), "none_op")`, "needs a torch for CUDA 12 or 13, but this torch 2.12.0+cpu has no CUDA\nhint: install a torch for CUDA 12 or 13"},
		"other CUDA":     {"2.10.0+cu128", "12.8", `op(("13",), "none_op")`, "was built for CUDA 13, but this torch 2.10.0+cu128 is built for CUDA 12.8\nhint: install a torch for CUDA 13, or a DeepSpeed that was built for CUDA 12"},
		"older CUDA":     {"2.10.0+cu118", "11.8", `op(("12", "13"), "none_op")`, "was built for CUDA 12 and 13, but this torch 2.10.0+cu118 is built for CUDA 11.8\nhint: install a torch for CUDA 12 or 13, or a DeepSpeed that was built for CUDA 11"},
		"no runtime":     {"2.15.0+cu992", "99.2", `op(("99",), "none_op")`, "needs libcudart.so.99, but it cannot be loaded: libcudart.so.99: cannot open shared object file: No such file or directory\nhint: install the CUDA 99 runtime"},
		"no library":     {"2.15.0", "13.2", `op(name="none_op")`, "cannot be loaded: "},
		"nightly, older": {"2.9.0.dev20250801+cu130", "13.0", `op(name="none_op")`, "needs torch 2.10 or newer, but this environment has torch 2.9.0.dev20250801+cu130\nhint: "},
		"nightly":        {"2.16.0.dev20261120+cu132", "13.2", `op()`, ""},
		"nothing wrong":  {"2.10.0a0+git1", "", `op()`, ""},
	} {
		got := pythonTest(t, dir, loads+"print(refused(lambda: "+c.call+"))", "TORCH="+c.torch, "TORCH_CUDA="+c.cuda)
		want := "Refused: DeepSpeed's op none " + c.want
		if c.want == "" {
			want = "nothing was refused"
		}
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s\nwant %s", name, got, want)
		}
	}
}

// A library that is not what was built is refused: the dynamic loader would be killed by a page beyond its end, and changed code
// would compute anything. Another variant is of no account.
func TestStableLoaderRefusesDamage(t *testing.T) {
	dir := stableOp(t)
	library := filepath.Join(dir, "libx_op.so")
	built, err := os.ReadFile(library)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, content []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write("built", built)
	changed := func(at int) []byte {
		damaged := bytes.Clone(built)
		damaged[at] ^= 1
		return damaged
	}
	for _, damaged := range [][]byte{
		built[:len(built)-1], built[:5000], built[:10], {}, append(bytes.Clone(built), 0), make([]byte, len(built)), changed(0), changed(len(built) / 2), changed(len(built) - 1),
	} {
		write("libx_op.so", damaged)
		got := pythonTest(t, dir, loads+"print(refused(op))", "BUILT=built")
		if want := fmt.Sprintf("Refused: DeepSpeed's op x cannot be loaded: %s: damaged: these %d bytes are not what was built\nhint: install the wheel again", library, len(damaged)); !strings.HasPrefix(got, want) {
			t.Errorf("%s\nwant %s", got, want)
		}
		write("libx_op.v2.so", built)
		write("libx_op.v3.so", damaged)
		const two = loads + `
loader.cpu_flags = set
print(refused(lambda: op(variants=("v2", "v3"))))
os.environ["DSBUILD_CPU_LEVEL"] = "v3"
print(refused(lambda: op(variants=("v2", "v3"))))`
		if got := pythonTest(t, dir, two, "BUILT=built"); !strings.HasPrefix(got, "nothing was refused\nRefused: ") || !strings.Contains(got, "libx_op.v3.so: damaged") {
			t.Errorf("v3 is damaged: %s", got)
		}
	}
}

// Of several libraries the one for the CUDA of torch is loaded, or for the highest level that the CPU has and that
// DSBUILD_CPU_LEVEL allows. A CPU below the level of a wheel is refused before anything is loaded.
func TestStableLoaderChooses(t *testing.T) {
	dir := stableOp(t)
	library, err := os.ReadFile(filepath.Join(dir, "libx_op.so"))
	if err != nil {
		t.Fatal(err)
	}
	for _, variant := range []string{"cu12", "cu13", "v2", "v3"} {
		if err := os.WriteFile(filepath.Join(dir, "libx_op."+variant+".so"), library, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const v2 = "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3"
	const v3 = v2 + " avx avx2 bmi1 bmi2 f16c fma abm movbe xsave"
	const v4 = v3 + " avx512f avx512bw avx512cd avx512dq avx512vl"
	const both, levels = `op(("12", "13"), variants=("cu12", "cu13"))`, `op(variants=("v2", "v3"))`
	for name, c := range map[string]struct {
		cuda, level, flags, forced, call, want string
	}{
		"CUDA 12":         {"12.8", "v2", v2, "", both, "libx_op.cu12.so"},
		"CUDA 13":         {"13.2", "v2", v3, "", both, "libx_op.cu13.so"},
		"one CUDA":        {"13.2", "v2", v3, "", `op(("13",))`, "libx_op.so"},
		"level 2":         {"", "v2", v2, "", levels, "libx_op.v2.so"},
		"level 3":         {"", "v2", v3, "", levels, "libx_op.v3.so"},
		"level 4":         {"", "v2", v4, "", levels, "libx_op.v3.so"},
		"a part of 3":     {"", "v2", strings.Replace(v3, " fma ", " ", 1), "", levels, "libx_op.v2.so"},
		"forced":          {"", "v2", v4, "v2", levels, "libx_op.v2.so"},
		"forced higher":   {"", "v2", v2, "v3", levels, "libx_op.v2.so"},
		"hidden":          {"", "v2", "", "", levels, "libx_op.v2.so"},
		"hidden, forced":  {"", "v2", "", "v3", levels, "libx_op.v3.so"},
		"hidden, one":     {"", "v4", "", "", `op()`, "libx_op.so"},
		"other machine":   {"", "", "", "", `op()`, "libx_op.so"},
		"level 3 of 4":    {"", "v4", v3, "", `op()`, "Refused: DeepSpeed's op x was built for CPUs of level x86-64-v4, but this CPU lacks avx512f avx512bw avx512cd avx512dq avx512vl\nhint: install a DeepSpeed that was built for this CPU (dsbuild wheel --cpu x86-64-v3)"},
		"level 1":         {"", "v2", "sse2", "", levels, "Refused: DeepSpeed's op x was built for CPUs of level x86-64-v2, but this CPU lacks cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3\nhint: use another machine, or DeepSpeed without compiled ops"},
		"forced too low":  {"", "v3", v3, "v2", `op()`, "Refused: DeepSpeed's op x was built for CPUs of level x86-64-v3, but DSBUILD_CPU_LEVEL is v2\nhint: unset DSBUILD_CPU_LEVEL"},
		"forced to a lie": {"", "v2", v3, "x86-64-v2", levels, "Refused: DeepSpeed's op x cannot be loaded: DSBUILD_CPU_LEVEL is 'x86-64-v2'\nhint: set it to v2, v3 or v4"},
	} {
		const text = loads + `
loader.LEVEL, loader.cpu_flags = os.environ["LEVEL"], lambda: set(os.environ["FLAGS"].split())
loader.ctypes.CDLL = lambda path, load=loader.ctypes.CDLL: None if path.startswith("libcudart.so.") else load(path)
made = []
said = refused(lambda: made.append(%s))
print(os.path.basename(made[0]["__file__"]) if made else said)`
		got := pythonTest(t, dir, fmt.Sprintf(text, c.call), "TORCH_CUDA="+c.cuda, "LEVEL="+c.level, "FLAGS="+c.flags, "DSBUILD_CPU_LEVEL="+c.forced)
		if !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %s\nwant %s", name, got, c.want)
		}
	}
	// The kernel of this machine tells something, or nothing.
	if got := pythonTest(t, dir, loads+`print(" ".join(sorted(loader.cpu_flags())))`); runtime.GOARCH == "amd64" && !strings.Contains(got, "sse2") {
		t.Errorf("flags of this CPU: %q", got)
	}
	const odd = loads + `
pathlib.Path("cpuinfo").write_bytes(b"model name\t: CPU\xae\nflags\t\t: sse2")
loader.open = lambda _, **how: open("cpuinfo", **how)
print(*loader.cpu_flags())`
	if got := pythonTest(t, dir, odd); got != "sse2\n" {
		t.Errorf("flags beside a name that is no text: %q", got)
	}
}

// DeepSpeed compares torch_info with the torch that runs, and its accelerator with the one that it finds. It gets equal ones:
// the loader refuses what does not fit. Without a GPU the ops with device code are not installed.
func TestStableRecord(t *testing.T) {
	dir := sources(t, map[string]string{
		"torch/__init__.py":     fakeTorch,
		"deepspeed/__init__.py": "", "deepspeed/accelerator.py": "import os, types\ndef get_accelerator(): return types.SimpleNamespace(_name=os.environ['FOUND'])\n",
	})
	for _, c := range []struct{ torch, running, found, want string }{
		{"2.11.0+cu130", "13.0", "cuda", "2.11 13.0 False cuda {'cpu_adam': 1, 'fused_adam': 1, 'gds': False}"},
		{"2.10.1+cu128", "12.8", "cpu", "2.10 12.8 False cpu {'cpu_adam': 1, 'fused_adam': False, 'gds': False}"},
		{"2.9.1+cu128", "12.8", "xpu", "2.9 12.8 False cuda {'cpu_adam': 1, 'fused_adam': 1, 'gds': False}"},
		{"2.12.0+cpu", "", "cpu", "2.12 13.2 False cpu {'cpu_adam': 1, 'fused_adam': False, 'gds': False}"},
	} {
		const text = loads + `
told = loader.torch_info({"version": "2.15", "cuda_version": "13.2", "bf16_support": False}, "13")
name, ops = loader.accelerator({"cpu_adam": 1, "fused_adam": 1, "gds": False}, ("fused_adam",))
print(told["version"], told["cuda_version"], told["bf16_support"], name, ops)`
		got := pythonTest(t, dir, text, "TORCH="+c.torch, "TORCH_CUDA="+c.running, "FOUND="+c.found)
		if strings.TrimSpace(got) != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// The oldest torch is said in Go and in the loader, which a node has alone.
func TestStableTorch(t *testing.T) {
	text, err := scripts.ReadFile("scripts/stable/loader.py")
	if err != nil {
		t.Fatal(err)
	}
	if m := regexp.MustCompile(`(?m)^TORCH = "(.*?)"`).FindSubmatch(text); m == nil || string(m[1]) != compat.StableTorch {
		t.Errorf("the loader serves torch %s, dsbuild %s", m[1], compat.StableTorch)
	}
}

// What torch makes of an extension is changed: no header and no library of its C++ interface stays.
func TestStableExtension(t *testing.T) {
	const text = `
import os, pathlib, sys, types
sys.path.insert(0, os.getcwd())
import stable
torch = os.path.join(os.getcwd(), "torch", "include")
assert stable.torch_include() == torch

def extension(libraries, args):
    return types.SimpleNamespace(include_dirs=["csrc/includes", torch, torch + "/torch/csrc/api/include", "/cuda/include"],
        libraries=libraries, extra_compile_args=args, extra_link_args=["-laio"])

cpu = extension(["c10", "torch", "torch_cpu", "torch_python"], ["-O3"])
stable.adapt(cpu, ["/own", "/thin"])
assert cpu.include_dirs == ["/own", "/thin", "csrc/includes", "/cuda/include"], cpu.include_dirs
assert cpu.libraries == []
assert cpu.extra_compile_args == ["-O3", "-DTORCH_TARGET_VERSION=0x020a000000000000ULL", "-fno-gnu-unique", "-Wno-attributes"], cpu.extra_compile_args
assert cpu.extra_link_args[1:] == ["-Wl,--as-needed", "-ltorch_cpu", "-ldl", "-lpthread", "-laio"], cpu.extra_link_args

gpu = extension(["cublas", "c10", "torch", "torch_cpu", "torch_python", "cudart", "c10_cuda", "torch_cuda"], {"cxx": ["-O3"], "nvcc": ["--use_fast_math"]})
stable.adapt(gpu, ["/own", "/thin"])
assert "-DUSE_CUDA" in gpu.extra_compile_args["cxx"] and gpu.extra_compile_args["nvcc"][-2:] == ["-Xcompiler", "-fno-gnu-unique,-Wno-attributes"]
assert [a for a in gpu.extra_link_args if a.startswith("-l")] == ["-ltorch_cpu", "-ltorch_cuda", "-lcudart", "-lcublas", "-ldl", "-lpthread", "-laio"]

assert stable.file_name("deepspeed.ops.adam.cpu_adam_op") == "deepspeed/ops/adam/libcpu_adam_op.so"
assert stable.target("2.10") == "0x020a000000000000ULL" and stable.target("3.0") == "0x0300000000000000ULL"

include = stable.lay_headers(pathlib.Path("laid"))
assert sorted(os.listdir("laid/thin/torch")) == ["csrc", "headeronly"] and os.path.exists(include[0] + "/torch/extension.h")
stable.refuse_headers([include[1] + "/torch/headeronly/x.h", "/usr/include/math.h"])
for wrong, words in ((lambda: stable.refuse_headers([torch + "/ATen/ATen.h"]), "which is not stable: " + torch + "/ATen/ATen.h"),):
    try:
        wrong()
    except SystemExit as e:
        assert words in str(e), e
    else:
        raise AssertionError(words)
`
	dir := sources(t, map[string]string{"torch/__init__.py": "", "torch/include/torch/headeronly/x.h": ""})
	pythonTest(t, dir, text, "DSBUILD_TORCH_MIN=2.10")
}

// A plan of the stable ABI, which is the default for these ops, has what it is built with, and another none of it.
func TestStablePlan(t *testing.T) {
	tables, err := compat.NewTables()
	if err != nil {
		t.Fatal(err)
	}
	for _, abi := range []wheel.ABI{"", wheel.StableABI, wheel.TorchMinor} {
		tc, err := tables.Resolve(wheel.Request{Ops: []string{"cpu_adam", "utils"}, ABI: abi})
		if err != nil {
			t.Fatal(err)
		}
		p := planOf(t, Release(tc.DeepSpeed, tc.Source), image(), false, tc)
		stable := abi != wheel.TorchMinor
		for _, name := range []string{"stable.py", "stable/loader.py", "stable/exports.map", "stable/include/torch/extension.h", "stable/include/dsbuild/tensor.h"} {
			if _, has := p.Scripts[name]; has != stable {
				t.Errorf("--abi %q: %s: %v", abi, name, has)
			}
		}
		if m := p.Manifest; (m.TorchABI != nil) != stable || stable && (m.Torch != "2.10" || m.CUDA != "" || m.Python != "3.10+") {
			t.Errorf("--abi %q: %+v", abi, m)
		}
	}
}

// The proofs of ops are for one port of torch's headers. A change of it, other than of comments, needs new ones:
// make test-full PART=stable. Then -update writes the digest.
func TestPortIsProven(t *testing.T) {
	var files []string
	for _, root := range []string{"scripts/stable.py", "scripts/stable", "scripts/patches"} {
		if err := fs.WalkDir(scripts, root, func(name string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				files = append(files, name)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	var all strings.Builder
	for _, name := range files {
		text, err := scripts.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		digest, err := evidence.DigestOf(name, string(text))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&all, name, digest)
	}
	want := newTables(t).Evidence.Port
	if got := evidence.Digest(all.String()); got != want && *update {
		const path = "../compat/data/evidence.json"
		text, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(path, bytes.Replace(text, []byte(`"port": "`+want+`"`), []byte(`"port": "`+got+`"`), 1), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	} else if got != want {
		t.Errorf("the port has the digest %s, want %s, with which the ops are proven: prove them again (make test-full PART=stable), then -update", got, want)
	}
}
