//go:build full

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
)

// Eight nodes of four GPUs, two CUDAs and three levels of CPUs get one wheel, and each loads the libraries that are for it.
func TestFullFleetOneFile(t *testing.T) {
	const (
		v2    = nehalem
		v3    = v2 + " avx avx2 bmi1 bmi2 f16c fma abm movbe xsave"
		v4    = v3 + " avx512f avx512bw avx512cd avx512dq avx512vl"
		volta = "Tesla V100-SXM2-32GB, 7.0, 580.65.06"
		a100  = "NVIDIA A100-SXM4-80GB, 8.0, 580.65.06"
		h100  = "NVIDIA H100 80GB HBM3, 9.0, 580.65.06"
		b200  = "NVIDIA B200, 10.0, 580.65.06"
	)
	f := emptyFleet(t)
	older := nodestest.Up(t, nodes.Options{Dir: filepath.Join(f.dir, "older"), Count: 4, Env: nodes.WithTorch, Torch: "2.10.0"})
	newer := nodestest.Up(t, nodes.Options{Dir: filepath.Join(f.dir, "newer"), Count: 4, Env: nodes.WithTorch})
	kinds := []struct{ gpu, cuda, level, flags string }{
		{volta, "cu12", "v2", v2},
		{volta, "cu12", "v3", v3},
		{a100, "cu12", "v4", v4},
		{h100, "cu12", "v3", v3},
		{a100, "cu13", "v2", v2},
		{h100, "cu13", "v4", v4},
		{b200, "cu13", "v4", v4},
		{b200, "cu13", "v3", v3},
	}
	cpus := make([][]string, len(kinds))
	for i, k := range kinds {
		fleet, at := older, i
		if i >= len(older.Nodes) {
			fleet, at = newer, i-len(older.Nodes)
		}
		n := fleet.Nodes[at]
		cpus[i] = seemingCPU(t, n.Dir, "flags\t: "+k.flags+"\n")
		forced := fmt.Sprintf("ForceCommand exec %s sh -c \"$SSH_ORIGINAL_COMMAND\"", strings.Join(cpus[i], " "))
		if err := fleet.Configure(at, forced, "Subsystem sftp exec /usr/lib/openssh/sftp-server -d "+n.Home); err != nil {
			t.Fatal(err)
		}
		torch := "2.10.0"
		if fleet == newer {
			torch = nodes.DefaultTorch
		}
		f.nodes = append(f.nodes, realNode{fmt.Sprintf("gpu%d", i+1), "3.11", torch, k.gpu, fleet, n})
	}
	f.write(t, older, newer)

	plan, _, _ := f.dsbuild(t, 0, noEngine(t), "ship", f.inventory, "--dry-run", "--verbose")
	if want := "8 nodes, 1 wheel: 1 to build\n"; !strings.Contains(plan, want) {
		t.Errorf("the plan does not say %q:\n%s", want, plan)
	}
	r, _, took := f.report(t, 0, nil, "ship", f.inventory)
	if len(r.Groups) != 1 || len(r.Wheels) != 1 || r.Summary.OK != len(kinds) || len(changedNodes(r)) != len(kinds) {
		t.Fatalf("%+v, %+v", r.Groups, r.Summary)
	}
	t.Logf("result: 8 nodes of four GPUs, two CUDAs and three CPU levels: 1 wheel, %s, built in %.0f s, all in %.0f s", r.Groups[0].Wheel, r.Groups[0].Seconds, took.Seconds())
	const load = "import os\nfrom deepspeed.ops.op_builder.all_ops import ALL_OPS\n" +
		"print(*(os.path.basename(ALL_OPS[op].load().__file__) for op in ('fused_adam', 'cpu_adam')))"
	for i, n := range f.nodes {
		k := kinds[i]
		words := append(cpus[i], "env", "DS_ACCELERATOR=cuda", n.Python, "-c", load)
		want := fmt.Sprintf("libfused_adam_op.%s.so libcpu_adam_op.%s.so", k.cuda, k.level)
		if says := command(t, n.Home, words[0], words[1:]...); !strings.Contains(says, want) {
			t.Errorf("%s, %s, torch %s, CPU %s: loaded %s, want %s", n.name, k.gpu, n.torch, k.level, says, want)
		}
	}
	if out, _, _ := f.dsbuild(t, 0, noEngine(t), "ship", f.inventory); !strings.HasSuffix(out, "\nnothing to do: 8 nodes already run their wheels\n") {
		t.Errorf("the second run ends with\n%s", out)
	}
}

// seemingCPU returns the words before a command that make its /proc/cpuinfo this text, by files in a directory.
func seemingCPU(t *testing.T, dir, text string) []string {
	t.Helper()
	program, file := filepath.Join(dir, "seeming"), filepath.Join(dir, "cpuinfo")
	for name, content := range map[string]string{
		file:    text,
		program: "#!/bin/sh\nmount --bind " + file + " /proc/cpuinfo && exec \"$@\"\n",
	} {
		if err := os.WriteFile(name, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return []string{"unshare", "--mount", "--map-root-user", program}
}
