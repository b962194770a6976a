package deploy_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/internal/testkit/wheeltest"
	"github.com/dsbuild/dsbuild/inventory"
	"github.com/dsbuild/dsbuild/wheel"
)

// stableWheel is a wheel for torch 2.10 and newer, with device code for CUDA 13 if archs are given.
func stableWheel(name string, ops []string, archs ...string) wheel.Loaded {
	return planWheel(name, func(m *wheel.Manifest) {
		m.TorchABI, m.Version = &wheel.TorchABI{Stable: true, Min: "2.10"}, "0.19.8"
		m.Torch, m.CUDA, m.Python, m.Ops, m.Archs = "2.10", "13", "3.10+", ops, archs
	})
}

// Where a wheel for one torch and one of the stable ABI lie side by side, a node gets the one for
// its own torch, if that has all operators of the other; and the plan says why.
func TestPlanChoosesAmongABIs(t *testing.T) {
	t.Parallel()
	plain, gpu := []string{"cpu_adam"}, []string{"cpu_adam", "fused_adam"}
	own := planWheel("own.whl", nil)
	ownGPU := planWheel("owngpu.whl", func(m *wheel.Manifest) { m.Ops, m.Archs = gpu, []string{"8.0"} })
	other := func(f *node.Facts) { f.Torch, f.Python, f.Tag, f.TorchCUDA = "2.14.1", "3.13.1", "cp313", "13.0" }
	cuda12 := func(f *node.Facts) { f.Torch, f.TorchCUDA = "2.11.0", "12.8" }
	slower := stableWheel("slower.whl", plain)
	slower.Manifest.CPU = "x86-64-v2"
	for name, c := range map[string]struct {
		offered []wheel.Loaded
		node    func(*node.Facts)
		want    string
		why     string
	}{
		"its own torch":      {[]wheel.Loaded{own, stableWheel("stable.whl", plain)}, nil, "own.whl", "preferred to stable.whl, which is also compatible: specific to this torch version"},
		"another torch":      {[]wheel.Loaded{own, stableWheel("stable.whl", plain)}, other, "stable.whl", ""},
		"a lower CPU level":  {[]wheel.Loaded{own, slower}, nil, "own.whl", "newer CPU instructions"},
		"more ops":           {[]wheel.Loaded{ownGPU, stableWheel("stable.whl", plain)}, nil, "owngpu.whl", "more ops"},
		"more, both stable":  {[]wheel.Loaded{stableWheel("gpu.whl", gpu, "8.0"), stableWheel("stable.whl", plain)}, other, "gpu.whl", "more ops"},
		"CUDA of another":    {[]wheel.Loaded{stableWheel("gpu.whl", gpu, "8.0"), stableWheel("stable.whl", plain)}, cuda12, "stable.whl", ""},
		"more, in the other": {[]wheel.Loaded{own, stableWheel("gpu.whl", gpu, "8.0")}, nil, "gpu.whl", "more ops"},
		"others":             {[]wheel.Loaded{own, stableWheel("stable.whl", []string{"utils"})}, nil, "", "equally suitable wheels: own.whl, stable.whl"},
		"twice the same":     {[]wheel.Loaded{stableWheel("a.whl", plain), stableWheel("b.whl", plain)}, nil, "", "equally suitable wheels: a.whl, b.whl"},
	} {
		for range 2 {
			c.offered = slices.Clone(c.offered)
			slices.Reverse(c.offered) // the order does not matter
			plan, err := deploy.NewPlan([]deploy.ProbeResult{{Name: "n", Facts: facts(c.node)}}, c.offered, deploy.PlanOptions{})
			var usage interface{ ExitCode() int }
			if c.want == "" {
				text := ""
				if errors.As(err, &usage) {
					text = strings.NewReplacer("stable.whl, own.whl", "own.whl, stable.whl", "b.whl, a.whl", "a.whl, b.whl").Replace(err.Error())
				}
				if !strings.Contains(text, c.why) {
					t.Errorf("%s: %v", name, err)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			p := plan.Nodes[0]
			if why := strings.Join(p.Chosen, "; "); p.Wheel.Manifest.Name != c.want || !strings.Contains(why, c.why) || (why == "") != (c.why == "") {
				t.Errorf("%s: %s, %q", name, p.Wheel.Manifest.Name, p.Chosen)
			}
		}
	}
}

// A wheel of the stable ABI that does not fit is refused before anything is sent: the plan names the
// node, the reason and a hint.
func TestPlanRefusesAWheelForOtherTorches(t *testing.T) {
	t.Parallel()
	gpu := stableWheel("deepspeed-0.19.8+sm80-1_3fa94c0d-py3-none-manylinux_2_24_x86_64.whl", []string{"cpu_adam", "fused_adam"}, "8.0")
	plain := stableWheel("deepspeed-0.19.8+ops851f1a71-1_3fa94c0d-py3-none-manylinux_2_24_x86_64.whl", []string{"cpu_adam"})
	a100 := []node.GPU{{Name: "NVIDIA A100-SXM4-80GB", Arch: "8.0"}}
	for name, c := range map[string]struct {
		wheel     wheel.Loaded
		node      func(*node.Facts)
		why, hint string
	}{
		"torch 2.9": {
			plain, func(f *node.Facts) { f.Torch, f.TorchCUDA = "2.9.1", "12.8" },
			"built for torch 2.10 or newer, but this node has 2.9", "build a wheel that fits it: dsbuild wheel --ops cpu_adam --torch 2.9.1 --python 3.11",
		},
		"CUDA 12": {
			gpu, func(f *node.Facts) { f.Torch, f.TorchCUDA, f.GPUs, f.Driver = "2.10.0", "12.8", a100, "550.54.15" },
			"built for CUDA 13, but this node's torch is built for 12.8", "build a wheel that fits it: dsbuild wheel --ops cpu_adam,fused_adam",
		},
		"CUDA 12, without device code": {plain, func(f *node.Facts) { f.Torch, f.TorchCUDA = "2.10.0", "12.8" }, "", ""},
		"a nightly":                    {plain, func(f *node.Facts) { f.Torch = "2.16.0.dev20261101+cu132" }, "", ""},
		"a nightly of another CUDA": {
			gpu, func(f *node.Facts) { f.Torch, f.TorchCUDA, f.GPUs = "2.16.0.dev20261101+cu126", "12.6", a100 },
			"built for CUDA 13, but this node's torch is built for 12.6", "build a wheel that fits it: dsbuild wheel --ops cpu_adam,fused_adam",
		},
		"no CUDA": {gpu, func(f *node.Facts) { f.Torch, f.TorchCUDA = "2.15.0+cpu", "" }, "", ""}, // cpu_adam loads
		"no CUDA, device code alone": {
			stableWheel("deepspeed-0.19.8+ops-1_3fa94c0d-py3-none-manylinux_2_24_x86_64.whl", []string{"fused_adam"}, "8.0"),
			func(f *node.Facts) { f.Torch, f.TorchCUDA = "2.15.0+cpu", "" },
			"built for CUDA 13, but this node's torch has none", "install a CUDA build of torch, or request ops without device code",
		},
		"no CUDA, without device code": {plain, func(f *node.Facts) { f.Torch, f.TorchCUDA = "2.15.0+cpu", "" }, "", ""},
		"Python 3.9": {
			plain, func(f *node.Facts) { f.Python, f.Tag, f.Torch, f.TorchCUDA = "3.9.18", "cp39", "2.8.0", "12.8" },
			"built for Python 3.10+, but this node has 3.9.18", "--torch 2.8.0 --python 3.9",
		},
	} {
		plan, err := deploy.NewPlan([]deploy.ProbeResult{{Name: "gpu07", Facts: facts(c.node)}}, []wheel.Loaded{c.wheel}, deploy.PlanOptions{})
		if err != nil {
			t.Fatal(err)
		}
		p := plan.Nodes[0]
		if c.why == "" {
			if p.Action != change.Install {
				t.Errorf("%s: %s, %q", name, p.Action, p.Reasons)
			}
			continue
		}
		var out strings.Builder
		if err := plan.Print(&out); err != nil {
			t.Fatal(err)
		}
		if text := out.String(); p.Action != change.Refuse || !p.Unfit || code(plan.Err()) != 4 || !strings.Contains(text, "gpu07") || !strings.Contains(text, c.why) || !strings.Contains(p.Hint, c.hint) {
			t.Errorf("%s: %s, %q, hint %q\n%s", name, p.Action, p.Reasons, p.Hint, text)
		}
	}
}

// Two nodes with different torches run one wheel of the stable ABI, a third the wheel for its own
// torch. The fleet is consistent, for deploy and for verify, as long as DeepSpeed is one.
func TestDeployToSeveralTorches(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	dist := t.TempDir()
	stable, own := makeWheel(t, dist, wheelOptions{stable: "2.10"}), makeWheel(t, dist, wheelOptions{torch: "2.14.0", cuda: "13.2", plain: true})
	var hosts []inventory.Host
	var servers []*sshtest.Server
	var places []string
	for i, torch := range []string{"2.15.0", "2.11.0", "2.14.0"} {
		e := newEnvironment(t, torch)
		h, s := host(t, fmt.Sprintf("gpu0%d", i+1), e, sshtest.Options{})
		hosts, servers, places = append(hosts, h), append(servers, s), append(places, e.dir)
	}
	opt := options(t, load(t, stable), servers, hosts...)
	opt.Hosts = opt.Hosts[:2]
	r := run(t, t.Context(), opt)
	if r.Err() != nil || !r.Consistent || strings.Contains(r.Verdict(), "all equal") || !strings.Contains(r.Verdict(), "2 nodes ok: deepspeed") {
		t.Fatalf("%v, consistent %v: %s", r.Err(), r.Consistent, r.Verdict())
	}
	for _, d := range r.Differences {
		if d.Must {
			t.Errorf("must not differ: %+v", d)
		}
	}

	opt = options(t, slices.Concat(load(t, stable), load(t, own)), servers, hosts...)
	r = run(t, t.Context(), opt)
	if r.Err() != nil || !r.Consistent || r.Nodes[0].Changed || !r.Nodes[2].Changed || r.Nodes[2].Wheel != opt.Wheels[1].Manifest.Name {
		t.Fatalf("%v, consistent %v, %+v", r.Err(), r.Consistent, r.Nodes[2])
	}
	if said := strings.Join(r.Nodes[2].Notes, "; "); !strings.HasSuffix(said, "specific to this torch version") {
		t.Errorf("the report says %q", said)
	}
	if r = look(t, opt, places...); r.Err() != nil || !r.Consistent {
		t.Errorf("verify: %v", r.Err())
	}
	opt.Hosts, opt.Wheels = opt.Hosts[:2], opt.Wheels[:1]
	if r = look(t, opt, places[:2]...); r.Err() != nil || !r.Consistent {
		t.Errorf("verify with one wheel: %v", r.Err())
	}
	opt.Wheels = nil
	if r = look(t, opt, places[:2]...); r.Summary.OK == 2 {
		t.Error("without a wheel, verify expects the same of all nodes")
	}
}

// Nodes whose torches are for two CUDAs, and for none, run one wheel: each loads the ops that its torch can have, and no others.
func TestDeployOfVariants(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	packed := func(ops ...string) []wheel.Loaded { // an op without a module cannot be loaded
		o, like := wheeltest.Variants(), testWheel(t, wheelOptions{})
		o.Python, o.Scripts, o.Requires, o.Files = like.Python, like.Scripts, like.Requires, wheeltest.LoadedByPython(ops...)
		return load(t, wheeltest.Packed(t, t.TempDir(), o))
	}
	all, plain := packed("cpu_adam", "fused_adam", "utils"), packed("cpu_adam", "utils")
	for _, c := range []struct {
		cuda    string
		wheels  []wheel.Loaded
		refused string
	}{
		{"'12.8'", all, ""},
		{"'13.2'", all, ""},
		{"'13.2'", plain, "op fused_adam: DeepSpeed has no such builder"},
		{"None", plain, ""},
		{"'11.8'", all, "built for CUDA 12 and 13, but this node's torch is built for 11.8"},
	} {
		e := newEnvironment(t, "2.15.0")
		e.write(t, "torch/version.py", "__version__ = '2.15.0'\ncuda = "+c.cuda+"\n")
		h, s := host(t, "gpu1", e, sshtest.Options{})
		r := run(t, t.Context(), options(t, c.wheels, []*sshtest.Server{s}, h))
		n := r.Nodes[0]
		if (r.Err() != nil) != (c.refused != "") || !strings.Contains(n.Error+strings.Join(n.Notes, " "), c.refused) {
			t.Errorf("torch for CUDA %s: %v, %+v; want %q", c.cuda, r.Err(), n, c.refused)
		}
	}
}
