package compat

import (
	"errors"
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

func TestTables(t *testing.T) {
	tt := tables(t)
	for _, d := range tt.DeepSpeeds {
		if len(d.SHA256) != 64 {
			t.Errorf("DeepSpeed %s: sha256 %q", d.Version, d.SHA256)
		}
	}
	for _, torch := range tt.Torches {
		known := false
		for _, c := range tt.CUDAs {
			known = known || c.Version == torch.CUDA
		}
		if !known || !strings.HasPrefix(torch.Toolkit, torch.CUDA+".") {
			t.Errorf("torch %s: CUDA %s, toolkit %s", torch.Version, torch.CUDA, torch.Toolkit)
		}
	}
	for _, name := range wheel.DefaultOps() {
		if _, err := tt.Resolve(wheel.Spec{Ops: []string{name}, Archs: archs(t, "8.0")}); err != nil {
			t.Errorf("default op %s: %v", name, err)
		}
	}
}

func TestResolve(t *testing.T) {
	tc, err := tables(t).Resolve(wheel.Spec{Archs: archs(t, "8.0")})
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join([]string{tc.DeepSpeed, tc.Torch, tc.CUDA, tc.Toolkit, tc.Python, string(tc.CPU), strings.Join(tc.OpNames(false), ",")}, " ")
	if got != "0.19.8 2.15.0 13.2 13.2.2 3.11 x86-64-v3 cpu_adam,utils,fused_adam" || len(tc.Remarks) > 0 {
		t.Errorf("%s; remarks %q", got, tc.Remarks)
	}
	tc, err = tables(t).Resolve(wheel.Spec{Archs: archs(t, "8.0"), Ops: []string{"utils"}})
	if err != nil || len(tc.Archs) > 0 || len(tc.Remarks) != 1 {
		t.Errorf("no device code: archs %v, remarks %q, %v", tc.Archs, tc.Remarks, err)
	}
}

func TestResolveRemarks(t *testing.T) {
	for list, want := range map[string]string{"7.5;8.0": "arch 7.5 in the list switches BF16 off", "7.5": "", "8.0;9.0": ""} {
		tc, err := tables(t).Resolve(wheel.Spec{Archs: archs(t, list)})
		if got := strings.Join(tc.Remarks, "|"); err != nil || (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, %v", list, got, err)
		}
	}
	tt := tables(t)
	if tc, err := tt.Resolve(wheel.Spec{Archs: archs(t, "8.0"), Ops: []string{AllOps}}); err != nil || len(tc.Ops) != len(tt.Ops) {
		t.Errorf("all ops: %v, %v", tc.OpNames(false), err)
	}
}

func TestResolveNamesEveryConflict(t *testing.T) {
	_, err := tables(t).Resolve(wheel.Spec{
		DeepSpeed: "0.1.0", Torch: "1.13.0", Python: "3.7", Ops: []string{"fused_adam", "nonsense"}, Archs: archs(t, "7.0"),
	})
	var bad *ConflictError
	if !errors.As(err, &bad) || bad.ExitCode() != 2 {
		t.Fatal(err)
	}
	for _, want := range []string{"0.1.0", "1.13.0", "3.7", "nonsense", "arch 7.0"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %s", err, want)
		}
	}
	if !strings.Contains(bad.Hint(), "--arch takes 7.5") {
		t.Errorf("hint %q", bad.Hint())
	}
	_, err = tables(t).Resolve(wheel.Spec{})
	if err == nil || !strings.Contains(err.Error(), "no arch is given and fused_adam has device code") {
		t.Errorf("no arch: %v", err)
	}
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
