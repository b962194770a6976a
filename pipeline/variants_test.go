package pipeline

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/compat"
	"github.com/dsbuild/dsbuild/wheel"
)

// The parts of a wheel become one: an op that several have compiled has a library of each, and its module says what they are
// for. All else is the first part's.
func TestVariantsAreJoined(t *testing.T) {
	dir := sources(t, nil)
	gcc := func(name string, args ...string) {
		t.Helper()
		out, err := exec.Command("gcc", append([]string{"-shared", "-nostdlib", "-o", filepath.Join(dir, name), "-x", "c", os.DevNull}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	gcc("plain.so")
	gcc("plain3.so", "-Wl,-soname,plain3.so")
	for _, cuda := range []string{"12", "13"} {
		gcc("libcudart.so", "-Wl,-soname,libcudart.so."+cuda)
		gcc("cuda"+cuda+".so", "-Wl,--no-as-needed", "-x", "none", filepath.Join(dir, "libcudart.so"))
	}
	const text = `
import os, pathlib, subprocess, sys, zipfile, zlib
import variants

RECORD = "version='0.19.8'\ninstalled_ops={'cpu_adam': 1, 'fused_adam': 1, 'fused_lion': 1, 'utils': 1}\naccelerator_name='cuda'\ntorch_info={'version': '2.15', 'cuda_version': '13.2'}\n"

def wheel(step, files):
    os.makedirs("in/" + step, exist_ok=True)
    with zipfile.ZipFile(f"in/{step}/deepspeed-0.19.8-cp311-cp311-linux_x86_64.whl", "w") as new:
        for name, data in files.items():
            new.writestr(name, data)

def library(name):
    return pathlib.Path(name).read_bytes()

def stripped(name):
    with open("library.so", "wb") as f:
        f.write(library(name))
    subprocess.run(["strip", "--strip-all", "library.so"], check=True)
    return library("library.so")

def module(cuda="", **libraries):
    sums = ", ".join(f'"{variant.strip("_")}": 0x{zlib.crc32(data):08x}' for variant, data in libraries.items())
    return f"from deepspeed._stable_abi import expose\n\nexpose(globals(), {{{sums}}}{cuda})\n".encode()

def joined():
    os.makedirs("out", exist_ok=True)
    with zipfile.ZipFile(variants.join("in", "out")) as new:
        assert len(new.namelist()) == len(set(new.namelist())), new.namelist()
        return {name: new.read(name) for name in new.namelist()}

first = {"deepspeed/__init__.py": "first", variants.RECORD: RECORD, variants.SHM_COMM: "class ShareMemCommBuilder(CPUOpBuilder):\n    pass\n",
    variants.ASYNC_IO[1]: "class AsyncIOBuilder(CPUOpBuilder):\n    pass\n",
    "deepspeed/ops/adam/libcpu_adam_op.so": library("plain.so"), "deepspeed/ops/adam/libfused_adam_op.so": library("cuda13.so"),
    "deepspeed/ops/lion/libfused_lion_op.so": library("cuda13.so"), "deepspeed/ops/libutils_op.so": library("plain.so")}
wheel("compile", first)
os.environ.update(DSBUILD_CPU="x86-64-v2", DSBUILD_GPU_OPS="fused_adam fused_lion", DSBUILD_WORK=os.getcwd())
plain, plain3, cuda12, cuda13 = map(stripped, ("plain.so", "plain3.so", "cuda12.so", "cuda13.so"))
assert len(plain) < len(library("plain.so")) and len({plain, plain3, cuda12, cuda13}) == 4

one = joined()
assert sorted(n for n in one if n.endswith(".so")) == sorted(n for n in first if n.endswith(".so")), sorted(one)
assert one["deepspeed/ops/adam/libcpu_adam_op.so"] == plain
assert one["deepspeed/ops/adam/cpu_adam_op.py"] == module(_=plain) and one["deepspeed/ops/adam/fused_adam_op.py"] == module(", cuda=('13',)", _=cuda13)
assert one[variants.RECORD].decode() == "from deepspeed import _stable_abi\n\n" + RECORD.replace("accelerator_name='cuda'", "accelerator_name, installed_ops = _stable_abi.accelerator(installed_ops, ('fused_adam', 'fused_lion'))").replace("torch_info={'version': '2.15', 'cuda_version': '13.2'}", "torch_info=_stable_abi.torch_info({'version': '2.15', 'cuda_version': '13.2'}, '13')"), one[variants.RECORD]
assert b'\nLEVEL = "v2"' in one["deepspeed/_stable_abi.py"]
scope = {"CPUOpBuilder": object}
exec(one[variants.SHM_COMM], scope)
assert scope["ShareMemCommBuilder"]().is_compatible(verbose=True) is False
exec(one[variants.ASYNC_IO[1]], scope)
assert not hasattr(scope["AsyncIOBuilder"], "is_compatible")  # the wheel has no such op

wheel("compile-cu12", {"deepspeed/__init__.py": "other", "deepspeed/ops/adam/libfused_adam_op.so": library("cuda12.so")})
wheel("compile-v3", {"deepspeed/__init__.py": "other", "deepspeed/ops/adam/libcpu_adam_op.so": library("plain3.so")})
os.environ["DSBUILD_VARIANTS"] = "compile-cu12:cu12:cu13 compile-v3:v3:v2"
all = joined()
want = {"adam/libcpu_adam_op.v2.so": plain, "adam/libcpu_adam_op.v3.so": plain3, "adam/libfused_adam_op.cu12.so": cuda12,
    "adam/libfused_adam_op.cu13.so": cuda13, "lion/libfused_lion_op.so": cuda13, "libutils_op.so": plain,
    "adam/cpu_adam_op.py": module(v2=plain, v3=plain3), "adam/fused_adam_op.py": module(", cuda=('12', '13')", cu12=cuda12, cu13=cuda13),
    "lion/fused_lion_op.py": module(", cuda=('13',)", _=cuda13), "utils_op.py": module(_=plain)}
assert {n[len("deepspeed/ops/"):]: d for n, d in all.items() if n.startswith("deepspeed/ops/") and "op_builder" not in n} == want, sorted(all)
assert all["deepspeed/__init__.py"] == b"first" and b", ('12', '13'))" in all[variants.RECORD], all[variants.RECORD]

os.environ["DSBUILD_CPU"] = "armv8-a"
assert b'\nLEVEL = ""' in joined()["deepspeed/_stable_abi.py"]
wheel("compile", dict(first, **{"deepspeed/ops/aio/libasync_io_op.so": library("plain.so")}))
exec(joined()[variants.ASYNC_IO[1]], scope)
assert scope["AsyncIOBuilder"]().is_compatible(verbose=True) is True
for wrong in ("version='1'\n", RECORD + RECORD):
    try:
        variants.record(wrong, ())
    except SystemExit as e:
        assert "(git_version_info_installed.py) has torch_info=" in str(e), e
    else:
        raise AssertionError(wrong)
print("ok")
`
	if out := pythonTest(t, dir, text); out != "ok\n" {
		t.Error(out)
	}
}

// The parts of a wheel run no more commands at once than one build would.
func TestPartsShareTheCores(t *testing.T) {
	const text = `
import os, subprocess, sys
part = """
import os, sys, threading
from jobs import Pool
pool = Pool(2)
def job(n):
    pool.run(f"job {n}", ["sh", "-c", "echo + >>log; sleep 0.1; echo - >>log"], os.getcwd())
pool.total = 4
pool.finish([pool.add(job, n) for n in range(4)])
"""
def most(**env):
    open("log", "w").close()
    builds = [subprocess.Popen([sys.executable, "-c", part], env={**os.environ, **env}, stdout=subprocess.DEVNULL) for _ in range(3)]
    assert [b.wait() for b in builds] == [0, 0, 0]
    running = most = 0
    for line in open("log"):
        running += 1 if line == "+\n" else -1
        most = max(most, running)
    assert running == 0 and len(open("log").read()) == 48
    return most
shared, alone = most(DSBUILD_TURNS="a0b1"), most()
assert shared == 2 and alone > 2, (shared, alone)
print("ok")
`
	if out := pythonTest(t, sources(t, nil), text); out != "ok\n" {
		t.Error(out)
	}
}

// The plan of a complete wheel has a part for each CUDA and each CPU level, with the same manifest as the finished wheel, and
// what a request names is not built several times.
func TestPlanParts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		request     wheel.Request
		steps       []string
		cudas, cpus string
	}{
		"complete":    {wheel.Request{}, []string{"compile", "compile-cu12", "compile-v3", "compile-v4"}, "12 13", "x86-64-v2 x86-64-v3 x86-64-v4"},
		"one CUDA":    {wheel.Request{CUDA: "13"}, []string{"compile", "compile-v3", "compile-v4"}, "13", "x86-64-v2 x86-64-v3 x86-64-v4"},
		"one level":   {wheel.Request{CPU: wheel.CPUv4}, []string{"compile", "compile-cu12"}, "12 13", "x86-64-v4"},
		"one of each": {wheel.Request{CUDA: "12", CPU: wheel.CPUv2}, []string{"compile"}, "12", "x86-64-v2"},
		"old GPUs":    {wheel.Request{GPUs: []string{"V100"}, CPU: wheel.CPUv2}, []string{"compile"}, "12", "x86-64-v2"},
		"new GPUs":    {wheel.Request{GPUs: []string{"B300"}, CPU: wheel.CPUv2}, []string{"compile"}, "13", "x86-64-v2"},
		"both GPUs":   {wheel.Request{GPUs: []string{"V100", "H100"}, CPU: wheel.CPUv2}, []string{"compile", "compile-cu13"}, "12 13", "x86-64-v2"},
		"no CUDA":     {wheel.Request{Ops: []string{"cpu_adam", "utils"}}, []string{"compile", "compile-v3", "compile-v4"}, "", "x86-64-v2 x86-64-v3 x86-64-v4"},
		"no vectors":  {wheel.Request{Ops: []string{"utils"}}, []string{"compile"}, "", "x86-64-v2"},
		"aarch64":     {wheel.Request{Machine: wheel.Arm}, []string{"compile"}, "13", "armv8-a"},
		"one torch":   {wheel.Request{ABI: wheel.TorchMinor}, []string{"compile"}, "13.2", "x86-64-v3"},
	} {
		p := planFor(t, c.request, Source{}, Base{})
		var steps []string
		for _, s := range p.Steps {
			if s.Script == CompileScript {
				steps = append(steps, s.Name)
			}
		}
		var cpus []string
		for _, level := range p.Manifest.CPUs() {
			cpus = append(cpus, string(level))
		}
		cudas := p.Manifest.CUDAs()
		if c.request.ABI == wheel.TorchMinor { // the build tells them
			cudas = []string{p.Toolchain().CUDA}
		}
		if !slices.Equal(steps, c.steps) || strings.Join(cudas, " ") != c.cudas || strings.Join(cpus, " ") != c.cpus {
			t.Errorf("%s: steps %q, CUDAs %q, CPUs %q; want %+v", name, steps, cudas, cpus, c)
		}
		if strip := p.Steps[len(steps)+1]; strip.Name != StripStep || !slices.Equal(strip.Inputs, c.steps) {
			t.Errorf("%s: strip reads %q", name, strip.Inputs)
		}
	}
}

// A part for another CUDA has its own image, with the packages of its own torch; one for another level has the first part's.
func TestPlanEnvironments(t *testing.T) {
	t.Parallel()
	p := planFor(t, wheel.Request{}, Source{}, Base{})
	const image = "toolchain-cu12"
	if len(p.Environments) != 1 || p.Environments[image].Toolchain.CUDASource != compat.Nvcc12 {
		t.Fatalf("environments %v", p.Environments)
	}
	for _, s := range p.Steps {
		want := map[string]Image{"compile": Toolchain, "compile-cu12": image, "compile-v3": Toolchain, "strip": Toolchain}[s.Name]
		if want != "" && s.Image != want {
			t.Errorf("step %s in %s, want %s", s.Name, s.Image, want)
		}
	}
	first, further := p.Environment(Runtime), p.Environment(image)
	if first.Args["TORCH"] != "2.15.0" || further.Args["TORCH"] != "2.10.0" || strings.Contains(first.Context["packages.txt"], "torch==2.10.0") || !strings.Contains(further.Context["packages.txt"], "torch==2.10.0") {
		t.Errorf("torch %s and %s", first.Args["TORCH"], further.Args["TORCH"])
	}
	installed := []wheel.Package{{PURL: "pkg:pypi/torch@2.10.0"}, {PURL: "pkg:pypi/torch@2.15.0"}}
	p.addArchives(installed)
	if installed[0].Archive == "" || installed[1].Archive == "" || installed[0].Archive == installed[1].Archive {
		t.Errorf("archives of both torches: %+v", installed)
	}
	same := planFor(t, wheel.Request{Torch: "2.15"}, Source{}, Base{})
	same.Environments[image].Args["TORCH"] = "2.10.1"
	if err := same.setDigest(); err != nil || same.Digest == p.Digest {
		t.Errorf("another torch of a further part has the same digest: %v", err)
	}
}
