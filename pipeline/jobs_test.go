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
		"DSBUILD_TOOLS=" + tools, "DSBUILD_SRC=" + dir, "DSBUILD_WORK=" + dir + "/work", "DSBUILD_OBJECTS=" + dir + "/objects",
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

// All ops are compiled in one pool: a source that two of them have with other flags is two
// objects, and an object is kept under what it was made of.
func TestPool(t *testing.T) {
	dir := sources(t, map[string]string{
		"csrc/a.cpp":         "int which() { return WHICH; }\n",
		"csrc/more.cpp":      "#include <torch/more.h>\n",
		"torch/torch/more.h": "inline int more() { return 2; }\n",
	})
	const text = `
import os
from jobs import Build, Unit
root, read = os.getcwd(), []
def build(**env):
    os.environ.update(env)
    b = Build(read.extend)
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
assert root + "/torch/torch/more.h" in read, read
one, two = (open(f"out/{e}/a.o", "rb").read() for e in ("one", "two"))
assert one != two
build()
assert one == open("out/one/a.o", "rb").read()
open("torch/torch/more.h", "a").write("// changed\n")
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
	// Cold, warm, with another header, which one source reads, anew.
	want := []string{"objects: 0 from the cache, 3 compiled", "objects: 3 from the cache, 0 compiled", "objects: 2 from the cache, 1 compiled", "objects: 0 from the cache, 3 compiled"}
	if !slices.Equal(objects, want) || !strings.HasPrefix(out, "3 sources, 2 parallel jobs") {
		t.Errorf("%q\n%s", objects, out)
	}
	// Three objects and two links; what comes from the cache counts too.
	if got := strings.Count(out, "\njob 5 of 5: core "); got != 4 {
		t.Errorf("%d builds end with their last job\n%s", got, out)
	}
}

// A source that does not compile ends the build with the compiler's words; what waits is not begun.
func TestPoolFails(t *testing.T) {
	dir := sources(t, map[string]string{"bad.cu": "", "a.cpp": "int a;\n", "nvcc": "#!/bin/sh\necho it is wrong\nexit 7\n"})
	const text = `
import os
from jobs import Build, Unit
root = os.getcwd()
os.chmod("nvcc", 0o755)
b = Build()
Build.nvcc = []
for program, name in ("g++", "a.cpp"), (root + "/nvcc", "bad.cu"):
    b.units.append(Unit(b, [program], root, f"{root}/{name}", f"{root}/{name}.o"))
b.links.append(("op.so", [u.object for u in b.units], lambda: print("linked")))
try:
    b.run()
except SystemExit as e:
    assert str(e) == "it is wrong\n\nerror: bad.cu: exit code 7", str(e)
    print("ok", os.path.exists("a.cpp.o"))
`
	if out := pythonTest(t, dir, text, "MAX_JOBS=1"); out != "2 sources, 1 parallel jobs\nok False\n" {
		t.Error(out)
	}
}

// Commands run as many at once as there are cores, or MAX_JOBS, and no more than there is memory for.
func TestCores(t *testing.T) {
	const text = `
import os, jobs
jobs.available = lambda: 10 << 30
assert jobs.cores() == 2, jobs.cores()
os.environ["MAX_JOBS"] = "8"
assert jobs.cores() == 3, jobs.cores()
jobs.available = lambda: 1 << 30
assert jobs.cores() == 1
print("ok")
`
	if out := pythonTest(t, sources(t, nil), text, "MAX_JOBS=2"); out != "ok\n" {
		t.Error(out)
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
b = Build()
b.units.append(Unit(b, ["g++", "-std=c++17", "-c", root + "/csrc/a.cpp", "-o", root + "/a.o"], root, root + "/csrc/a.cpp", root + "/a.o"))
b.run()
`
	if out := pythonTest(t, dir, text, "DSBUILD_CXX_STANDARD=20"); !strings.Contains(out, "objects: 0 from the cache, 1 compiled") {
		t.Error(out)
	}
}
