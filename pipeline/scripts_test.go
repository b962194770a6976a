package pipeline

import (
	"bytes"
	"cmp"
	debugelf "debug/elf"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/wheel"
	"github.com/dsbuild/dsbuild/wheel/elf"
)

// wrapper puts a script that stands before a compiler into a folder of its own,
// beside a ccache that prints what it is asked to run.
func wrapper(t *testing.T, name string) (path, dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "ccache"), []byte("#!/bin/sh\necho \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	script, err := scripts.ReadFile("scripts/" + name)
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "c++")
	if err := os.WriteFile(path, script, 0o755); err != nil {
		t.Fatal(err)
	}
	return path, dir
}

func runs(t *testing.T, cmd *exec.Cmd, want string) {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if got := strings.TrimSpace(string(out)); err != nil || got != want {
		t.Errorf("%v: %v %s, want %s", cmd.Args, err, got, want)
	}
}

// prefixMaps are the options with which the compiler wrapper names files as on every machine, for sources in a folder.
func prefixMaps(src string) string {
	return "-fmacro-prefix-map=/work/stable/include/= -fmacro-prefix-map=/work/stable/thin/= -ffile-prefix-map=" + src + "=/ds -ffile-prefix-map=/e=/env -ffile-prefix-map=/c=/cuda "
}

// The compiler wrapper decides the level in the arguments, whatever the
// building machine is.
func TestCompilerWrapper(t *testing.T) {
	cxx, dir := wrapper(t, "cxx")
	for level, want := range map[string]string{
		"x86-64-v2": "-march=x86-64-v2 -D__SCALAR__",
		"x86-64-v3": "-march=x86-64-v3 -D__AVX256__",
		"x86-64-v4": "-march=x86-64-v4 -D__AVX512__",
	} {
		for _, simd := range []string{"-D__AVX512__", "-D__AVX256__", "-D__SCALAR__"} {
			cmd := exec.Command(cxx, "-march=native", simd, "-g", "-DX=a b", "x.cpp")
			cmd.Env = []string{
				"PATH=" + dir + ":/usr/bin:/bin", "DSBUILD_CPU=" + level, "DSBUILD_WORK=/work", "DSBUILD_SRC=/src",
				"DSBUILD_ENV=/e", "CUDA_HOME=/c", "DSBUILD_CXX=/usr/bin/g++-13", "DSBUILD_CCACHE=ccache",
			}
			runs(t, cmd, "/usr/bin/g++-13 "+prefixMaps("/src")+want+" -DX=a b x.cpp")
		}
	}
}

// For aarch64 there is one level. A cross compiler gets no flag of this machine, and looks first for what stands in for libraries.
func TestCompilerWrapperForAarch64(t *testing.T) {
	cxx, dir := wrapper(t, "cxx")
	for cross, want := range map[string]string{
		"":        prefixMaps("/src") + "-m64 -march=armv8-a -D__NEON__ -fcf-protection=full op.o",
		"aarch64": prefixMaps("/src") + "-L/work/lib -march=armv8-a -D__NEON__ op.o",
	} {
		cmd := exec.Command(cxx, "-m64", "-march=native", "-D__SVE__", "-fcf-protection=full", "op.o")
		cmd.Env = []string{
			"PATH=" + dir + ":/usr/bin:/bin", "DSBUILD_CPU=armv8-a", "DSBUILD_CROSS=" + cross, "DSBUILD_WORK=/work", "DSBUILD_SRC=/src",
			"DSBUILD_ENV=/e", "CUDA_HOME=/c", "DSBUILD_CXX=g++", "DSBUILD_CCACHE=ccache",
		}
		runs(t, cmd, "g++ "+want)
	}
}

// Sources are named by their way from where they are compiled, which is the same
// on every machine; other files by their place.
func TestCompilersNameSources(t *testing.T) {
	src := t.TempDir()
	from := filepath.Join(src, "build", "temp.linux")
	if err := os.MkdirAll(from, 0o755); err != nil {
		t.Fatal(err)
	}
	nvcc, dir := wrapper(t, "nvcc")
	cxx, _ := wrapper(t, "cxx")
	given := strings.Fields("-I" + src + "/csrc/includes -I" + src + " -I/env/include -c " + src + "/csrc/adam.cpp " + src + "/csrc/adam.cu -o " + src + "/build/adam.o")
	const named = "-I../../csrc/includes -I../.. -I/env/include -c "
	for _, c := range []struct{ program, dir, names, want string }{
		{cxx, from, "", "g++ " + prefixMaps(src) + named + "../../csrc/adam.cpp " + src + "/csrc/adam.cu -o " + src + "/build/adam.o"},
		{nvcc, from, "", "/c/bin/nvcc " + named + src + "/csrc/adam.cpp ../../csrc/adam.cu -o " + src + "/build/adam.o"},
		{nvcc, from, "yes", "/c/bin/nvcc " + named + src + "/csrc/adam.cpp -Xcudafe=--orig_src_path_name,/ds/csrc/adam.cu ../../csrc/adam.cu -o " + src + "/build/adam.o"},
		{nvcc, "/", "yes", "/c/bin/nvcc " + strings.Join(given, " ")}, // not in the sources
	} {
		cmd := exec.Command(c.program, given...)
		cmd.Dir = c.dir
		cmd.Env = []string{
			"PATH=" + dir + ":/usr/bin:/bin", "DSBUILD_CPU=x86-64-v3", "DSBUILD_WORK=/work", "DSBUILD_SRC=" + src, "DSBUILD_NVCC_NAMES=" + c.names,
			"DSBUILD_ENV=/e", "CUDA_HOME=/c", "DSBUILD_CXX=g++", "DSBUILD_CCACHE=ccache",
		}
		runs(t, cmd, c.want)
	}
}

// What an extension is linked with is what a node has: no path of the building
// machine, nothing it does not use of what a node may lack.
func TestCompilerWrapperLinks(t *testing.T) {
	cxx, dir := wrapper(t, "cxx")
	asNeeded := func(lib string) string { return "-Wl,--push-state,--as-needed " + lib + " -Wl,--pop-state" }
	for given, want := range map[string]string{
		"-shared op.o -Wl,-rpath,/opt/x -L/opt/x -ldeepspeedft -o op.so":         "-shared op.o -L/opt/x -ldeepspeedft -o op.so",
		"-shared op.o -Wl,--enable-new-dtags,-rpath,/opt/x -Wl,-R/opt/x -Wl,-O1": "-shared op.o -Wl,-O1",
		"-shared op.o -lcurand -lcudart -lcuda":                                  "-shared op.o " + asNeeded("-lcurand") + " -lcudart " + asNeeded("-lcuda"),
	} {
		cmd := exec.Command(cxx, strings.Fields(given)...)
		cmd.Env = []string{
			"PATH=" + dir + ":/usr/bin:/bin", "DSBUILD_CPU=x86-64-v3", "DSBUILD_WORK=/work", "DSBUILD_SRC=/s", "DSBUILD_TOOLS=/tools",
			"DSBUILD_ENV=/e", "CUDA_HOME=/c", "DSBUILD_CXX=g++", "DSBUILD_CCACHE=ccache",
		}
		runs(t, cmd, "g++ "+prefixMaps("/s")+want)
	}
}

// What stands in for libaio writes and reads a file as the kernel's interface does, tells errors by number, and shows
// nothing of itself in the library that is linked with it.
func TestLibaio(t *testing.T) {
	dir := t.TempDir()
	tools, err := filepath.Abs("scripts")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "op.cc"), []byte(libaioProgram), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-ec", `
gcc -Wall -Werror -fPIC -fvisibility=hidden -I "$0" -c "$0/libaio.c" && ar rc libaio.a libaio.o
g++ -Wall -Werror -I "$0" -fPIC -shared op.cc -L. -laio -o libop.so
readelf --dyn-syms -W libop.so | grep -c ' io_' || :
echo 'int run(); int main() { return run(); }' >main.cc && g++ main.cc ./libop.so -o main && ./main`, tools)
	cmd.Dir = dir
	runs(t, cmd, "0\nwrote 4 read 4 same, bad file -9, no queue -22")
}

const libaioProgram = `
#include <libaio.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
const int n = 4, size = 4096;
static iocb requests[n];
static iocb* all[n];
static int done(io_context_t queue, sigset_t* mask) {
  io_event events[n];
  int sum = 0;
  if (io_submit(queue, n, all) != n || io_pgetevents(queue, n, n, events, nullptr, mask) != n) return -1;
  for (auto& event : events) sum += event.res == (unsigned long)size;
  return sum;
}
int run() {
  static char in[n * size], out[n * size];
  memset(out, 'x', sizeof out);
  io_context_t queue;
  if (io_queue_init(n, &queue)) return 1;
  int fd = open("file", O_RDWR | O_CREAT, 0600);
  for (int i = 0; i < n; i++) io_prep_pwrite(all[i] = &requests[i], fd, out + i * size, size, i * size);
  int wrote = done(queue, nullptr);
  for (int i = 0; i < n; i++) io_prep_pread(all[i], fd, in + i * size, size, i * size);
  sigset_t none;
  sigemptyset(&none);
  int read = done(queue, &none);
  io_prep_pread(all[0], 12345, in, size, 0);
  int bad = io_submit(queue, 1, all);
  io_queue_release(queue);
  printf("wrote %d read %d %s, bad file %d, no queue %d\n", wrote, read, memcmp(in, out, sizeof in) ? "other" : "same", bad, io_queue_release(queue));
  return 0;
}
`

// agedSource asks for what the C and C++ libraries got after manylinux_2_28: functions with
// an older version, and some without.
const agedSource = `
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>
extern "C" int run(double x, const char *path) {
    std::mutex mutex; std::condition_variable condition; bool done = false;
    std::thread other([&] { std::lock_guard<std::mutex> held(mutex); done = true; condition.notify_all(); });
    std::unique_lock<std::mutex> held(mutex);
    condition.wait(held, [&] { return done; });
    bool waited = condition.wait_for(held, std::chrono::milliseconds(1)) == std::cv_status::timeout;
    other.join();
    struct stat entry;
    if (stat(path, &entry) || !waited || !dlopen(nullptr, RTLD_NOW)) return 1;
    auto value = std::make_shared<double>(pow(x, 3));
    return *value == 8 && std::filesystem::exists(path) && gettid() > 0 && std::string("x") + path == "x/" ? 0 : 2;
}
`

// linked links an object of agedSource by the wrapper, and runs it in another process.
func linked(t *testing.T, object []byte, floor string) []byte {
	t.Helper()
	python := python3(t)
	cxx, dir := wrapper(t, "cxx")
	tools, err := filepath.Abs("scripts")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "aged.o"), object, 0o644); err != nil {
		t.Fatal(err)
	}
	// As jobs.py has it: python is that of the environment.
	if err := os.WriteFile(filepath.Join(dir, "python"), []byte("#!/bin/sh\nexec '"+python+"' \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{cxx, "-shared", "aged.o", "-o", "aged.so"},
		{python, "-c", "import ctypes; f = ctypes.CDLL('./aged.so').run; f.argtypes = [ctypes.c_double, ctypes.c_char_p]; raise SystemExit(f(2.0, b'/'))"},
	} {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "DSBUILD_CPU=x86-64-v3", "DSBUILD_SRC=/s", "DSBUILD_TOOLS="+tools, "DSBUILD_WORK="+dir,
			"DSBUILD_ENV=/e", "CUDA_HOME=/c", "DSBUILD_CXX=g++", "DSBUILD_CCACHE=", "DSBUILD_FLOOR="+floor)
		runs(t, cmd, "")
		text, err := os.ReadFile(filepath.Join(dir, "aged.o"))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(text, object) {
			t.Error("the object was changed")
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "aged.so"))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// What is linked needs no newer libraries than the floor, whatever the machine
// has, shows no more symbols than before, and works.
func TestLinksForOlderLibraries(t *testing.T) {
	needs.Time(t)
	floors := wheel.PlatformFloors("2.28", wheel.X86)
	file := filepath.Join(t.TempDir(), "aged.o")
	compile := exec.Command("g++", "-std=c++17", "-O2", "-fPIC", "-c", "-x", "c++", "-", "-o", file)
	compile.Stdin = strings.NewReader(agedSource)
	runs(t, compile, "")
	object, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	plain, aged := linked(t, object, ""), linked(t, object, floors.Versions())
	read := func(text []byte) *elf.Object {
		t.Helper()
		o, err := elf.Read(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil }, int64(len(text)), nil)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	of := func(o *elf.Object) wheel.Floors {
		return wheel.Floors{Glibc: o.Floor("GLIBC_"), GLIBCXX: o.Floor("GLIBCXX_"), CXXABI: o.Floor("CXXABI_"), Libgcc: o.Floor("GCC_")}
	}
	before, after := read(plain), read(aged)
	if tag, err := wheel.Platform(of(after), wheel.X86); err != nil || tag > "manylinux_2_28" {
		t.Errorf("%s (%v), it was %+v: %+v", tag, err, of(before), after.Versions)
	}
	if before, after := definedSymbols(t, plain), definedSymbols(t, aged); before != after {
		t.Errorf("%d symbols are defined for others, it were %d", after, before)
	}
	// A machine whose libraries are older than the floor has nothing that is too new.
	if same := linked(t, object, "GLIBC_2.999 GLIBCXX_3.4.999 CXXABI_1.3.999 GCC_99.0.0"); !bytes.Equal(plain, same) {
		t.Error("it is linked differently where nothing is too new")
	}
}

// What stands in for a library has its name and those of its functions that are wanted, with their versions. What is linked with it
// runs with the library itself.
func TestStandIns(t *testing.T) {
	const text = `
import os, pathlib, subprocess, sys, types
sys.modules["torch"] = types.ModuleType("torch")
import standins
os.mkdir("here"), os.mkdir("in")
pathlib.Path("real.c").write_text("int one(void) { return 1; } int two(void) { return 2; } int other(void) { return 3; }")
pathlib.Path("real.map").write_text("V_1 { global: one; other; local: *; }; V_2 { global: two; };")
subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,-soname,libreal.so.7", "-Wl,--version-script=real.map", "-o", "here/libreal.so.7", "real.c"], check=True)
print(standins.make("here/libreal.so.7", "one|two", pathlib.Path("in/libreal.so")))
pathlib.Path("main.c").write_text("int one(void); int two(void); int main(void) { return one() + two(); }")
subprocess.run(["gcc", "main.c", "-Lin", "-lreal", "-o", "main"], check=True)
print(subprocess.run(["./main"], env={"LD_LIBRARY_PATH": "here"}).returncode)
said = subprocess.run(["readelf", "-VdW", "main"], stdout=subprocess.PIPE, text=True, check=True).stdout
print(all(word in said for word in ("[libreal.so.7]", "V_1", "V_2")))
pathlib.Path("main.c").write_text("int other(void); int main(void) { return other(); }")
print(subprocess.run(["gcc", "main.c", "-Lin", "-lreal", "-o", "main"], stderr=subprocess.DEVNULL).returncode)
`
	if out := pythonTest(t, sources(t, nil), text); out != "libreal.so stands in for libreal.so.7: 2 functions\n3\nTrue\n1\n" {
		t.Error(out)
	}
}

// definedSymbols counts the symbols that an object defines for others.
func definedSymbols(t *testing.T, text []byte) int {
	t.Helper()
	object, err := debugelf.NewFile(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	symbols, err := object.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	return len(slices.DeleteFunc(symbols, func(s debugelf.Symbol) bool {
		return s.Section == debugelf.SHN_UNDEF || debugelf.ST_BIND(s.Info) == debugelf.STB_LOCAL
	}))
}

// The names that a symbol which is too new is asked for by.
func TestFloorNames(t *testing.T) {
	const text = `
import collections
from floor import Libraries, version
l = Libraries.__new__(Libraries)
l.floors = dict(map(version, ["GLIBC_2.28", "GLIBCXX_3.4.24"]))
l.versions = collections.defaultdict(set, {
    "pow": {"GLIBC_2.2.5", "GLIBC_2.29"}, "sem_wait": {"GLIBC_2.2.5", "GLIBC_2.34"}, "open": {"GLIBC_2.2.5"}, "__libc_single_threaded": {"GLIBC_2.32"},
    "__isoc23_strtol": {"GLIBC_2.38"}, "strtol": {"GLIBC_2.2.5"}, "__isoc23_sscanf": {"GLIBC_2.38"}, "__isoc99_sscanf": {"GLIBC_2.7"}, "sscanf": {"GLIBC_2.2.5"},
    "three": {"GLIBC_2.3", "GLIBC_2.14", "GLIBC_2.28", "GLIBC_2.30"}, "_ZNSt18condition_variable4waitE": {"GLIBCXX_3.4.11", "GLIBCXX_3.4.30"},
})
l.default = {name: max(tags, key=version) for name, tags in l.versions.items()}
for name, want in {
    "pow": "pow@GLIBC_2.2.5", "sem_wait": "sem_wait@GLIBC_2.2.5", "three": "three@GLIBC_2.28", "__libc_single_threaded": "",
    "__isoc23_strtol": "strtol", "__isoc23_sscanf": "__isoc99_sscanf", "_ZNSt18condition_variable4waitE": "_ZNSt18condition_variable4waitE@GLIBCXX_3.4.11",
}.items():
    assert l.too_new(name) and l.instead(name) == want, (name, l.instead(name))
assert not l.too_new("open") and not l.too_new("of_another_library")
print("ok")
`
	if out := pythonTest(t, sources(t, nil), text); out != "ok\n" {
		t.Error(out)
	}
}

// deepspeedTree is what build.py needs of DeepSpeed's and of torch: builders that, like its own, write
// the archs they have left over to the environment.
var deepspeedTree = map[string]string{
	"op_builder/__init__.py": "import torch\nassert torch.cuda.get_device_capability() == (0, 0)\n",
	"op_builder/builder.py": `import os
class OpBuilder:
    floor, error_log = 0, None
    def __init__(self, name): self.name = name
    def is_compatible(self, verbose=False): return True
    def builder(self): return (self.name, "")
class CUDAOpBuilder(OpBuilder):
    def builder(self):
        os.environ["TORCH_CUDA_ARCH_LIST"] = ";".join(a for a in os.environ["TORCH_CUDA_ARCH_LIST"].split(";") if float(a) >= self.floor)
        return (self.name, os.environ["TORCH_CUDA_ARCH_LIST"])
`,
	"op_builder/all_ops.py": `from .builder import *
class Ampere(CUDAOpBuilder): floor = 8
class NoLibrary(OpBuilder):
    def is_compatible(self, verbose=False):
        if verbose: self.error_log = "async_io requires libaio"
        return False
class Crash(OpBuilder):
    def is_compatible(self, verbose=False): raise RuntimeError("no CUDA_HOME")
ALL_OPS = {b.name: b for b in (OpBuilder("utils"), CUDAOpBuilder("fused_adam"), Ampere("fp_quantizer"), CUDAOpBuilder("quantizer"), NoLibrary("async_io"), Crash("gds"))}
`,
	"torch/__init__.py":       "from . import cuda\n",
	"torch/cuda.py":           "def is_available(): return False\ndef get_device_capability(device=None): raise RuntimeError('no driver')\n",
	"torch/utils/__init__.py": "",
	"torch/utils/cpp_extension.py": `class BuildExtension:
    def build_extensions(self): pass
`,
	"setuptools/__init__.py": `from . import file_util
class Command:
    def copy_file(self, src, dst): file_util._copy_file_contents(src, dst)
`,
	"setuptools/file_util.py": `import shutil
def _copy_file_contents(src, dst, size=1): shutil.copyfile(src, dst)
`,
	"setup.py": `import os, sys
from op_builder.all_ops import ALL_OPS
assert __name__ == "__main__" and sys.argv == ["setup.py", "bdist_wheel"], sys.argv
print(*(ALL_OPS[n].builder() for n in ("utils", "fp_quantizer", "quantizer", "fused_adam")), os.environ["TORCH_CUDA_ARCH_LIST"])
`,
}

// Each op is compiled for its own archs, whatever those before it left over.
func TestBuildKeepsArchs(t *testing.T) {
	for ops, want := range map[string]string{
		"utils fused_adam":                  "('utils', '') ('fp_quantizer', '8.0') ('quantizer', '7.5;8.0') ('fused_adam', '7.5;8.0') 7.5;8.0",
		"fused_adam=7.5 fp_quantizer=8.0":   "('utils', '') ('fp_quantizer', '8.0') ('quantizer', '7.5;8.0') ('fused_adam', '7.5') 7.5;8.0",
		"quantizer=9.0;9.0 utils quantizer": "('utils', '') ('fp_quantizer', '8.0') ('quantizer', '7.5;8.0') ('fused_adam', '7.5;8.0') 7.5;8.0",
	} {
		runs(t, buildPy(t, ops), want)
	}
}

// An op that DeepSpeed would leave out silently is an error with its reason.
func TestBuildRefusesWhatIsLeftOut(t *testing.T) {
	out, err := buildPy(t, "utils async_io gds fused_adamw").CombinedOutput()
	want := "error: op async_io cannot be compiled here: async_io requires libaio\n" +
		"error: op gds cannot be compiled here: RuntimeError: no CUDA_HOME\n" +
		"error: op fused_adamw: this DeepSpeed has none of that name for CUDA (it has async_io, fp_quantizer, fused_adam, gds, quantizer, utils)\n"
	if err == nil || string(out) != want {
		t.Errorf("%v\n%s\nwant\n%s", err, out, want)
	}
}

// What setuptools would copy is linked, where a copy would have the same mode.
func TestBuildLinks(t *testing.T) {
	cmd := buildPy(t, "utils")
	dir := cmd.Env[len(cmd.Env)-1][len("PYTHONPATH="):]
	text := `import os, setuptools
os.umask(0o022)
def copied(mode, link=False):
    for old in "file", "to", "link":
        if os.path.lexists(old): os.remove(old)
    with open("to", "w"): pass
    with open("file", "w") as f: f.write("text")
    os.chmod("file", mode)
    if link: os.symlink("file", "link")
    setuptools.Command().copy_file("link" if link else "file", "to")
    with open("to") as f: text = f.read()
    return text, os.path.samefile("file", "to"), oct(os.lstat("to").st_mode)
print(copied(0o644), copied(0o755), copied(0o600), copied(0o644, link=True))
`
	if err := os.WriteFile(filepath.Join(dir, "setup.py"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	runs(t, cmd, "('text', True, '0o100644') ('text', False, '0o100644') ('text', False, '0o100644') ('text', False, '0o100644')")
}

// buildPy runs build.py in a tree.
func buildPy(t *testing.T, ops string) *exec.Cmd {
	t.Helper()
	python := python3(t)
	script, err := filepath.Abs("scripts/build.py")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range deepspeedTree {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(python, "-B", script, "bdist_wheel")
	cmd.Env = append(os.Environ(), "PYTHONPATH="+dir) // where it finds torch
	environment := append(os.Environ(), "DSBUILD_SRC="+dir, "DSBUILD_OPS="+ops, "TORCH_CUDA_ARCH_LIST=7.5;8.0")
	cmd.Stdin = strings.NewReader(strings.Join(environment, "\x00") + "\x00")
	return cmd
}

// Device code holds no line information unless debug information was asked
// for: it would hold times.
func TestNVCCWrapper(t *testing.T) {
	nvcc, dir := wrapper(t, "nvcc")
	for keep, want := range map[string]string{
		"":  "/cuda/bin/nvcc -O3 -DX=a b x.cu",
		"1": "/cuda/bin/nvcc -O3 -lineinfo -DX=a b x.cu -g",
	} {
		cmd := exec.Command(nvcc, "-O3", "-lineinfo", "-DX=a b", "x.cu", "-g")
		cmd.Env = []string{"PATH=" + dir + ":/usr/bin:/bin", "CUDA_HOME=/cuda", "DSBUILD_SRC=/src", "DSBUILD_CCACHE=ccache", "DSBUILD_KEEP_DEBUG=" + keep}
		runs(t, cmd, want)
	}
}

// The packages of a toolchain are named and hashed alike whoever installed them.
func TestStripNamesPackages(t *testing.T) {
	python := python3(t)
	cmd := exec.Command(python, "-B", "-c", `
import sys; sys.path.insert(0, "scripts")
import strip
print(strip.purl("deb/debian", "libstdc++6", "1:12.2.0-14+b1~x"), strip.purl("pypi", "torch", "2.15.0+cu132"))
rows = ["torch/a.py,sha256=x,1", '"torch/b,c.py",sha256=y,2', "torch/__pycache__/a.cpython-311.pyc,,", "../../../bin/torchrun,sha256=z,3",
        "torch-2.dist-info/INSTALLER,sha256=p,4", "torch-2.dist-info/RECORD,,"]
print(strip.installed("\n".join(rows)) == strip.installed("\r\n".join(reversed(rows))), strip.installed("\n".join(rows)).count("\n"))`)
	runs(t, cmd, "pkg:deb/debian/libstdc%2B%2B6@1:12.2.0-14%2Bb1~x pkg:pypi/torch@2.15.0%2Bcu132\nTrue 1")
}

// On a machine that is no image, the packages that a build does not use are not named.
func TestStripNamesUsedPackages(t *testing.T) {
	dir := t.TempDir()
	const query = `#!/bin/sh
case $1 in
--search) echo "gcc-12: /usr/bin/gcc-12"; exit 1;;
esac
printf 'gcc-12\tc-compiler, gcc (= 12)\tlibc6 (>= 2.36), binutils | lld (>= 1)\n'
printf 'libc6\t\tlibgcc-s1, libcrypt1 (>= 1:4.4.10-10~)\nlibgcc1\tlibgcc-s1 (= 1)\t\nbinutils\t\t, libc6\n'
printf 'chromium\t\tlibc6, libnss3\nlibnss3\t\tlibc6\n'
`
	if err := os.WriteFile(filepath.Join(dir, "dpkg-query"), []byte(query), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python3(t), "-B", "-c", `
import sys; sys.path.insert(0, "scripts")
import strip
print(sorted(strip.used_packages(["/usr/bin/gcc-12", "/opt/python3"])))`)
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	runs(t, cmd, "['binutils', 'gcc-12', 'libc6', 'libgcc1']")
}

// The byte code of a module that has not changed is taken from an earlier build.
func TestByteCodeIsKept(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "objects"), 0o755); err != nil {
		t.Fatal(err)
	}
	const text = `
import bytecode, hashlib, marshal, os, pathlib
os.mkdir("d")
def write(**modules):
    for name, text in modules.items():
        pathlib.Path("d", name + ".py").write_text(text)
def make():
    bytecode.make("d")
    return {name: code for (name, _), code in bytecode.made(pathlib.Path("modules")).items()}
write(a="x = 1", b="x = 2", broken="1 +")
first = make()
print(sorted(first), len(list(pathlib.Path("d/__pycache__").glob("*.pyc"))))
kept, = pathlib.Path("objects").glob("modules.*")
data = marshal.dumps({key: b"kept" for key in bytecode.made(kept)})
kept.write_bytes(hashlib.sha256(data).digest() + data)
write(b="x = 3")
second = make()
print(second["d/a.py"], second["d/b.py"] not in (b"kept", first["d/b.py"]))
os.environ["CCACHE_RECACHE"] = "1"
print(make()["d/a.py"] == first["d/a.py"])
del os.environ["CCACHE_RECACHE"]
kept.write_bytes(kept.read_bytes()[:-1])
print(make()["d/a.py"] == first["d/a.py"])`
	want := "['d/a.py', 'd/b.py'] 2\nb'kept' True\nTrue\nTrue\n"
	if out := pythonTest(t, dir, text, "DSBUILD_OUT="+dir, "CCACHE_RECACHE="); out != want {
		t.Errorf("got\n%s, want\n%s", out, want)
	}
}

// A module that has changed makes another stream of its folder alone, and of the list
// where its length has changed; together the streams are the modules in their order.
func TestStripKeepsStreamsOfByteCodeApart(t *testing.T) {
	python := python3(t)
	dir := t.TempDir()
	cmd := exec.Command(python, "-B", "-c", `
import sys; sys.path.insert(0, "scripts")
import bytecode, json, lzma, marshal, os, strip, zipfile
os.mkdir(os.environ["DSBUILD_OUT"])
bytecode.make()
names = ["d/__init__.py", "d/a.py", "d/a/b/__init__.py", "d/a/b/c/deep.py", "d/a/b-c/x.py", "d/a/b.py", "d/z/y/x/w/v.py", "d-1.data/scripts/s.py"]
def made(changed):
    wheel = os.path.join(sys.argv[1], "d.whl")
    with zipfile.ZipFile(wheel, "w") as z:
        for name in names + ["d/broken.py"]:
            z.writestr(name, "1 +" if "broken" in name else "x = %r" % (name + changed.get(name, "")))
    data = b"".join(map(strip.compressed, strip.byte_code(wheel)))
    text = lzma.decompress(data)
    list, _, code = text.partition(b"\n")
    found, at = {}, 0
    for name, size in json.loads(list):
        ns = {}
        exec(marshal.loads(code[at:at + size]), ns)
        found[name], at = ns["x"], at + size
    print(found == {n: n + changed.get(n, "") for n in names[:-1]})
    return data.split(b"\xfd7zXZ\0")[1:]
a, b = made({}), made({"d/a/b/c/deep.py": "!"})
print(len(a), len(b), [x == y for x, y in zip(a, b)].count(False))`, dir)
	// The list, d, d/a, d/a/b with what is below, d/a/b-c, d/z/y.
	cmd.Env = append(os.Environ(), "DSBUILD_IN="+dir, "DSBUILD_OUT="+filepath.Join(dir, "compile"), "DSBUILD_OBJECTS="+dir)
	runs(t, cmd, "True\nTrue\n6 6 2")
}

// Every patch that an op asks for is there, says why above its first file, and
// none is there for nobody.
func TestPatches(t *testing.T) {
	tables, err := compat.NewTables()
	if err != nil {
		t.Fatal(err)
	}
	asked := compat.Toolchain{Ops: tables.Ops, DeepSpeed: "0.19.4"}.Patches()
	if newer := (compat.Toolchain{Ops: tables.Ops, DeepSpeed: "0.19.5"}).Patches(); len(newer) != len(asked)-1 {
		t.Errorf("0.19.5 needs %q, and 0.19.4 %q", newer, asked)
	}
	entries, err := scripts.ReadDir("scripts/patches")
	if err != nil || len(asked) == 0 || len(entries) != len(asked) {
		t.Errorf("%d patches, the ops ask for %q, %v", len(entries), asked, err)
	}
	for _, name := range asked {
		text, err := scripts.ReadFile("scripts/patches/" + name + ".patch")
		why, _, ok := strings.Cut(string(text), "--- a/")
		if err != nil || !ok || len(why) < 80 {
			t.Errorf("patch %s: %v, why: %q", name, err, why)
		}
	}
}

// With the patch a release before 0.19.5 can be imported on a node with a GPU and no CUDA toolkit, where
// the builders of ops raise.
func TestImportCheckOfOldReleases(t *testing.T) {
	dir := writeTree(t, t.TempDir(), map[string]string{
		"deepspeed/__init__.py":     "from .git_version_info import compatible_ops\n",
		"deepspeed/ops/__init__.py": "",
		"deepspeed/ops/all_ops.py":  "class Op:\n    def __init__(self, home): self.home = home\n    def is_compatible(self):\n        if not self.home: raise Exception('CUDA_HOME does not exist')\n        return True\nALL_OPS = {'utils': Op('x'), 'fp_quantizer': Op(None)}\n",
		"deepspeed/git_version_info.py": strings.Repeat("\n", 25) + "# compatible_ops list is recreated for each launch\nfrom .ops.all_ops import ALL_OPS\n\ncompatible_ops = dict.fromkeys(ALL_OPS.keys(), False)\n" +
			"for op_name, builder in ALL_OPS.items():\n    op_compatible = builder.is_compatible()\n    compatible_ops[op_name] = op_compatible\n    compatible_ops[\"deepspeed_not_implemented\"] = False\n",
	})
	imports := func() (string, error) {
		cmd := exec.Command("python3", "-B", "-c", "import deepspeed; print(deepspeed.compatible_ops['utils'], deepspeed.compatible_ops['fp_quantizer'])")
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := imports(); err == nil || !strings.Contains(out, "CUDA_HOME does not exist") {
		t.Fatalf("without the patch: %v, %s", err, out)
	}
	patch, err := filepath.Abs("scripts/patches/import_check.patch")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("patch", "-p1", "-sf", "-d", dir, "-i", patch).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out, err := imports(); err != nil || out != "True False\n" {
		t.Errorf("%v, %s", err, out)
	}
}

// What uv finds wrong in the environment of a node fails the smoke step, but for
// what deepspeed-kernels says wrongly of itself.
func TestSmokeChecksTheEnvironment(t *testing.T) {
	const kernels = "The package `deepspeed-kernels` was built for a different platform"
	const cmake = "The package `deepspeed-kernels` requires `cmake>=3.24`, but it's not installed"
	const other = "The package `deepspeed` requires `hjson`, but it's not installed"
	for _, c := range []struct{ said, want string }{
		{"Using Python 3.11.7 environment at: /e\nChecked 3 packages in 78ms\nAll installed packages are compatible", ""},
		{"Checked 3 packages in 78ms\nFound 1 incompatibility\n" + kernels, ""},
		{"Checked 3 packages in 78ms\nFound 2 incompatibilities\n" + cmake + "\n" + kernels, ""},
		{"Checked 3 packages in 78ms\nFound 3 incompatibilities\n" + kernels + "\n" + other + "\n" + cmake, other},
		{"error: no such environment", "error: no such environment"},
	} {
		dir := t.TempDir()
		for name, text := range map[string]string{
			"uv":     "#!/bin/sh\n[ $2 != check ] || cat <<'END' >&2\n" + c.said + "\nEND\n",
			"python": "#!/bin/sh\n",
		} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command("sh", "scripts/smoke.sh", "utils")
		cmd.Env = []string{"PATH=" + dir + ":/usr/bin:/bin", "DSBUILD_ENV=/e", "DSBUILD_IN=" + dir, "DSBUILD_TOOLS=" + dir, "DSBUILD_WORK=" + dir}
		out, err := cmd.CombinedOutput()
		if got := strings.TrimSpace(string(out)); got != c.want || (err != nil) != (c.want != "") {
			t.Errorf("uv says\n%s\nsmoke.sh: %v, %q, want %q", c.said, err, got, c.want)
		}
	}
}

// Without a qemu-user that works nothing is tried of a wheel for another machine, and the smoke test says why.
func TestSmokeWithoutQEMU(t *testing.T) {
	out := t.TempDir()
	cmd := exec.Command("sh", "scripts/smoke.sh", "utils")
	cmd.Env = []string{"PATH=/usr/bin:/bin", "DSBUILD_CROSS=nomachine", "DSBUILD_OUT=" + out}
	text, err := cmd.CombinedOutput()
	why, err2 := os.ReadFile(filepath.Join(out, NotRunFile))
	const want = "qemu-user does not run a program of nomachine on this machine: "
	if err := cmp.Or(err, err2); err != nil || !strings.HasPrefix(string(why), want) || !strings.Contains(string(why), "/opt/nomachine/python3") {
		t.Errorf("%v, %q, want %q and its reason\n%s", err, why, want, text)
	}
}

// Where there is no GPU, a release that asks at import what it is capable of is told
// that it is of nothing; afterwards torch answers itself.
func TestSmokeImportsWithoutAGPU(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"torch/__init__.py":     "from . import cuda\n__version__ = '2.15.0'\n",
		"torch/cuda.py":         deepspeedTree["torch/cuda.py"],
		"deepspeed/__init__.py": "import torch\n__version__ = '0.17.0'\nmajor, _ = torch.cuda.get_device_capability()\nassert major < 8\n",
		"deepspeed/ops/op_builder/all_ops.py": `import torch
class Op:
    def load(self):
        torch.cuda.get_device_capability()
ALL_OPS = {"fused_adam": Op()}
`,
	} {
		path := filepath.Join(dir, name)
		if err := cmp.Or(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for op, want := range map[string]string{"": "deepspeed 0.17.0, torch 2.15.0: 0 ops work", "fused_adam": "RuntimeError: no driver"} {
		cmd := exec.Command("python3", append([]string{"scripts/smoke.py"}, strings.Fields(op)...)...)
		cmd.Env = append(os.Environ(), "PYTHONPATH="+dir, "PYTHONDONTWRITEBYTECODE=1", "DSBUILD_CPU=x86-64", "DSBUILD_OUT="+dir)
		out, _ := cmd.CombinedOutput()
		if got := strings.TrimSpace(string(out)); !strings.HasSuffix(got, want) {
			t.Errorf("%q: %s", op, got)
		}
	}
}
