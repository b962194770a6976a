package wheel_test

import (
	"cmp"
	"errors"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/wheel"
)

// A wheel may have its own files, and none of torch, DeepSpeed, the interpreter and the environment.
func TestCheckOwnFiles(t *testing.T) {
	t.Parallel()
	const data = "tool-1.0.data/"
	for member, want := range map[string]string{
		"torch/version.py":                  "torch",
		"functorch.py":                      "torch",
		"TorchGen/x.py":                     "torch",
		"torch.abi3.so":                     "torch",
		"__pycache__/torch.cpython-311.pyc": "torch",
		"torch.pth":                         "torch",
		"torch-2.15.0.dist-info.egg-info/PKG-INFO":             "torch",
		"torch-2.15.0-py3.11.egg-info/PKG-INFO":                "torch",
		"plug.egg-info/entry_points.txt":                       "plug",
		"nvidia/cudnn/lib/x.so.1":                              "NVIDIA's packages",
		"deep\u017fpeed/x.py":                                  "DeepSpeed",
		"DeepSpeed.py":                                         "DeepSpeed",
		data + "platlib/usercustomize/__init__.py":             "the interpreter",
		data + "purelib/torch/x.py":                            "torch",
		data + "data/lib/python3.11/site-packages/triton/x.py": "triton",
		"deepspeed/version/__init__.py":                        "DeepSpeed",
		"sitecustomize.py":                                     "the interpreter",
		data + "scripts/Python3.11":                            "the environment",
		data + "scripts/activate.fish":                         "the environment",
		data + "data/bin/python":                               "the environment",
		data + "data/pyvenv.cfg":                               "the environment",
		data + "data/lib/python3.11/os.py":                     "the environment",
		data + "data/lib64/python3.11/os.py":                   "the environment",
		data + "data/include/python3.11/Python.h":              "the environment",
		data + "data/conda-meta/history":                       "the environment",
		data + "data/sbin/init":                                "the environment",
		"tool-1.0.dist-info/entry_points.txt":                  "the environment",
		"tool/torch/x.py":                                      "",
		"tool/sitecustomize.py":                                "",
		"tool-1.0.egg-info/PKG-INFO":                           "",
		"nvidia_tool/x.py":                                     "",
		"torch_tool/__init__.py":                               "",
		data + "scripts/tool":                                  "",
		data + "scripts/python-argcomplete-check":              "",
		data + "scripts/activate-global-python-argcomplete":    "",
		data + "scripts/Activate.ps1":                          "the environment",
		data + "scripts/python3.11-config":                     "the environment",
		data + "scripts/pypy3":                                 "the environment",
		data + "scripts/deactivate":                            "the environment",
		data + "data/share/python/tool.txt":                    "",
		data + "data/lib/libtool.so":                           "",
		data + "headers/tool.h":                                "",
	} {
		err := checkOwn(t, "tool", map[string]string{member: "[console_scripts]\npython3 = a:b\n"}, false)
		if (err == nil) != (want == "") || err != nil && !strings.HasSuffix(err.Error(), "which belongs to "+want) {
			t.Errorf("%s: %v, want that it belongs to %q", member, err, want)
		}
	}
}

// checkOwn returns what CheckOwnFiles says of a wheel of name with files.
func checkOwn(t *testing.T, name string, files map[string]string, named bool) error {
	t.Helper()
	info := name + "-1.0.dist-info/"
	all := map[string]string{
		info + "METADATA": "Metadata-Version: 2.1\nName: " + name + "\nVersion: 1.0\n",
		info + "WHEEL":    "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
	}
	maps.Copy(all, files)
	file := filepath.Join(t.TempDir(), name+"-1.0-py3-none-any.whl")
	wheeltest.Write(t, file, all)
	a, err := wheel.Open(file)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	defer a.Close()
	return wheel.CheckOwnFiles(a, named)
}

// Only a name's own distribution may write there: a name that begins like it is another one.
func TestPackagesOwnTheirNames(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		distribution, member string
		own                  bool
	}{
		{"torch", "torch/version.py", true},
		{"torch", "triton/x.py", false},
		{"torch_tool", "torch/x.py", false},
		{"triton", "triton/x.py", true},
		{"pytorch_triton", "triton/x.py", true},
		{"triton_evil", "triton/x.py", false},
		{"nvidia_cudnn_cu12", "nvidia/cudnn/x.so", true},
		{"nvidia_evil", "nvidia/evil/x.so", true},
		{"nvidia_evil", "torch/version/__init__.py", false},
		{"nvidia_evil", "torch.py", false},
		{"nvidia_evil", "triton/x.py", false},
		{"nvidiaevil", "nvidia/evil/x.so", false},
		{"cuda_toolkit", "nvidia/x.so", false},
		{"deepspeed", "deepspeed/x.py", true},
		{"deepspeed", "torch/x.py", false},
		{"deepspeed_kernels", "deepspeed/x.py", false},
		{"torch", "sitecustomize.py", false},
	} {
		if err := checkOwn(t, c.distribution, map[string]string{c.member: ""}, true); (err == nil) != c.own {
			t.Errorf("%s in a wheel of %s: %v, want that it may be there: %v", c.member, c.distribution, err, c.own)
		}
	}
}

// A .pth file may list directories of its own, and a .start file what to call. One that runs code is accepted of setuptools, and of packages that the user names.
func TestStartFiles(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		distribution, text string
		files              map[string]string
		ending             string // of the file; .pth by default
		named              bool
		want               string
	}{
		"directory":          {text: "tool/inner\n# import x\n\n"},
		"import":             {text: "import tool\n", want: "runs code"},
		"import, named":      {text: "import tool\n", named: true},
		"import, setuptools": {distribution: "setuptools", text: "import _distutils_hack\n"},
		"behind a mark":      {text: "\ufeffimport tool\n", want: "runs code"},
		"with a tab":         {text: "import\ttool\n", want: "runs code"},
		"odd line break":     {text: "# tool\x0cimport tool\n", want: "runs code"},
		"no line break":      {text: "tool\rimport tool", want: "runs code"},
		"entry point":        {ending: ".start", text: "# of 3.15\ntool:begin\n", want: "runs code"},
		"entry point, named": {ending: ".START", text: "tool:begin\n", named: true},
		"no entry point":     {ending: ".start", text: "# tool:begin\n"},
		"outside":            {text: "../../x\n", named: true, want: "outside of site-packages"},
		"absolute":           {text: "/tmp/x\n", named: true, want: "outside of site-packages"},
		"hidden start":       {text: "tool/inner\n", files: map[string]string{"tool/inner/sitecustomize.py": ""}, want: "belongs to the interpreter"},
		"hidden torch":       {text: "./tool//inner\n", files: map[string]string{"tool/inner/torch/x.py": ""}, named: true, want: "belongs to torch"},
	} {
		c.distribution = cmp.Or(c.distribution, "tool")
		files := map[string]string{c.distribution + "-1.0.data/purelib/tool_start" + cmp.Or(c.ending, ".pth"): c.text}
		maps.Copy(files, c.files)
		err := checkOwn(t, c.distribution, files, c.named)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if errors.Is(err, wheel.ErrRunsAtStart) != (c.want == "runs code") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
