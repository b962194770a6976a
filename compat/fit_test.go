package compat

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/wheel"
)

// fitCase is a line of testdata/fit.table and what stands below it.
type fitCase struct {
	line     int
	pkg      string // of the wheel; DeepSpeed if empty
	wheel    string
	node     string
	yes      bool
	reasons  []string
	notes    []string
	manifest wheel.Manifest
	facts    node.Facts
}

// confusion reads the table; what it says of a wheel and of a node is put on top
// of those that its head describes.
func confusion(t *testing.T) []fitCase {
	t.Helper()
	text, err := os.ReadFile("testdata/fit.table")
	if err != nil {
		t.Fatal(err)
	}
	var cases []fitCase
	for i, line := range strings.Split(string(text), "\n") {
		reason, isReason := strings.CutPrefix(line, "  - ")
		note, isNote := strings.CutPrefix(line, "  * ")
		switch {
		case line == "" || line[0] == '#':
		case isReason:
			cases[len(cases)-1].reasons = append(cases[len(cases)-1].reasons, reason)
		case isNote:
			cases[len(cases)-1].notes = append(cases[len(cases)-1].notes, note)
		default:
			f := strings.Split(line, " | ")
			if len(f) != 3 || f[2] != "yes" && f[2] != "no" {
				t.Fatalf("line %d: %s", i+1, line)
			}
			c := fitCase{line: i + 1, wheel: f[0], node: f[1], yes: f[2] == "yes", manifest: baseWheel(), facts: baseNode()}
			settings(t, i+1, f[0], c.setWheel)
			settings(t, i+1, f[1], c.setNode)
			name := cmp.Or(c.pkg, "deepspeed") + "-" + c.manifest.Version + "-" + c.manifest.Name + ".whl"
			if c.manifest.Name == "" {
				name = "renamed.whl"
			} else if _, err := wheel.ParseFileName(name); err != nil {
				t.Fatalf("line %d: %v", i+1, err)
			}
			c.manifest.Name = name
			cases = append(cases, c)
		}
	}
	return cases
}

func baseWheel() wheel.Manifest {
	return wheel.Manifest{
		Name: "cp311-cp311-manylinux_2_35_x86_64", Version: "0.19.8", Ops: []string{"cpu_adam", "fused_adam", "utils"}, Archs: []string{"8.0"},
		CPU: "x86-64-v3", Python: "3.11", Torch: "2.15.0", CUDA: "13.2", Toolchain: wheel.Toolchain{Toolkit: "13.2.2"}, Glibc: "2.34", GLIBCXX: "3.4.30", CXX11ABI: true,
	}
}

func baseNode() node.Facts {
	abi := true
	return node.Facts{
		GPUs: []node.GPU{{Name: "NVIDIA A100-SXM4-80GB", Arch: "8.0"}}, Driver: "595.58.03", CPU: "x86-64-v4", Python: "3.11.7", Tag: "cp311",
		Platform: "linux_x86_64", Glibc: "2.36", Libstdcxx: "3.4.30", Torch: "2.15.0", TorchCUDA: "13.2", CXX11ABI: &abi,
	}
}

// settings splits "sass 8.0, cpu v4"; "-" is nothing.
func settings(t *testing.T, line int, text string, set func(key, value string) bool) {
	t.Helper()
	if text == "-" {
		return
	}
	for _, one := range strings.Split(text, ", ") {
		key, value, _ := strings.Cut(one, " ")
		if value == "-" {
			value = ""
		}
		if !set(key, value) {
			t.Fatalf("line %d: %s", line, one)
		}
	}
}

func list(value string) []string {
	if value == "" {
		return []string{}
	}
	return strings.Split(value, "+")
}

func level(short string) string {
	return map[string]string{"": "", "v1": "x86-64", "v2": "x86-64-v2", "v3": "x86-64-v3", "v4": "x86-64-v4", "arm": "armv8-a"}[short]
}

func (c *fitCase) setWheel(key, value string) bool {
	m := &c.manifest
	text := map[string]*string{
		"version": &m.Version, "python": &m.Python, "torch": &m.Torch, "cuda": &m.CUDA, "toolkit": &m.Toolchain.Toolkit,
		"glibc": &m.Glibc, "glibcxx": &m.GLIBCXX, "tag": &m.Name,
	}[key]
	lists := map[string]*[]string{"ops": &m.Ops, "sass": &m.Archs, "ptx": &m.PTX}[key]
	switch {
	case text != nil:
		*text = value
	case lists != nil:
		*lists = list(value)
	case key == "cpu":
		m.CPU = level(value)
		if value == "alien" { // the name does not say so
			m.CPU = level("arm")
		} else if value == "arm" {
			m.Name = strings.Replace(m.Name, wheel.X86, wheel.Arm, 1)
		}
	case key == "abi":
		m.CXX11ABI = value == "new"
	case key == "package":
		c.pkg = value
	case key == "uses":
		if value == "cxx" {
			m.TorchABI = &wheel.TorchABI{}
		}
	case key == "stable":
		m.TorchABI = &wheel.TorchABI{Stable: true, Min: value}
	case strings.HasPrefix(key, "cu1"): // a variant: its toolkit, SASS and PTX
		f := strings.Fields(value + " - -")
		v := wheel.Variant{Name: key, Ops: []string{"fused_adam"}, CUDA: key[2:], Toolkit: f[0], Archs: strings.Split(f[1], "+")}
		if f[2] != "-" {
			v.PTX = list(f[2])
		}
		if len(m.Variants) == 0 {
			m.Archs, m.PTX = nil, nil
		}
		m.CUDA, m.Toolchain.Toolkit = "", ""
		m.Variants, m.Archs, m.PTX = append(m.Variants, v), append(m.Archs, v.Archs...), append(m.PTX, v.PTX...)
	case key == "oparchs":
		op, archs, _ := strings.Cut(value, " ")
		m.OpArchs = map[string]wheel.DeviceCode{op: {Archs: list(archs)}}
	default:
		return false
	}
	return true
}

func (c *fitCase) setNode(key, value string) bool {
	f := &c.facts
	text := map[string]*string{
		"driver": &f.Driver, "python": &f.Python, "tag": &f.Tag, "platform": &f.Platform, "glibc": &f.Glibc,
		"libstdcxx": &f.Libstdcxx, "torchcuda": &f.TorchCUDA,
	}[key]
	switch {
	case text != nil:
		*text = value
	case key == "torch":
		f.Torch, f.TorchBuild, _ = strings.Cut(value, "+")
	case key == "cpu":
		f.CPU = level(value)
	case key == "abi":
		f.CXX11ABI = nil
		if value != "" {
			abi := value == "new"
			f.CXX11ABI = &abi
		}
	case key == "gpu":
		f.GPUs = nil
		for _, one := range strings.Split(value, " + ") {
			if at := strings.LastIndex(one, " "); at > 0 {
				f.GPUs = append(f.GPUs, node.GPU{Name: one[:at], Arch: strings.TrimPrefix(one[at+1:], "?")})
			}
		}
	default:
		return false
	}
	return true
}

func TestFit(t *testing.T) {
	tt := tables(t)
	cases := confusion(t)
	answers, kept := map[bool]int{}, 0
	for _, c := range cases {
		v := tt.Fit(c.manifest, c.facts)
		answers[c.yes]++
		at := fmt.Sprintf("fit.table:%d: %s | %s", c.line, c.wheel, c.node)
		if v.OK() != c.yes || !slices.Equal(v.Reasons, c.reasons) {
			t.Errorf("%s\n  reasons %q\n  want    %q", at, v.Reasons, c.reasons)
		}
		if !slices.Equal(v.Notes, c.notes) {
			t.Errorf("%s\n  notes %q\n  want    %q", at, v.Notes, c.notes)
		}
		if c.yes == (len(c.reasons) > 0) || v.OK() != (v.Hint() == "") {
			t.Errorf("%s: %v, %d reasons, hint %q", at, c.yes, len(c.reasons), v.Hint())
		}
		if command, ok := strings.CutPrefix(v.Hint(), "build a wheel that fits it: dsbuild wheel"); ok {
			kept++
			keeps(t, tt, at, command, c.facts)
		}
	}
	if kept < 30 {
		t.Errorf("%d hints name a wheel", kept)
	}
	if answers[true] < 40 || answers[false] < 40 {
		t.Errorf("%d cases fit and %d do not", answers[true], answers[false])
	}
	t.Logf("result: %d wheels on nodes: %d fit, %d do not", len(cases), answers[true], answers[false])
}

// keeps checks that the wheel which a hint names runs on the node.
func keeps(t *testing.T, tt *Tables, at, command string, f node.Facts) {
	t.Helper()
	a := parse(t, tt, command)
	if e := tt.find(attempt{a.request, a.hosts}); e == nil {
		t.Errorf("%s: %s: cannot be built", at, command)
	} else if v := tt.Fit(e.manifest(), f); !v.OK() {
		t.Errorf("%s: %s: %q", at, command, v.Reasons)
	}
}
