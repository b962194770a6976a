package evidence

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"maps"
	"strings"
	"testing"
)

// small is a tree with two ops, in the form of DeepSpeed's.
func small() map[string]string {
	return map[string]string{
		"csrc/adam/cpu_adam.cpp": "#include <torch/extension.h>\n#include \"cpu_adam.h\"\nint step() { return SIMD; } // a step\n",
		"csrc/includes/cpu_adam.h": "#pragma once\n#include \"simd.h\"\n#if defined(__AVX512__) or defined(__NEON__)\n" +
			"#if defined(__NEON__)\n#include <arm_neon.h>\n#endif\nvoid wide();\n#endif\n",
		"csrc/includes/simd.h":                    "#define SIMD 8\n#ifdef __aarch64__\n#include \"neon.h\"\n#endif\n",
		"csrc/includes/neon.h":                    "void neon();\n",
		"csrc/fused/f.cu":                         "__global__ void kernel(float* x) { x[0] = 1.f; }\n",
		"deepspeed/inference/v2/kernels/core.cpp": "#include \"core.h\"\n",
		"deepspeed/inference/v2/kernels/core.h":   "int core;\n",
		"op_builder/builder.py": `import os
try:
    import torch
except ImportError:
    print("no torch")
else:
    TORCH_MAJOR = int(torch.__version__.split('.')[0])


def installed(name=""):
    # which one
    return os.environ["CUDA"]


class OpBuilder(ABC):
    """What all have."""
    _rocm = None

    def __init__(self, name):
        self.name = name

    def include_paths(self):
        '''
        none
        '''
        return []

    def cxx_args(self):
        return []

    def flags(self):
        return ["-O3", f"-std={TORCH_MAJOR}"]

    def builder(self):
        return Extension(self.absolute_name(), self.sources(), self.include_paths(), self.cxx_args())

    def load(self):
        return self.jit_load()

    def jit_load(self):
        return "jit"


class CUDAOpBuilder(OpBuilder):

    def cxx_args(self):
        return super().cxx_args() + [installed()]
`,
		"op_builder/cpu/__init__.py": "from .cpu_adam import CPUAdamBuilder\n",
		"op_builder/cpu/cpu_adam.py": `from op_builder.builder import OpBuilder


class CPUAdamBuilder(OpBuilder):
    BUILD_VAR = "DS_BUILD_CPU_ADAM"
    NAME = "cpu_adam"

    def absolute_name(self):
        return f'deepspeed.ops.adam.{self.NAME}_op'

    def sources(self):
        return ['csrc/adam/cpu_adam.cpp']

    def include_paths(self):
        return ['csrc/includes']

    def cxx_args(self):
        return self.flags()
`,
		"op_builder/fused.py": `from .builder import CUDAOpBuilder


class FusedBuilder(CUDAOpBuilder):
    NAME = "fused"

    def sources(self):
        folder = "csrc/fused"
        return [f"{folder}/f.cu"]
`,
		"op_builder/cpu/fused.py": "class FusedBuilder(OpBuilder):\n    NAME = 'fused'\n\n    def sources(self):\n        return ['csrc/other.cpp']\n",
		"op_builder/core.py": `from .builder import CUDAOpBuilder


class CoreBuilder(CUDAOpBuilder):
    NAME = "core"

    def get_prefix(self):
        return "deepspeed"

    def sources(self):
        return [os.path.join(self.get_prefix(), s) for s in ["inference/v2/kernels/core.cpp"]]

    def include_paths(self):
        return ['inference/v2/kernels']
`,
		"accelerator/cuda_accelerator.py": `class CUDA_Accelerator:

    def _lazy_init_class_dict(self):
        for member_name in ["CPUAdamBuilder"]:
            pass
`,
		"deepspeed/runtime/engine.py": "x = 1\n",
		"setup.py":                    "setup()\n",
	}
}

func TestJudge(t *testing.T) {
	var table Table
	table.Ops, table.Files = map[string][]Proof{}, map[string]ByMachine{}
	ops := []string{"cpu_adam", "fused", "core"}
	for _, op := range ops {
		if err := table.Accept(New(small()), op, "0.19.8", Machines()...); err != nil {
			t.Fatal(err)
		}
	}
	replaced := func(old, now string) func(string) string {
		return func(s string) string {
			if !strings.Contains(s, old) {
				t.Errorf("%q is not in %q", old, s)
			}
			return strings.ReplaceAll(s, old, now)
		}
	}
	const adam, header = "csrc/adam/cpu_adam.cpp", "csrc/includes/cpu_adam.h"
	for name, c := range map[string]struct {
		file     string
		edit     func(string) string
		op       string // the only one that has changed; "": none
		x86, arm string // why
	}{
		"nothing":              {adam, replaced("a step", "a step"), "", "", ""},
		"a comment":            {adam, replaced("a step", "two steps"), "", "", ""},
		"white space":          {adam, replaced("{ return SIMD; }", "\n{\n    return SIMD;\n}"), "", "", ""},
		"Python of the engine": {"deepspeed/runtime/engine.py", replaced("1", "2"), "", "", ""},
		"setup.py":             {"setup.py", replaced("setup", "main"), "", "", ""},
		"Python of loading":    {"op_builder/builder.py", replaced(`"jit"`, `"jit", 1`), "", "", ""},
		"Python's comments":    {"op_builder/builder.py", replaced("# which one", "# another\n    # line"), "", "", ""},
		"Python's docstrings":  {"op_builder/builder.py", replaced("What all have.", "What they have."), "", "", ""},
		"a branch for Arm":     {header, replaced("<arm_neon.h>", "<arm_sve.h>"), "cpu_adam", "", header},
		"a header for Arm":     {"csrc/includes/neon.h", replaced("neon", "sve"), "cpu_adam", "", "csrc/includes/neon.h"},
		"a header":             {"csrc/includes/simd.h", replaced("8", "16"), "cpu_adam", "csrc/includes/simd.h", "csrc/includes/simd.h"},
		"a kernel":             {"csrc/fused/f.cu", replaced("1.f", "2.f"), "fused", "csrc/fused/f.cu", "csrc/fused/f.cu"},
		"a file of inference":  {"deepspeed/inference/v2/kernels/core.h", replaced("core", "more"), "core", "deepspeed/inference/v2/kernels/core.h", "deepspeed/inference/v2/kernels/core.h"},
		"a new include":        {adam, replaced("#include \"cpu_adam.h\"", "#include \"cpu_adam.h\"\n#include \"neon.h\""), "cpu_adam", adam, adam},
		"a header that hides another": {
			"csrc/includes/torch/extension.h", func(string) string { return "int mine;" }, "cpu_adam",
			"csrc/includes/torch/extension.h", "csrc/includes/torch/extension.h",
		},
		"a flag": {
			"op_builder/builder.py", replaced(`"-O3"`, `"-O2"`), "cpu_adam",
			"op_builder/builder.py:OpBuilder.flags", "op_builder/builder.py:OpBuilder.flags",
		},
		"a flag of the op": {
			"op_builder/fused.py", func(s string) string {
				return s + "\n    def extra_ldflags(self):\n        return []\n\n    def cxx_args(self):\n        return ['-g']\n"
			},
			"fused", "op_builder/fused.py:FusedBuilder.cxx_args", "op_builder/fused.py:FusedBuilder.cxx_args",
		},
		"another source":   {"op_builder/fused.py", replaced("/f.cu", "/g.cu"), "fused", "op_builder/fused.py: names csrc/fused/g.cu, which is missing", "op_builder/fused.py: names csrc/fused/g.cu, which is missing"},
		"an unfinished if": {adam, func(s string) string { return s + "#if A\n" }, "cpu_adam", adam + ": unterminated #if in line 4", adam + ": unterminated #if in line 4"},
		"a computed include": {
			adam, func(s string) string { return s + "#include HEADER\n" }, "cpu_adam",
			adam + ": an #include whose file only a compiler knows: HEADER", adam + ": an #include whose file only a compiler knows: HEADER",
		},
		"no op":             {"op_builder/core.py", func(string) string { return "" }, "core", "op_builder: no op core", "op_builder: no op core"},
		"a macro of theirs": {"csrc/other.h", func(string) string { return "#define __aarch64__\n" }, "cpu_adam", "csrc/includes/simd.h", "csrc/includes/simd.h"},
		"another builder": {
			"accelerator/cuda_accelerator.py", replaced(`["CPUAdamBuilder"]`, `["CPUAdamBuilder", "FusedBuilder"]`), "fused",
			"op_builder/cpu/fused.py: names csrc/other.cpp, which is missing", "op_builder/cpu/fused.py: names csrc/other.cpp, which is missing",
		},
	} {
		files := small()
		files[c.file] = c.edit(files[c.file])
		got := table.Judge(New(files))
		want := Changes{x86: {}, arm: {}}
		if c.x86 != "" {
			want[x86][c.op] = c.x86
		}
		if c.arm != "" {
			want[arm][c.op] = c.arm
		}
		if !maps.Equal(got[x86], want[x86]) || !maps.Equal(got[arm], want[arm]) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// A second release of an op is proven beside the first; a mix of both is not.
func TestAccept(t *testing.T) {
	table := Table{Ops: map[string][]Proof{}, Files: map[string]ByMachine{}}
	old, now := small(), small()
	now["csrc/includes/simd.h"] += "int more;\n"
	now["csrc/adam/cpu_adam.cpp"] += "int more;\n"
	for release, files := range map[string]map[string]string{"0.19.8": old, "0.19.10": now} {
		if err := table.Accept(New(files), "cpu_adam", release, x86); err != nil {
			t.Fatal(err)
		}
	}
	if got := table.Ops["cpu_adam"]; len(got) != 2 || got[0].DeepSpeed != "0.19.10" {
		t.Errorf("%v; want the proof of 0.19.10 first", got)
	}
	mixed := small()
	mixed["csrc/includes/simd.h"] = now["csrc/includes/simd.h"]
	for _, c := range []struct {
		files    map[string]string
		x86, arm string
	}{
		{old, "", "csrc/adam/cpu_adam.cpp"},
		{now, "", "csrc/adam/cpu_adam.cpp"},
		{mixed, "csrc/adam/cpu_adam.cpp", "csrc/adam/cpu_adam.cpp"},
	} {
		if got := table.Judge(New(c.files)); got[x86]["cpu_adam"] != c.x86 || got[arm]["cpu_adam"] != c.arm {
			t.Errorf("%v, want %q and %q", got, c.x86, c.arm)
		}
	}
}

func TestRead(t *testing.T) {
	packed := func(headers ...tar.Header) *bytes.Buffer {
		var out bytes.Buffer
		zipped := gzip.NewWriter(&out)
		archive := tar.NewWriter(zipped)
		for _, h := range headers {
			text := "int a;"
			if h.Typeflag == 0 {
				h.Size = int64(len(text))
			}
			if err := archive.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
			if h.Typeflag == 0 {
				if _, err := archive.Write([]byte(text)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := archive.Close(); err != nil {
			t.Fatal(err)
		}
		if err := zipped.Close(); err != nil {
			t.Fatal(err)
		}
		return &out
	}
	s, err := Read(packed(tar.Header{Name: "d-1/csrc/a.h"}, tar.Header{Name: "d-1/csrc/b.h", Typeflag: tar.TypeSymlink, Linkname: "a.h"}, tar.Header{Name: "d-1/setup.py"}))
	if err != nil || len(s.files) != 2 || s.files["csrc/b.h"] != "int a;" {
		t.Errorf("%v, %v; want two files", s, err)
	}
	for name, c := range map[string]struct {
		archive *bytes.Buffer
		want    string
	}{
		"no archive": {bytes.NewBufferString("text"), "not a valid .tar.gz"},
		"cut off":    {bytes.NewBuffer(packed(tar.Header{Name: "d-1/csrc/a.h"}).Bytes()[:40]), "not a valid .tar.gz"},
		"a link":     {packed(tar.Header{Name: "d-1/csrc/b.h", Typeflag: tar.TypeSymlink, Linkname: "../../../etc/passwd"}), "csrc/b.h: a link to no file of the sources"},
	} {
		if _, err := Read(c.archive); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestByMachine(t *testing.T) {
	for _, text := range []string{"a", "a b", "a -", "- b"} {
		var d ByMachine
		if err := d.UnmarshalText([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if got, _ := d.MarshalText(); string(got) != text {
			t.Errorf("%q, want %q", got, text)
		}
	}
}
