package compat

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/wheel"
)

// withOps are the tables with ops of the test's own, so that each rule is seen
// whatever the ops of DeepSpeed are.
func withOps(t *testing.T) *Tables {
	t.Helper()
	tt := tables(t)
	tt.Ops = []Op{
		{Name: "plain"},
		{Name: "device", DeviceCode: true},
		{Name: "modern", DeviceCode: true, MinArch: "8.0"},
		{Name: "bounded", DeviceCode: true, MinArch: "8.0", MaxArch: "9.0", Stable: &Proof{State: Launched, DeepSpeed: "0.19.8", Built: "2.15"}},
		{Name: "packaged", Needs: Needs{CUDASources: []CUDASource{CUDA13}}},
		{Name: "young", Since: "0.19.5"},
		{Name: "gone", Until: "0.19.7"},
		{Name: "broken", DeviceCode: true, Incompatible: []Incompatible{{From: "13.1", To: "", Why: "its sources redeclare a name"}}},
	}
	return tt
}

// opCase is a command line and what becomes of its ops.
type opCase struct {
	what, flags string
	want        string // the ops that are in, with their archs
	left        string // those that are not, of all
	warning     string // part of one
	err         string // part of the error
}

func opCases() []opCase {
	return []opCase{
		{what: "plain ops need no arch", flags: "--ops plain,young", want: "plain young"},
		{what: "every op gets the archs", flags: "--ops device,plain --arch 7.5;8.0+PTX", want: "plain device:7.5;8.0+PTX"},
		{what: "a floor", flags: "--ops device,modern --arch 7.5;8.0+PTX", want: "device:7.5;8.0+PTX modern:8.0+PTX", warning: "modern is compiled for 8.0, but not for 7.5: it supports archs 8.0 and newer"},
		{what: "a ceiling", flags: "--ops bounded --arch 7.5;9.0;10.0", want: "bounded:9.0", warning: "not for 7.5 and 10.0: it supports archs 8.0 to 9.0"},
		{what: "a floor above all", flags: "--ops device,modern --arch 7.5", err: "op modern supports archs 8.0 and newer, but not 7.5"},
		{what: "all on CUDA 13", flags: "--ops all --arch 8.0", want: "plain device:8.0 modern:8.0 bounded:8.0 packaged young", left: "gone broken"},
		{what: "all on an older CUDA 13", flags: "--ops all --arch 8.0 --torch 2.14", want: "plain device:8.0 modern:8.0 bounded:8.0 packaged young broken:8.0", left: "gone"},
		{what: "those that are proven", flags: "--ops proven --arch 8.0", want: "bounded:8.0"},
		{what: "those that are proven, and one by name", flags: "--ops proven,young --arch 8.0", want: "bounded:8.0 young"},
		{what: "proven, but not for this arch", flags: "--ops proven,plain --arch 10.0", want: "plain", left: "bounded"},
		{what: "all for an old GPU", flags: "--ops all --gpu V100", want: "plain device:7.0 young broken:7.0", left: "modern bounded packaged gone"},
		{what: "all for an older torch wants nvcc", flags: "--ops all --gpu A100 --torch 2.8", want: "plain device:8.0 modern:8.0 bounded:8.0 young broken:8.0", left: "packaged gone"},
		{what: "all of an older release", flags: "--ops all --arch 8.0 --deepspeed 0.14.4", want: "plain device:8.0 modern:8.0 bounded:8.0 packaged gone", left: "young broken"},
		{what: "all for an older Python", flags: "--ops all --arch 8.0 --torch 2.8 --python 3.9", want: "plain device:8.0 modern:8.0 bounded:8.0 young broken:8.0", left: "packaged gone"},
		{what: "all, and one by name", flags: "--ops all,modern --gpu V100", err: "op modern supports archs 8.0 and newer, but not 7.0 (V100)"},
		{what: "all and no arch", flags: "--ops all", want: "plain device:7.5;8.0;8.6;8.9;9.0;10.0;10.3;12.0+PTX modern:8.0;8.6;8.9;9.0;10.0;10.3;12.0+PTX bounded:8.0;8.6;8.9;9.0 packaged young", left: "gone broken"},
		{what: "its toolchain", flags: "--ops packaged --torch 2.10", err: "op packaged works only with cuda13, not with cuda12"},
		{what: "too young", flags: "--ops young --deepspeed 0.19.0", err: "op young requires DeepSpeed 0.19.5 or newer, not 0.19.0"},
		{what: "gone", flags: "--ops gone", err: "op gone was removed in DeepSpeed 0.19.7 and is not in 0.19.8"},
		{what: "broken here", flags: "--ops broken --arch 8.0 --torch 2.15", err: "op broken cannot be built with CUDA 13.2: its sources redeclare a name"},
		{what: "broken, and a toolkit that is left", flags: "--ops broken --arch 8.0", want: "broken:8.0"},
	}
}

func TestOps(t *testing.T) {
	tt := withOps(t)
	for _, c := range opCases() {
		a := parse(t, tt, c.flags)
		tc, err := tt.Resolve(a.request, a.hosts...)
		switch {
		case c.err != "":
			refusesOps(t, tt, c, a, err)
		case err != nil:
			t.Errorf("%s: %v", c.what, err)
		default:
			hasOps(t, c, tc)
		}
	}
}

// refusesOps checks the error, and that what it proposes works.
func refusesOps(t *testing.T, tt *Tables, c opCase, a ask, err error) {
	t.Helper()
	var bad *ConflictError
	if !errors.As(err, &bad) || !strings.Contains(err.Error(), c.err) || bad.ExitCode() != 2 || bad.Hint() == "" {
		t.Errorf("%s: %v, want %q", c.what, err, c.err)
		return
	}
	if !a.follow(t, tt, bad.Hint()) && c.what != "gone" { // without its only op nothing is left, and no flag names a release
		t.Errorf("%s: hint %q", c.what, bad.Hint())
	}
}

// hasOps checks what is in, what is left out, and what is said of it.
func hasOps(t *testing.T, c opCase, tc Toolchain) {
	t.Helper()
	var in, left []string
	for _, op := range tc.Ops {
		in = append(in, strings.TrimSuffix(op.Name+":"+wheel.ArchList(op.Archs), ":"))
	}
	for _, op := range tc.SkippedOps {
		left = append(left, op.Name)
		if op.Why == "" {
			t.Errorf("%s: %s is left out and nobody knows why", c.what, op.Name)
		}
	}
	if got := strings.Join(in, " "); got != c.want {
		t.Errorf("%s: ops %s, want %s", c.what, got, c.want)
	}
	if got := strings.Join(left, " "); got != c.left {
		t.Errorf("%s: left %s, want %s", c.what, got, c.left)
	}
	said := func(r string) bool { return strings.Contains(r, c.warning) }
	if c.warning != "" && !slices.ContainsFunc(tc.Warnings, said) {
		t.Errorf("%s: warnings %q", c.what, tc.Warnings)
	}
}

// TestTogether: what is wrong by itself and what does not go together is said
// in one message.
func TestTogether(t *testing.T) {
	tt := tables(t)
	a := parse(t, tt, `--gpu V1000 --gpu V100 --deepspeed 0.1.0 --torch 2.15.0 --python 3.9 --cuda 12.8 --target-glibc 2.17 --ops fused_adam,nonsense`)
	_, err := tt.Resolve(a.request)
	for _, want := range []string{`GPU "V1000"`, "DeepSpeed 0.1.0", `op "nonsense"`, "CUDA 13.2, not 12.8", "no wheels for Python 3.9", "glibc 2.17", "cannot compile for arch 7.0 (V100"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %s", err, want)
		}
	}
}

// A machine builds wheels for itself. A container of x86_64 also builds those of the stable ABI for aarch64.
func TestForeignMachine(t *testing.T) {
	tt := tables(t)
	arm := BuildHost{Name: "this machine", Host: true, Machine: wheel.Arm, Pythons: []string{"3.12"}, Glibc: "2.39", GCCs: []string{"13"}}
	x86 := BuildHost{Name: "this machine", Host: true, Machine: wheel.X86, Pythons: []string{"3.12"}, Glibc: "2.39", GCCs: []string{"13"}}
	for name, c := range map[string]struct {
		request    wheel.Request
		hosts      []BuildHost
		want, hint string
	}{
		"arm for itself":             {wheel.Request{Archs: archs(t, "9.0")}, []BuildHost{arm}, "armv8-a", ""},
		"arm for itself, one torch":  {wheel.Request{Archs: archs(t, "9.0"), ABI: wheel.TorchMinor}, []BuildHost{arm}, "armv8-a", ""},
		"arm for x86":                {wheel.Request{CPU: wheel.CPUv3}, []BuildHost{arm}, "has an aarch64 CPU and cannot build a wheel for x86_64", "run dsbuild on a machine with an x86_64 CPU"},
		"x86 without a container":    {wheel.Request{GPUs: []string{"GH200"}}, []BuildHost{x86}, "has an x86_64 CPU and cannot build a wheel for aarch64", "pass --builder dagger to get torch 2.15.0 for CUDA 13.2 and Python 3.11 on Debian 12 (bookworm)"},
		"x86 in a container":         {wheel.Request{GPUs: []string{"GH200"}}, nil, "armv8-a", ""},
		"one torch in a container":   {wheel.Request{GPUs: []string{"GH200"}, ABI: wheel.TorchMinor}, nil, "one for aarch64 can only be built on such a machine", ""},
		"an old torch":               {wheel.Request{GPUs: []string{"GH200"}, Torch: "2.10"}, nil, "torch 2.10.0 has no CUDA in its wheel for aarch64; torch 2.11.0 or newer does", "omit --torch 2.10 to get torch 2.15.0 "},
		"kernels for x86 alone":      {wheel.Request{GPUs: []string{"GH200"}, Ops: []string{"ragged_device_ops"}}, nil, "op ragged_device_ops cannot be built for aarch64: its kernels", ""},
		"no torch for the GPU":       {wheel.Request{GPUs: []string{"T4G"}}, nil, "no torch for aarch64 in dsbuild's tables has code for GPU T4G (arch 7.5)", "build torch from source"},
		"a GPU of the other machine": {wheel.Request{GPUs: []string{"GH200"}, CPU: wheel.CPUv3}, nil, "has an aarch64 CPU, but the wheel is for x86_64", "pass --arch 9.0"},
	} {
		tc, err := tt.Resolve(c.request, c.hosts...)
		got, hint := string(tc.CPU), ""
		if err != nil {
			got = err.Error()
		}
		if bad := (*ConflictError)(nil); errors.As(err, &bad) {
			hint = bad.Hint()
		}
		if !strings.Contains(got, c.want) || !strings.Contains(hint, c.hint) {
			t.Errorf("%s: %s (hint %s), want %s (%s)", name, got, hint, c.want, c.hint)
		}
	}
}

// The wheel of no GPU in particular has, for aarch64, the code that torch has for it: it runs on GH200, GB200, GB300, DGX Spark and Thor.
func TestEveryArmGPU(t *testing.T) {
	tt := tables(t)
	tc, err := tt.Resolve(wheel.Request{CPU: wheel.CPUArm})
	if err != nil || !tc.IsCross() || wheel.ArchList(tc.Archs) != "8.0;9.0;10.0;11.0;12.0+PTX" {
		t.Fatal(wheel.ArchList(tc.Archs), err)
	}
	for gpu, want := range map[string]bool{"GH200": true, "GB200": true, "GB300": true, "DGX Spark": true, "Jetson Thor": true, "Jetson AGX Orin": false, "T4G": false} {
		arch := archOf(tt.GPUsNamed(gpu)[0].Arch)
		if got := tt.hasSASS(wheel.Capabilities(tc.Archs, false), arch.Capability()); got != want {
			t.Errorf("%s: %v", gpu, got)
		}
		if torch := tt.NewestTorch(arch.Capability(), wheel.Arm); (torch != "") != want {
			t.Errorf("%s: torch %q", gpu, torch)
		}
	}
}

// TestDefaultOps: what nobody asked for by name is left out, and said, where
// the release does not have it. An op that computes wrong numbers there is built, and said to.
func TestDefaultOps(t *testing.T) {
	tt := tables(t)
	for i := range tt.Ops {
		if tt.Ops[i].Name == "utils" {
			tt.Ops[i].Since = "0.17.1"
		}
	}
	tc, err := tt.Resolve(wheel.Request{ABI: wheel.TorchMinor, Archs: archs(t, "8.0"), DeepSpeed: "0.17.0"})
	if got := strings.Join(tc.OpNames(false), ","); err != nil || got != "cpu_adam,cpu_adagrad,cpu_lion,fused_adam,async_io" {
		t.Errorf("ops %s, %v", got, err)
	}
	if want := []string{
		"utils is omitted: op utils requires DeepSpeed 0.17.1 or newer, not 0.17.0",
		"pin_memory is omitted: op pin_memory requires DeepSpeed 0.19.5 or newer, not 0.17.0",
		"cpu_adagrad of DeepSpeed 0.17.0 computes wrong numbers: with weight decay its steps lack the decay in their numerator; DeepSpeed 0.19.8 or newer is fixed",
		"cpu_lion of DeepSpeed 0.17.0 computes wrong numbers: the size of its steps varies, where Lion's is constant; DeepSpeed 0.19.8 or newer is fixed",
	}; !slices.Equal(tc.Notes, want) {
		t.Errorf("notes %q", tc.Notes)
	}
	_, err = tt.Resolve(wheel.Request{ABI: wheel.TorchMinor, Archs: archs(t, "8.0"), DeepSpeed: "0.17.0", Ops: wheel.DefaultOps()})
	var bad *ConflictError
	if !errors.As(err, &bad) || !strings.HasPrefix(bad.Fix, "omit --deepspeed 0.17.0 to get DeepSpeed 0.19.8 ") {
		t.Errorf("asked for by name: %v", err)
	}
}

// An op that DeepSpeed adds to another is asked for with it, where there is one.
func TestOpsBroughtAlong(t *testing.T) {
	for flags, want := range map[string]string{
		"--ops bringer":                    "young bringer",
		"--ops bringer --deepspeed 0.19.0": "bringer",
		"--ops plain":                      "plain",
	} {
		tt := withOps(t)
		tt.Ops = append(tt.Ops, Op{Name: "bringer", Implies: []string{"young"}})
		a := parse(t, tt, flags)
		tc, err := tt.Resolve(a.request, a.hosts...)
		if err != nil {
			t.Fatal(flags, err)
		}
		if got := strings.Join(tc.OpNames(false), " "); got != want || len(tc.SkippedOps) > 0 {
			t.Errorf("%s: %s, left %v; want %s", flags, got, tc.SkippedOps, want)
		}
	}
}
