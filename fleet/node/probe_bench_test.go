package node_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/fleet/node"
	"github.com/dsbuild/dsbuild/internal/remote"
)

// BenchmarkProbe reports what a probe costs, as CPU time on the node, beside the
// start of the node's Python and nvidia-smi: probe/start. DSBUILD_BENCH_PYTHON
// names the interpreter of another environment than the one made here.
func BenchmarkProbe(b *testing.B) {
	for _, files := range []bool{false, true} {
		b.Run(fmt.Sprintf("files=%v", files), func(b *testing.B) {
			python := os.Getenv("DSBUILD_BENCH_PYTHON")
			if python == "" {
				python = furnished(b)
			}
			n := meter{env: withSMI(b), python: python, files: files}
			n.cost(b) // files are in memory after the first time
			var all []cost
			for b.Loop() {
				all = append(all, n.cost(b))
			}
			m := median(all)
			b.ReportMetric(m.ratio(), "probe/start")
			b.ReportMetric(float64(m.probe.Microseconds())/1000, "probe-ms")
			b.ReportMetric(float64(m.start.Microseconds())/1000, "start-ms")
		})
	}
}

// meter measures a probe on this machine.
type meter struct {
	env    []string
	python string
	files  bool
}

// cost is the CPU time of a probe, and of what is to be compared with it.
type cost struct{ probe, start time.Duration }

func (c cost) ratio() float64 { return float64(c.probe) / float64(c.start) }

// median is the run whose ratio is in the middle.
func median(all []cost) cost {
	sorted := slices.SortedFunc(slices.Values(all), func(a, b cost) int { return int(1e6 * (a.ratio() - b.ratio())) })
	return sorted[len(sorted)/2]
}

// cost runs both sides one after the other, so that what else the machine does
// meets both.
func (m meter) cost(tb testing.TB) cost {
	tb.Helper()
	runner := &timed{env: m.env}
	if _, err := node.Probe(context.Background(), runner, node.ProbeOptions{Python: m.python, Files: m.files}); err != nil {
		tb.Fatal(err)
	}
	c := cost{probe: runner.spent}
	runner.spent = 0
	for _, argv := range [][]string{{m.python, "-c", "pass"}, {"nvidia-smi", "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader"}} {
		if err := runner.Run(context.Background(), remote.Command{Argv: argv}); err != nil {
			tb.Fatal(err)
		}
	}
	c.start = runner.spent
	return c
}

// timed is a Runner on this machine that adds up the CPU time of what it runs.
type timed struct {
	env   []string
	spent time.Duration
}

// Run implements remote.Runner.
func (r *timed) Run(ctx context.Context, cmd remote.Command) error {
	program := cmd.Argv[0]
	if !strings.Contains(program, "/") {
		for _, dir := range filepath.SplitList(strings.TrimPrefix(r.env[0], "PATH=")) {
			if found, err := exec.LookPath(filepath.Join(dir, program)); err == nil {
				program = found
				break
			}
		}
	}
	c := exec.CommandContext(ctx, program, cmd.Argv[1:]...)
	c.Stdin, c.Stdout, c.Stderr, c.Env = cmd.Stdin, cmd.Stdout, cmd.Stderr, r.env
	err := c.Run()
	r.spent += c.ProcessState.UserTime() + c.ProcessState.SystemTime()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return &remote.ExitError{Code: exit.ExitCode()}
	}
	return err
}

// withSMI is an environment with an nvidia-smi that costs next to nothing: what
// a real one takes would hide what the probe takes.
func withSMI(tb testing.TB) []string {
	tb.Helper()
	bin := tb.TempDir()
	script := "#!/bin/sh\nfor i in 1 2 3 4 5 6 7 8; do echo 'NVIDIA A100-SXM4-80GB, 8.0, 580.65.06'; done\n"
	if err := os.WriteFile(filepath.Join(bin, "nvidia-smi"), []byte(script), 0o755); err != nil {
		tb.Fatal(err)
	}
	return []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "HOME=" + bin}
}

// furnished is the Python of an environment as training ones are: torch and 60
// packages, and a DeepSpeed that dsbuild has installed.
func furnished(tb testing.TB) string {
	tb.Helper()
	dir := filepath.Join(tb.TempDir(), "venv")
	if out, err := exec.Command("/usr/bin/python3", "-m", "venv", "--without-pip", dir).CombinedOutput(); err != nil {
		tb.Fatalf("making an environment: %v\n%s", err, out)
	}
	sites, _ := filepath.Glob(filepath.Join(dir, "lib", "python3*", "site-packages"))
	put := func(name, text string) {
		path := filepath.Join(sites[0], name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			tb.Fatal(err)
		}
	}
	for i := range 60 {
		put(fmt.Sprintf("package_%d-1.%d.dist-info/METADATA", i, i), fmt.Sprintf("Metadata-Version: 2.4\nName: package_%d\nVersion: 1.%d\nSummary: One of many.\n%s\n\n%s",
			i, i, strings.Repeat("Classifier: Programming Language :: Python\n", 20), strings.Repeat("It does what it does.\n", 400)))
	}
	put("torch/version.py", "__version__ = '2.15.0+cu132'\ncuda = '13.2'\n")
	put("torch/lib/libc10.so", strings.Repeat("x", 1_400_000)+"\x00_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE\x00")
	put("nvidia_nccl_cu13-2.30.7.dist-info/METADATA", "Metadata-Version: 2.4\nName: nvidia-nccl-cu13\nVersion: 2.30.7\n")
	record := ""
	for i := range 900 {
		name := fmt.Sprintf("deepspeed/module_%d.py", i)
		put(name, strings.Repeat("x = 1\n", 400))
		record += name + ",sha256=bG9uZyBlbm91Z2ggdG8gYmUgb25lIG9mIHRob3Nl,2400\n"
	}
	put("deepspeed/git_version_info_installed.py", "installed_ops={'cpu_adam': 1}\naccelerator_name='cuda'\ntorch_info={'version': '2.15', 'cuda_version': '13.2', 'nccl_version': '2.30'}\n")
	put("deepspeed-0.19.8.dist-info/METADATA", "Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.19.8\n")
	put("deepspeed-0.19.8.dist-info/RECORD", record)
	put(".dsbuild/installed.json", `{"record": "other", "sha256": "0", "extra_wheels": []}`)
	return filepath.Join(dir, "bin", "python")
}
