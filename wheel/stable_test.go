package wheel_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/wheel"
)

// stableOptions describe a wheel of the stable ABI whose ops call functions.
func stableOptions(imports ...string) wheeltest.Options {
	return wheeltest.Options{Stable: "2.10", Ops: []wheeltest.Op{
		{Name: "cpu_adam", Dir: "adam", Imports: append([]string{"aoti_torch_get_dim", "torch_library_impl"}, imports...)},
		{Name: "utils", Imports: []string{"aoti_torch_get_dim"}},
	}}
}

// A wheel of the stable ABI is for every Python and every torch from one on, and says so wherever
// it says what it is for.
func TestPackStable(t *testing.T) {
	path := wheeltest.Packed(t, t.TempDir(), stableOptions())
	if name := filepath.Base(path); name != "deepspeed-0.19.8+ops4a9c3dbf.v3-1_cdcdcdcd-py3-none-manylinux_2_17_x86_64.whl" {
		t.Error(name)
	}
	files := wheeltest.Read(t, path)
	info := "deepspeed-0.19.8+ops4a9c3dbf.v3.dist-info/"
	for name, want := range map[string][]string{
		"METADATA": {"Requires-Dist: torch>=2.10\n", "Requires-Python: >=3.10\n"},
		"WHEEL":    {"Tag: py3-none-manylinux_2_17_x86_64\n"},
	} {
		for _, line := range want {
			if !strings.Contains(files[info+name], line) {
				t.Errorf("no %q in %s:\n%s", line, name, files[info+name])
			}
		}
	}
	v, err := wheel.Verify(t.Context(), path)
	if err != nil || v.Err() != nil {
		t.Fatal(err, v.Err())
	}
	m, c := v.Manifest, v.Contents
	if *m.TorchABI != (wheel.TorchABI{Stable: true, Min: "2.10"}) || m.Torch != "2.10" || m.CUDA != "" || m.Python != "3.10+" {
		t.Errorf("manifest %+v", m)
	}
	if *c.TorchABI != *m.TorchABI || c.Torch != "2.10" || c.CUDA != "" || c.Python != "3.10+" || !slices.Equal(c.Ops, []string{"cpu_adam", "utils"}) {
		t.Errorf("contents %+v", c)
	}
}

// The ABI is read from the symbols: of a wheel that somebody else built, too.
func TestStableBySymbols(t *testing.T) {
	for imports, want := range map[string]*wheel.TorchABI{
		"aoti_torch_get_dim":                     {Stable: true},
		"torch_list_size":                        {Stable: true, Min: "2.10"},
		"torch_list_size torch_from_blob":        {Stable: true, Min: "2.11"},
		"torch_stream_native_handle":             {Stable: true, Min: "2.13"},
		"torch_list_size _ZNK2at6Tensor5numelEv": {},
		"memmove":                                nil,
	} {
		op := wheeltest.Op{Name: "x", Imports: strings.Fields(imports)}
		c, err := wheel.Inspect(t.Context(), wheeltest.Compiled(t, t.TempDir(), wheeltest.Options{Ops: []wheeltest.Op{op}}))
		if err != nil {
			t.Fatal(err)
		}
		if got := c.TorchABI; (got == nil) != (want == nil) || got != nil && *got != *want {
			t.Errorf("%s: %+v, want %+v", imports, got, want)
		}
	}
}

// An op that uses more than the stable ABI of the oldest torch is not what was asked, and a wheel
// whose manifest says that it is stable is damaged.
func TestStableRefused(t *testing.T) {
	unnamed, unique := stableOptions(), stableOptions()
	unnamed.Ops[0].Unnamed = true
	unique.Ops[0].Code = ".type one, @gnu_unique_object\n.globl one\n.size one, 1\n.data\none: .byte 1\n.text"
	for name, c := range map[string]struct {
		opt  wheeltest.Options
		want string
	}{
		"no library":    {unnamed, "op cpu_adam uses functions of libtorch_cpu.so, but is not linked to the library"},
		"unique":        {unique, "op cpu_adam has process-wide unique symbols (STB_GNU_UNIQUE), which another op's symbols could replace"},
		"C++ interface": {stableOptions("_ZNK2at6Tensor5numelEv"), "op cpu_adam uses torch's C++ interface, which is not stable: _ZNK2at6Tensor5numelEv"},
		"Python":        {stableOptions("PyErr_Occurred"), "op cpu_adam uses Python's C interface: PyErr_Occurred"},
		"newer torch":   {stableOptions("torch_from_blob"), "op cpu_adam uses functions of torch 2.11, requested torch 2.10"},
	} {
		path := wheeltest.Packed(t, t.TempDir(), c.opt)
		v, err := wheel.Verify(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(v.Findings(), "; "); got != "libraries: "+c.want {
			t.Errorf("%s: %s", name, got)
		}
		asked := wheel.Want{Ops: v.Contents.Ops, CPU: wheel.CPUv3, TorchABI: &wheel.TorchABI{Stable: true, Min: "2.10"}}
		if got := wheel.Audit(v.Contents, asked); !slices.Equal(got, []string{c.want}) {
			t.Errorf("%s: audit %q", name, got)
		}
	}
}

// The table of functions is that of the header: each once, the releases in order, all of torch's
// C interface.
func TestStableFunctions(t *testing.T) {
	text, err := os.ReadFile("data/stable.json")
	if err != nil {
		t.Fatal(err)
	}
	releases := regexp.MustCompile(`"torch": "(2\.\d+)"`).FindAllStringSubmatch(string(text), -1)
	for i := range releases[1:] {
		if wheel.CompareVersions(releases[i][1], releases[i+1][1]) >= 0 {
			t.Errorf("%s stands before %s", releases[i][1], releases[i+1][1])
		}
	}
	seen := map[string]bool{}
	for _, m := range regexp.MustCompile(`"(torch_\w+)"`).FindAllStringSubmatch(string(text), -1) {
		if seen[m[1]] {
			t.Errorf("%s stands there twice", m[1])
		}
		seen[m[1]] = true
	}
	if releases[0][1] != "2.10" || !seen["torch_call_dispatcher"] || len(seen) < 60 {
		t.Errorf("from torch %s on, %d functions", releases[0][1], len(seen))
	}
}
