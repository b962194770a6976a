package compat

import (
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/node"
	"github.com/dsbuild/dsbuild/wheel"
)

func tables(t *testing.T) *Tables {
	t.Helper()
	tables, err := NewTables()
	if err != nil {
		t.Fatal(err)
	}
	return tables
}

func archs(t *testing.T, list ...string) []wheel.Arch {
	t.Helper()
	a, err := wheel.ParseArchs(list)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestFit(t *testing.T) {
	base := wheel.Manifest{
		Python: "3.11", Torch: "2.15.0", CUDA: "13.2", Glibc: "2.34", CPU: "x86-64-v3",
		Archs: []string{"8.0"}, PTX: []string{},
	}
	good := node.Facts{
		Python: "3.11.7", Tag: "cp311", Torch: "2.15.1", TorchCUDA: "13.2", Glibc: "2.36", CPU: "x86-64-v4",
		GPUs: []node.GPU{{Name: "A100", Arch: "8.0"}},
	}
	for name, c := range map[string]struct {
		change func(*wheel.Manifest, *node.Facts)
		want   string // "" fits; else part of the one reason
	}{
		"as built":               {func(*wheel.Manifest, *node.Facts) {}, ""},
		"no GPU":                 {func(_ *wheel.Manifest, f *node.Facts) { f.GPUs = nil }, ""},
		"same major, newer":      {func(_ *wheel.Manifest, f *node.Facts) { f.GPUs[0].Arch = "8.9" }, ""},
		"older GPU":              {func(_ *wheel.Manifest, f *node.Facts) { f.GPUs[0] = node.GPU{Name: "RTX 2080 Ti", Arch: "7.5"} }, "built for 8.0, this node has RTX 2080 Ti (7.5)"},
		"next major":             {func(_ *wheel.Manifest, f *node.Facts) { f.GPUs[0].Arch = "9.0" }, "built for 8.0"},
		"next major by PTX":      {func(m *wheel.Manifest, f *node.Facts) { m.PTX = []string{"8.0"}; f.GPUs[0].Arch = "9.0" }, ""},
		"PTX for a newer GPU":    {func(m *wheel.Manifest, f *node.Facts) { m.PTX = []string{"8.0"}; f.GPUs[0].Arch = "7.5" }, "built for 8.0"},
		"minor of the wheel":     {func(m *wheel.Manifest, _ *node.Facts) { m.Archs = []string{"8.6"} }, "built for 8.6"},
		"for one GPU alone":      {func(m *wheel.Manifest, f *node.Facts) { m.Archs = []string{"9.0a"}; f.GPUs[0].Arch = "9.0" }, ""},
		"for another GPU alone":  {func(m *wheel.Manifest, f *node.Facts) { m.Archs = []string{"12.0a"}; f.GPUs[0].Arch = "12.1" }, "built for 12.0a"},
		"PTX for another alone":  {func(m *wheel.Manifest, f *node.Facts) { m.PTX = []string{"9.0a"}; f.GPUs[0].Arch = "10.0" }, "built for 8.0"},
		"for a family":           {func(m *wheel.Manifest, f *node.Facts) { m.Archs = []string{"10.0f"}; f.GPUs[0].Arch = "10.3" }, ""},
		"no device code":         {func(m *wheel.Manifest, f *node.Facts) { m.Archs = nil; f.GPUs[0].Arch = "5.0" }, ""},
		"two digits":             {func(m *wheel.Manifest, f *node.Facts) { m.Archs = []string{"12.0"}; f.GPUs[0].Arch = "12.1" }, ""},
		"no Python":              {func(_ *wheel.Manifest, f *node.Facts) { *f = node.Facts{} }, "no Python"},
		"stable ABI":             {func(m *wheel.Manifest, _ *node.Facts) { m.Python = "3.8+" }, ""},
		"newer stable ABI":       {func(m *wheel.Manifest, _ *node.Facts) { m.Python = "3.12+" }, "built for Python 3.12+, this node has 3.11.7"},
		"another machine":        {func(_ *wheel.Manifest, f *node.Facts) { f.Platform = "linux_aarch64" }, "built for x86_64, this node is linux_aarch64"},
		"its machine":            {func(_ *wheel.Manifest, f *node.Facts) { f.Platform = "linux_x86_64" }, ""},
		"Python alone":           {func(m *wheel.Manifest, f *node.Facts) { m.CPU = ""; f.Platform = "linux_aarch64" }, ""},
		"no machine code":        {func(m *wheel.Manifest, _ *node.Facts) { m.CPU = "" }, ""},
		"other Python":           {func(_ *wheel.Manifest, f *node.Facts) { f.Python, f.Tag = "3.12.1", "cp312" }, "built for Python 3.11, this node has 3.12.1"},
		"no torch":               {func(_ *wheel.Manifest, f *node.Facts) { f.Torch = "" }, "has no torch"},
		"other torch":            {func(_ *wheel.Manifest, f *node.Facts) { f.Torch = "2.14.0" }, "built for torch 2.15.0, this node has 2.14.0"},
		"torch 2.1 is not 2.15":  {func(_ *wheel.Manifest, f *node.Facts) { f.Torch = "2.1.5" }, "built for torch 2.15.0"},
		"torch with local part":  {func(_ *wheel.Manifest, f *node.Facts) { f.Torch = "2.15.0+cu132" }, ""},
		"torch for another CUDA": {func(_ *wheel.Manifest, f *node.Facts) { f.TorchCUDA = "12.8" }, "built for CUDA 13.2"},
		"torch for the CPU":      {func(_ *wheel.Manifest, f *node.Facts) { f.TorchCUDA = "" }, "the CPU alone"},
		"old glibc":              {func(_ *wheel.Manifest, f *node.Facts) { f.Glibc = "2.31" }, "needs glibc 2.34, this node has 2.31"},
		"glibc 2.4 is old":       {func(_ *wheel.Manifest, f *node.Facts) { f.Glibc = "2.4" }, "needs glibc 2.34"},
		"old CPU":                {func(_ *wheel.Manifest, f *node.Facts) { f.CPU = "x86-64-v2" }, "needs a x86-64-v3 CPU"},
		"CPU not known":          {func(_ *wheel.Manifest, f *node.Facts) { f.CPU = "" }, ""},
	} {
		m, f := base, good
		f.GPUs = append([]node.GPU{}, good.GPUs...)
		c.change(&m, &f)
		v := Fit(m, f)
		if c.want == "" && !v.OK() || c.want != "" && (len(v.Reasons) != 1 || !strings.Contains(v.Reasons[0], c.want)) {
			t.Errorf("%s: reasons %q, want %q", name, v.Reasons, c.want)
		}
	}
}
