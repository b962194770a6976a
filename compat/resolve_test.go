package compat

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/compat/evidence"
	"github.com/dsbuild/dsbuild/wheel"
)

var update = flag.Bool("update", false, "rewrite the golden file")

// words splits a command line; quotes hold spaces together.
func words(line string) []string {
	var out []string
	for _, w := range regexp.MustCompile(`"[^"]*"|\S+`).FindAllString(line, -1) {
		out = append(out, strings.Trim(w, `"`))
	}
	return out
}

// ask is what a command line says.
type ask struct {
	request wheel.Request
	hosts   []BuildHost
	sources *DeepSpeed // the caller's own
}

// in returns the tables of the command line.
func (a ask) in(tt *Tables) *Tables {
	if a.sources == nil {
		return tt
	}
	return tt.WithSources(*a.sources)
}

func parse(t *testing.T, tt *Tables, line string) ask {
	t.Helper()
	var a ask
	args := words(line)
	for i := 0; i+1 < len(args); i += 2 {
		a.set(t, tt, args[i], args[i+1])
	}
	return a
}

func (a *ask) set(t *testing.T, tt *Tables, flag, v string) {
	t.Helper()
	switch flag {
	case "--gpu":
		a.request.GPUs = append(a.request.GPUs, v)
	case "--arch":
		have := wheel.ArchList(a.request.Archs)
		a.request.Archs = archs(t, strings.TrimPrefix(have+";"+v, ";"))
	case "--ops":
		a.request.Ops = strings.Split(v, ",")
	case "--torch":
		a.request.Torch = v
	case "--cuda":
		a.request.CUDA = v
	case "--python":
		a.request.Python = v
	case "--target-glibc":
		a.request.Glibc = v
	case "--min-driver":
		a.request.Driver = v
	case "--cpu":
		a.request.CPU = wheel.CPULevel(v)
	case "--machine":
		a.request.CPU = wheel.DefaultCPU(v)
	case "--abi":
		a.request.ABI = wheel.ABI(v)
	case "--deepspeed":
		a.request.DeepSpeed = v
	case "--source":
		a.sources = &DeepSpeed{Version: v, Changed: evidence.Changes{wheel.X86: {}, wheel.Arm: {}}}
	case "--changed": // OP:FILE, or OP:FILE:MACHINE
		f := strings.Split(v, ":")
		machines := f[2:]
		if len(machines) == 0 {
			machines = evidence.Machines()
		}
		for _, machine := range machines {
			a.sources.Changed[machine][f[0]] = f[1]
		}
	case "--builder": // a base is what comes with it
	case "--base":
		g, ok := tt.EnvironmentOfImage(v)
		if !ok {
			t.Fatalf("--base %s is not known", v)
		}
		a.hosts = []BuildHost{g}
	case "--host": // CUDA:GCC:PYTHON:GLIBC
		f := strings.Split(v, ":")
		a.hosts = []BuildHost{{Name: "this machine", Host: true, CUDA: f[0], GCCs: []string{f[1]}, Pythons: []string{f[2]}, Glibc: f[3]}}
	default:
		t.Fatalf("flag %s", flag)
	}
}

// remove takes a flag out, or one value of a list.
func (a *ask) remove(t *testing.T, flag, v string) {
	t.Helper()
	before := fmt.Sprint(a.request)
	r := &a.request
	switch flag {
	case "--gpu":
		r.GPUs = without(SplitNames(r.GPUs), v)
	case "--ops":
		r.Ops = without(r.Ops, v)
	case "--arch":
		r.Archs = slices.DeleteFunc(slices.Clone(r.Archs), func(x wheel.Arch) bool { return x.String() == v })
	case "--abi":
		r.ABI = ""
	default:
		value := map[string]*string{
			"--deepspeed": &r.DeepSpeed, "--torch": &r.Torch, "--cuda": &r.CUDA, "--python": &r.Python, "--min-driver": &r.Driver, "--target-glibc": &r.Glibc,
		}[flag]
		if *value == v {
			*value = ""
		}
	}
	if fmt.Sprint(a.request) == before {
		t.Errorf("there is no %s %s to leave out", flag, v)
	}
}

// gainOf matches a hint with a change that was tried, and what comes of it.
var gainOf = regexp.MustCompile(`^(?:omit (--[a-z-]+) ("[^"]*"|\S+)|remove (\S+) from (--ops)|omit (--base)|omit --cpu and --machine|pass (--base|--builder|--abi) (\S+)) ` +
	`to get (?:DeepSpeed (\S+) with )?torch (\S+) for CUDA (\S+) and Python (\d+\.\d+)`)

// change does what a hint says, as a reader would: "omit --torch 2.15.0 to get torch 2.10.0 for CUDA 12.8 and
// Python 3.11". It returns the match of gainOf, nil for a hint without a change.
func (a *ask) change(t *testing.T, tt *Tables, hint string) []string {
	t.Helper()
	m := gainOf.FindStringSubmatch(hint)
	if m == nil {
		if strings.Contains(hint, " to get ") {
			t.Errorf("hint %q", hint)
		}
		return nil
	}
	switch {
	case m[1] != "":
		a.remove(t, m[1], strings.Trim(m[2], `"`))
	case m[4] != "":
		a.remove(t, m[4], m[3])
	case m[5] != "", m[6] == "--builder":
		a.hosts = nil
	case m[6] != "":
		a.set(t, tt, m[6], m[7])
	default:
		a.request.CPU = ""
	}
	return m
}

// follow checks that a change gives what the hint says. It reports false for a hint without one.
func (a ask) follow(t *testing.T, tt *Tables, hint string) bool {
	t.Helper()
	m := a.change(t, tt, hint)
	if m == nil {
		return false
	}
	tc, err := a.in(tt).Resolve(a.request, a.hosts...)
	if err != nil || tc.Torch != m[9] || tc.CUDA != m[10] || tc.Python != m[11] || m[8] != "" && tc.DeepSpeed != m[8] {
		t.Errorf("hint %q: DeepSpeed %s, torch %s, CUDA %s, Python %s, %v", hint, tc.DeepSpeed, tc.Torch, tc.CUDA, tc.Python, err)
	}
	return true
}

// followName replaces a name by each that a hint asks for: there is a wheel for each of them.
func followName(t *testing.T, tt *Tables, hint string) bool {
	t.Helper()
	names, ok := strings.CutPrefix(hint, "did you mean ")
	if !ok {
		return false
	}
	for _, name := range strings.Split(strings.TrimSuffix(names, "?"), " or ") {
		name = strings.Trim(name, `"`)
		if arch, isArch := strings.CutPrefix(name, "--arch "); isArch {
			if _, err := tt.Resolve(wheel.Request{Archs: archs(t, arch)}); err != nil {
				t.Errorf("hint %q: %v", hint, err)
			}
		} else if err := tt.CheckGPU(name); err != nil && tt.CheckOp(name) != nil {
			t.Errorf("hint %q: %v", hint, err)
		}
	}
	return true
}

// answer is what Resolve says, in lines.
func answer(tc Toolchain, err error) string {
	var bad *ConflictError
	if errors.As(err, &bad) {
		var out []string
		for _, c := range bad.Conflicts {
			out = append(out, c.What)
		}
		return "  " + strings.Join(append(out, "hint: "+bad.Hint()), "\n  ") + "\n"
	}
	if err != nil {
		return "  error: " + err.Error() + "\n"
	}
	where := tc.Environment.Suite
	if where == "" {
		where = tc.Environment.Name
	}
	out := fmt.Sprintf("  %s: torch %s, CUDA %s, toolkit %s, Python %s on %s", tc.CUDASource, tc.Torch, tc.CUDA, tc.Toolkit, tc.Python, where)
	for _, part := range [][2]string{
		{"gcc ", tc.GCC}, {"", strings.Join(tc.Pins, " ")}, {"archs ", wheel.ArchList(tc.Archs)},
	} {
		if part[1] != "" {
			out += ", " + part[0] + part[1]
		}
	}
	if tc.ABI == wheel.StableABI {
		torch, cuda, python := tc.Serves()
		out += fmt.Sprintf(", for torch %s and newer, CUDA %s, Python %s", torch, cuda, python)
	}
	for _, r := range tc.Warnings {
		out += "\n  warning: " + r
	}
	for _, n := range tc.Notes {
		out += "\n  note: " + n
	}
	return out + "\n"
}

// TestResolve resolves each command line of the golden file.
func TestResolve(t *testing.T) {
	const path = "testdata/resolve.golden"
	golden, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	tt := tables(t)
	var now strings.Builder
	lines := 0
	for _, block := range strings.Split(string(golden), "\n--") {
		line, _, _ := strings.Cut("--"+strings.TrimPrefix(block, "--"), "\n")
		a := parse(t, tt, line)
		want := strings.TrimPrefix(strings.TrimPrefix("--"+strings.TrimPrefix(block, "--"), line), "\n")
		got := answer(a.in(tt).Resolve(a.request, a.hosts...))
		if strings.TrimSpace(got) != strings.TrimSpace(want) && !*update {
			t.Errorf("%s:\n%swant\n%s", line, got, want)
		}
		now.WriteString(line + "\n" + got)
		lines++
	}
	if lines < 60 {
		t.Errorf("%d lines: at least 60 are promised", lines)
	}
	if *update {
		if err := os.WriteFile(path, []byte(now.String()), 0o644); err != nil { //nolint:gosec // a file of the repository
			t.Fatal(err)
		}
	}
}

// TestHintsWork asks for anything at random. Where that cannot be, the change of the hint has to give what it says, and
// where the hint has none, no value alone is to blame. There is a wheel for each name that a hint asks for.
func TestHintsWork(t *testing.T) {
	tt := tables(t)
	pools := []struct {
		flag   string
		values []string
	}{
		{"--gpu", []string{"V100", "A100", "RTX 5090", "H100", "T4", "K80", "GH200", "P100", "V10O", "Jetson TX2", "B200", "RTX 6000", "M60", "K40", "AGX Orin"}},
		{"--gpu", []string{"V100", "A100", "RTX 5090", "GB200", "nonsense"}},
		{"--arch", []string{"7.0", "8.0+PTX", "12.0", "3.0", "9.0", "10.3"}},
		{"--torch", []string{"2.15.0", "2.10", "2.8.0", "2.4.1", "2.0", "1.13.1", "3.0.0", "2.5.1"}},
		{"--cuda", []string{"13", "12.8", "12.1", "11.7", "12.9", "10.2", "13.2"}},
		{"--python", []string{"3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14", "3.15", "2.7"}},
		{"--target-glibc", []string{"2.17", "2.28", "2.31", "2.35", "2.36", "2.41", "new"}},
		{"--min-driver", []string{"450.80.02", "525.60.13", "550.54", "580.65.06", "5"}},
		{"--deepspeed", []string{"0.14.0", "0.19.8", "0.1.0", "latest"}},
		{"--ops", []string{"cpu_adam", "utils,fused_adam", "fused_adm", "all", "proven", "nonsense,cpu_adam", "fused_lamb,cpu_adam,bad", "gds", "fp_quantizer", "fp_quantizer,gds", "async_io,gds,fp_quantizer,fused_lamb"}},
		{"--host", []string{":9:3.11:2.31", "12.1:13:3.11:2.35", "9.0:12:3.8:2.36", "13.5:14:3.15:2.41"}},
		{"--base", []string{"debian:bookworm", "debian:trixie", "ubuntu:22.04", "debian:bullseye", "ubuntu:20.04", "nvidia/cuda:12.1.1-devel-ubuntu22.04", "nvidia/cuda:11.8.0-devel-ubuntu20.04", "nvidia/cuda:13.0.2-devel-ubuntu24.04"}},
	}
	random := rand.New(rand.NewPCG(5, 2026)) //nolint:gosec // the same each time
	refused, fixes, names := 0, 0, 0
	for range 200 {
		line := ""
		for _, p := range pools {
			if random.IntN(3) == 0 {
				line += " " + p.flag + " " + QuoteFlag(p.values[random.IntN(len(p.values))])
			}
		}
		a := parse(t, tt, line)
		_, err := a.in(tt).Resolve(a.request, a.hosts...)
		var bad *ConflictError
		if !errors.As(err, &bad) {
			continue
		}
		refused++
		hint := bad.Hint()
		switch {
		case hint == "":
			t.Errorf("%s:\n%v\nno hint", line, err)
		case a.follow(t, tt, hint):
			fixes++
		case !strings.Contains(hint, "did you mean"):
			oneValueLess(t, tt, line)
		}
		for _, c := range bad.Conflicts {
			for _, advice := range c.Advice {
				names += oneIf(followName(t, tt, advice))
			}
		}
		if t.Failed() {
			t.Fatalf("%s:\n%v", line, err)
		}
	}
	if refused < 80 || fixes < 20 || names < 10 {
		t.Errorf("%d refusals, %d of them with a fix, %d other names: too few to prove anything", refused, fixes, names)
	}
}

// oneValueLess fails if a line that has no fix works without one of its values. A wheel for other GPUs is no fix.
func oneValueLess(t *testing.T, tt *Tables, line string) {
	t.Helper()
	args := words(line)
	for i := 0; i+1 < len(args); i += 2 {
		if args[i] == "--gpu" || args[i] == "--arch" || strings.Contains(args[i+1], ",") { // that is several values
			continue
		}
		if args[i] == "--ops" && tt.CheckOp(args[i+1]) != nil { // whoever misspelled an op wants another one
			continue
		}
		less := ask{}
		for j := 0; j+1 < len(args); j += 2 {
			if j != i {
				less.set(t, tt, args[j], args[j+1])
			}
		}
		if _, err := less.in(tt).Resolve(less.request, less.hosts...); err == nil {
			t.Errorf("%s: no fix is named, but it works without %s %s", line, args[i], args[i+1])
		}
	}
}
