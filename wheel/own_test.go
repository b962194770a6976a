package wheel_test

import (
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
		"torch/version.py":          "torch",
		"functorch.py":              "torch",
		data + "purelib/torch/x.py": "torch",
		data + "data/lib/python3.11/site-packages/triton/x.py": "torch",
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
		file := filepath.Join(t.TempDir(), "tool-1.0-py3-none-any.whl")
		wheeltest.Write(t, file, map[string]string{
			member:                        "[console_scripts]\npython3 = a:b\n",
			"tool-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tool\nVersion: 1.0\n",
			"tool-1.0.dist-info/WHEEL":    "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		})
		a, err := wheel.Open(file)
		if err != nil {
			t.Fatalf("%s: %v", member, err)
		}
		err = wheel.CheckOwnFiles(a)
		if (err == nil) != (want == "") || err != nil && !strings.HasSuffix(err.Error(), "which belongs to "+want) {
			t.Errorf("%s: %v, want that it belongs to %q", member, err, want)
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
