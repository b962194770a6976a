package pipeline

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// python3 is the program; where there is none the test is skipped, but fails in CI.
func python3(t *testing.T) string {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	return python
}

// pythonTest runs lines of Python beside the scripts, as a build's own do.
func pythonTest(t *testing.T, dir, text string, env ...string) string {
	t.Helper()
	python := python3(t)
	tools, err := filepath.Abs("scripts")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python, "-c", text)
	cmd.Dir = dir
	cmd.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "PYTHONPATH=" + tools, "PYTHONDONTWRITEBYTECODE=1",
		"DSBUILD_TOOLS=" + tools, "DSBUILD_SRC=" + dir, "DSBUILD_WORK=" + dir + "/work", "DSBUILD_LEAN=" + dir + "/build/lean", "DSBUILD_OBJECTS=" + dir + "/objects",
		"DSBUILD_CC=gcc", "DSBUILD_CXX=g++",
	}, env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// sources writes files by name below a new folder.
func sources(t *testing.T, files map[string]string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// A kept object is taken where all that was read for it is what it was, in
// whatever folder, and nowhere else.
func TestObjects(t *testing.T) {
	const text = `
import os, pathlib, shutil
from objects import Objects, Places
os.makedirs("a/inc"); os.makedirs("a/other")
for name, t in {"a/x.cpp": "x", "a/inc/x.h": "one", "a/inc/y.h": "y"}.items(): pathlib.Path(name).write_text(t)
pathlib.Path("a/x.o").write_text("object of one")

def build(at, **more):
    return Objects("kept", Places({"src": os.path.abspath(at)}), **more)

def take(at, include=("other", "inc"), **more):
    o = build(at, **more)
    pathlib.Path(at, "x.o").unlink(missing_ok=True)
    got = o.take(o.key("c++"), [os.path.join(at, "x.o")], [os.path.abspath(os.path.join(at, i)) for i in include])
    return pathlib.Path(at, "x.o").read_text() if got else None

def keep(at):
    o = build(at)
    o.keep(o.key("c++"), [os.path.join(at, "x.o")], [os.path.abspath(os.path.join(at, n)) for n in ("x.cpp", "inc/x.h", "inc/y.h")])

assert take("a") is None
pathlib.Path("a/x.o").write_text("object of one"); keep("a")
assert take("a") == "object of one"
assert take("a", recache=True) is None
shutil.copytree("a", "b")
assert take("b") == "object of one", "in another folder"
pathlib.Path("b/inc/x.h").write_text("two")
assert take("b") is None, "a header has changed"
pathlib.Path("b/x.o").write_text("object of two"); keep("b")
assert take("b") == "object of two" and take("a") == "object of one", "both are kept"
pathlib.Path("a/other/x.h").write_text("found first")
assert take("a") is None, "another header would be found first"
assert take("a", include=("inc", "other")) == "object of one"
os.unlink("a/other/x.h")
for result in pathlib.Path("kept").glob("??/*.gz"):
    if not result.name.endswith(".json.gz"): result.write_bytes(b"damaged")
assert take("a") is None, "damaged"
pathlib.Path("a/x.o").write_text("object of one")
shutil.rmtree("kept"); keep("a")
o = build("a", limit=0); o.prune()
assert take("a") is None, "removed where there is too much"
print("ok")
`
	if out := pythonTest(t, sources(t, nil), text); out != "ok\n" {
		t.Error(out)
	}
}

// A file is not read again while the system says the same of it, and what lies in
// folders of this build alone is not remembered.
func TestFiles(t *testing.T) {
	const text = `
import json, os, pathlib, time
from objects import Files, digest
store, header, mine = pathlib.Path("files.json").absolute(), os.path.abspath("x.h"), os.path.abspath("src/y.h")
os.mkdir("src")
for name in (header, mine): pathlib.Path(name).write_text("one")

def build():
    files = Files(store, [os.path.abspath("src")])
    got = files.digest(header), files.digest(mine), files.digest("nothing")
    files.save()
    return got

one, two = digest(b"one"), digest(b"two")
assert build() == (one, one, "") and not store.exists(), "too new to be sure of"
Files.FRESH = 0
assert build() == (one, one, "")
kept = json.loads(store.read_bytes())
assert list(kept) == [header], kept
kept[header][-1] = "as it was kept"
store.write_text(json.dumps(kept))
assert build() == ("as it was kept", one, ""), "it was read again"
assert Files().digest(header) == one, "without a store"
time.sleep(0.02)
info = os.stat(header)
pathlib.Path(header).write_text("two")
os.utime(header, ns=(info.st_atime_ns, info.st_mtime_ns))
assert build() == (two, one, ""), "another file of the same size and time"
store.write_text("{")
assert build() == (two, one, "")
print("ok")
`
	if out := pythonTest(t, sources(t, nil), text); out != "ok\n" {
		t.Error(out)
	}
}

// Which sources do with less than torch's whole header.
func TestLean(t *testing.T) {
	dir := sources(t, map[string]string{
		"torch/include/ATen/x.h": "#define HAS_IT 1\n#  define AT_OTHER\n",
		"csrc/tensors.cpp":       "#include <torch/extension.h>\n#ifdef __AVX512__\n#endif\n#if defined(GIVEN) && OWN\n#endif\n#ifdef nobody_has_it\n#endif\n",
		"csrc/binds.cpp":         "#include \"includes/b.h\"\nPYBIND11_MODULE(x, m) {}\n",
		"csrc/includes/b.h":      "#ifndef B_H\n#define B_H\n#include <torch/extension.h>\n#endif\n",
		"csrc/py.cpp":            "#include <torch/extension.h>\nvoid f(py::object o) { torch::empty({}); }\n",
		"csrc/calls.cpp":         "#include <torch/extension.h>\nat::Tensor f() { return torch::zeros({2}); }\n",
		"csrc/asks.cpp":          "#include <torch/extension.h>\n#ifdef HAS_IT\n#endif\n",
		"csrc/deep.cpp":          "#include <sub.h>\n",
		"inc/sub.h":              "#include <torch/extension.h>\n#if \\\n AT_OTHER\n#endif\n",
		"csrc/version.cpp":       "#include <torch/extension.h>\n#if TORCH_VERSION_MAJOR > 1\n#endif\n",
		"csrc/none.cpp":          "#include <vector>\n",
	})
	const text = `
import os, pathlib
from jobs import Sources
from objects import Objects, Places
root = os.getcwd()
objects = lambda: Objects(os.environ["DSBUILD_OBJECTS"], Places({}))
s = Sources(root, root + "/torch", objects())
for name in "tensors binds calls py asks deep version none".split():
    lean, why = s.lean(f"{root}/csrc/{name}.cpp", ["-DGIVEN=1", "-DOWN"], [root + "/inc"])
    print(name, *lean or "-", why)

# What an installed torch defines is kept, until another one is installed.
site = pathlib.Path(root, "site")
(site / "torch/include").mkdir(parents=True)
(site / "torch-2.dist-info").mkdir()
header, record = site / "torch/include/x.h", site / "torch-2.dist-info/RECORD"
os.makedirs(os.environ["DSBUILD_WORK"])
for macro, rows in ("ONE", "a"), ("TWO", "a"), ("TWO", "b"):
    header.write_text(f"#define {macro} 1\n")
    record.write_text(rows)
    print(*Sources(root, str(site / "torch/include"), objects()).defined())
`
	want := `tensors core types 
binds core-python types-python 
calls types 
py types-python 
asks - it asks for HAS_IT
deep - it asks for AT_OTHER
version core types 
none - 
ONE
ONE
TWO
`
	if out := pythonTest(t, dir, text); out != want {
		t.Errorf("got\n%s", out)
	}
}

// Jobs run as many at once as there are cores and memory for, the longest first.
func TestSlots(t *testing.T) {
	const text = `
import threading, time
from jobs import Slots, Failed
def run(slots, jobs):
    order, threads = [], []
    def one(name, seconds, memory):
        slots.run(name, lambda: (order.append(name), time.sleep(0.2)), seconds, memory)
    first = slots.take(1e9, 0); others = [slots.take(1e9, 0) for _ in range(slots.count - 1)]
    for j in jobs:
        threads.append(threading.Thread(target=one, args=j)); threads[-1].start()
    while len(slots.waiting) < len(jobs): time.sleep(0.01)
    for s in [first, *others]: slots.give(s, 0)
    for t in threads: t.join()
    return order
assert run(Slots(1, 100), [("short", 1, 1), ("long", 9, 1), ("middle", 5, 1)]) == ["long", "middle", "short"]
begin = time.monotonic()
run(Slots(4, 100), [("a", 1, 60), ("b", 1, 60)])
assert time.monotonic() - begin > 0.4, "both at once do not fit"
run(Slots(2, 1), [("larger than all", 1, 60)])
try:
    Slots(1, 1).run("it", ["sh", "-c", "echo said; exit 7"], 1, 1)
except Failed as e:
    assert str(e) == "it: exit code 7" and e.said == "said\n", (str(e), e.said)
print("ok")
`
	out := pythonTest(t, sources(t, nil), text)
	if !strings.HasSuffix(out, "ok\n") || !strings.Contains(out, "job 3: core 1, ") {
		t.Error(out)
	}
}

// All ops are compiled in one pool: a source that two of them have with other flags
// is two objects, an object is kept under what it was made of, and a source that the lean
// header is not enough for is compiled with torch's own.
func TestPool(t *testing.T) {
	dir := sources(t, map[string]string{
		"csrc/a.cpp":                         "#include <torch/extension.h>\nint which() { return WHICH + in_both(); }\n",
		"csrc/more.cpp":                      "#include <torch/extension.h>\nint more() { return in_torch_alone(); }\n",
		"build/lean/types/torch/extension.h": "inline int in_both() { return 1; }\n",
		"build/lean/core/torch/extension.h":  "// nothing\n",
		"torch/torch/extension.h":            "inline int in_both() { return 1; }\ninline int in_torch_alone() { return 2; }\n",
	})
	const text = `
import os, sys
from jobs import Build, Unit
root = os.getcwd()
def build(**env):
    os.environ.update(env)
    b = Build(root + "/torch")
    linked = []
    for ext, which, names in (("one", 1, ["a", "more"]), ("two", 2, ["a"])):
        objects = []
        for name in names:
            out = f"{root}/out/{ext}/{name}.o"
            argv = ["g++", "-MMD", "-MF", out + ".d", f"-DWHICH={which}", f"-I{root}/torch", "-c", f"{root}/csrc/{name}.cpp", "-o", out]
            b.units.append(Unit(b, argv, root, f"{root}/csrc/{name}.cpp", out)); objects.append(out)
        b.links.append((ext, objects, lambda ext=ext, objects=objects: linked.append((ext, all(map(os.path.exists, objects))))))
    b.run()
    assert sorted(linked) == [("one", True), ("two", True)], linked
build()
one, two = (open(f"out/{e}/a.o", "rb").read() for e in ("one", "two"))
assert one != two
build()
assert one == open("out/one/a.o", "rb").read()
open("torch/torch/extension.h", "a").write("// changed\n")
build()
build(CCACHE_RECACHE="1")
`
	out := pythonTest(t, dir, text, "MAX_JOBS=2")
	var objects []string
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "objects: ") {
			objects = append(objects, strings.TrimSpace(line))
		}
	}
	// Cold, warm, with another header of torch's, which one source was compiled with, anew.
	want := []string{"objects: 0 from the cache, 3 compiled", "objects: 3 from the cache, 0 compiled", "objects: 2 from the cache, 1 compiled", "objects: 0 from the cache, 3 compiled"}
	if !slices.Equal(objects, want) || !strings.HasPrefix(out, "3 sources, 2 parallel jobs") ||
		!strings.Contains(out, "csrc/more.cpp: with torch's own header: the small one is not enough\n") {
		t.Errorf("%q\n%s", objects, out)
	}
}

// Each compilation names at least the C++ standard that torch's headers need.
func TestCxxStandard(t *testing.T) {
	const text = `
from jobs import with_standard
for argv, want in (
    (["-O3", "-std=c++17", "-std=c++17", "x.cpp"], ["-O3", "-std=c++20", "-std=c++20", "x.cpp"]),
    (["-std=c++14"], ["-std=c++20"]),
    (["-std=gnu++1z", "-std=c++0x", "-std=c++98"], ["-std=gnu++20", "-std=c++20", "-std=c++20"]),
    (["--std=c++17", "--std", "c++17", "-std", "c++14"], ["--std=c++20", "--std", "c++20", "-std", "c++20"]),
    (["-std=c++20", "-std=c++23", "-std=c++2a", "-std=c++2b", "-std=c++26"], ["-std=c++20", "-std=c++23", "-std=c++2a", "-std=c++2b", "-std=c++26"]),
    (["-std=c11", "-DX=-std=c++17", "c++17", "-Istd=c++17"], ["-std=c11", "-DX=-std=c++17", "c++17", "-Istd=c++17"]),
):
    assert with_standard(argv, "20") == want, with_standard(argv, "20")
    assert with_standard(argv, "") == argv
assert with_standard(["-std=c++14", "-std=c++17"], "17") == ["-std=c++17", "-std=c++17"]
print("ok")
`
	if out := pythonTest(t, sources(t, nil), text); out != "ok\n" {
		t.Error(out)
	}
}

// DeepSpeed up to 0.19.4 asks for C++17, and torch's headers refuse that since 2.12: the
// compilers are called with the standard of the plan.
func TestPoolRaisesTheStandard(t *testing.T) {
	dir := sources(t, map[string]string{
		"csrc/a.cpp": "#if __cplusplus < 202002L\n#error C++20 or later compatible compiler is required to use PyTorch.\n#endif\nint a;\n",
	})
	const text = `
import os
from jobs import Build, Unit
root = os.getcwd()
b = Build(root + "/torch")
b.units.append(Unit(b, ["g++", "-std=c++17", "-c", root + "/csrc/a.cpp", "-o", root + "/a.o"], root, root + "/csrc/a.cpp", root + "/a.o"))
b.run()
`
	if out := pythonTest(t, dir, text, "DSBUILD_CXX_STANDARD=20"); !strings.Contains(out, "objects: 0 from the cache, 1 compiled") {
		t.Error(out)
	}
}

// What nvcc's steps read and write for one list of architectures is that for another,
// but for a name, also within other names; nothing is taken where it could be more.
func TestArchList(t *testing.T) {
	const text = `
from jobs import ArchList
one, two = ArchList("g++ -D__CUDA_ARCH_LIST__=800 -E"), ArchList("g++ -D__CUDA_ARCH_LIST__=800,860 -E")
for a, b in (
    (b"inline namespace _V_300200_SM_800 {", b"inline namespace _V_300200_SM_800_860 {"),
    (b"_ZN6thrust16_V_300200_SM_8006system3cpp3parE", b"_ZN6thrust20_V_300200_SM_800_8606system3cpp3parE"),
    (b"runtime_to_compiletime< 1, 800> (v)", b"runtime_to_compiletime< 1, 800, 860> (v)"),
    (b"nothing of the kind: 800", b"nothing of the kind: 800"),
):
    assert one.general(a) == two.general(b), (one.general(a), two.general(b))
    assert two.special(one.general(a)) == b and one.special(two.general(b)) == a
    assert one.independent(a) and two.independent(b)
deep = b"/folder" * 90
assert one.general(b"runtime_to_compiletime<1,\n# 12 \"%s/x.h\"\n    800\n# 12 \"%s/x.h\"\n>" % (deep, deep)) == two.general(b"runtime_to_compiletime<1,\n# 12 \"%s/x.h\"\n    800,860\n# 12 \"%s/x.h\"\n>" % (deep, deep)), "a long path"
assert one.general(b"runtime_to_compiletime<1,\n# 12 \"x.h\"\n    800\n>") == two.general(b"runtime_to_compiletime<1,\n# 12 \"x.h\"\n    800,860\n>")
assert one.general(b"x = 800;") != two.general(b"x = 800, 860;"), "used for something else"
assert one.general(b"_V_300200_SM_900") == b"_V_300200_SM_900", "that of another list"
assert not one.independent(b"_ZN3cub22runtime_to_compiletimeILi1EEE"), "compiled with the list itself"
assert not one.independent(b"@ARCHS@")
assert ArchList("g++ -D__CUDA_ARCH_LIST__=800 -E", exact=True).general(b"_V_1_SM_800 ") == b"_V_1_SM_800 "
assert ArchList("g++ -E").general(b"_V_1_SM_") == b"_V_1_SM_"
print("ok")
`
	if out := pythonTest(t, sources(t, nil), text); out != "ok\n" {
		t.Error(out)
	}
}
