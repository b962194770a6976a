package deploy_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
)

func TestDeployInstallsAndSecondRunChangesNothing(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t, "2.15.0").withPip(t, realPip)
	wheels := load(t, makeWheel(t, t.TempDir(), wheelOptions{}))
	h, s := host(t, "gpu1", e, sshtest.Options{})
	opt := options(t, wheels, []*sshtest.Server{s}, h)
	count := &sshtest.CountingDialer{Dialer: opt.Dialer}
	opt.Dialer = count
	r := run(t, context.Background(), opt)
	n := r.Nodes[0]
	if n.Status != report.OK || !n.Changed || n.Before != nil || n.After == nil || n.After.SHA256 != wheels[0].Manifest.SHA256 || n.Step != "record" {
		t.Fatalf("first run: %+v", n)
	}
	if !r.Consistent || r.Err() != nil || len(r.Wheels) != 1 {
		t.Errorf("report: consistent %v, err %v, wheels %v", r.Consistent, r.Err(), r.Wheels)
	}
	if got := e.version(t); got != wheels[0].Version {
		t.Errorf("an import finds %q", got)
	}
	if left := e.leftovers(t); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	was, written := e.snapshot(t), count.Puts.Load()
	r = run(t, context.Background(), opt)
	n = r.Nodes[0]
	if n.Status != report.OK || n.Changed || n.Before == nil || n.After == nil || *n.Before != *n.After {
		t.Errorf("second run: %+v", n)
	}
	if written != 1 || count.Puts.Load() != written {
		t.Error("the second run sent a file")
	}
	e.mustBe(t, was)
	opt.Force = true
	if r = run(t, context.Background(), opt); r.Err() != nil || !r.Nodes[0].Changed {
		t.Errorf("with force: %+v", r.Nodes[0])
	}
}

func TestDeployRepairsAlteredFiles(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	e := newEnvironment(t, "2.15.0")
	h, s := host(t, "gpu1", e, sshtest.Options{})
	opt := options(t, load(t, makeWheel(t, t.TempDir(), wheelOptions{})), []*sshtest.Server{s}, h)
	run(t, context.Background(), opt)
	e.write(t, "deepspeed/ops/cpu_adam_loaded.py", "import nothing_here\n")
	r := run(t, context.Background(), opt)
	if r.Err() != nil || !r.Nodes[0].Changed {
		t.Errorf("%+v", r.Nodes[0])
	}
}

func TestFailedVerifyPutsTheOldVersionBack(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t, "2.15.0")
	h, s := host(t, "gpu1", e, sshtest.Options{})
	servers := []*sshtest.Server{s}
	old := load(t, makeWheel(t, t.TempDir(), wheelOptions{version: "0.19.7", files: map[string]string{"deepspeed/old_only.py": "x = 1\n"}}))
	if r := run(t, context.Background(), options(t, old, servers, h)); r.Err() != nil {
		t.Fatal(r.Err())
	}
	was := e.snapshot(t)
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"op raises":           {map[string]string{"deepspeed/ops/cpu_adam_loaded.py": "raise ImportError('no kernel image')\n"}, "cannot load op cpu_adam: ImportError: no kernel image"},
		"op compiles":         {map[string]string{"deepspeed/ops/op_builder/all_ops.py": "class B:\n    def jit_load(self): pass\n    def load(self): return self.jit_load()\nALL_OPS = {'cpu_adam': B()}\n"}, "would be compiled"},
		"import fails":        {map[string]string{"deepspeed/__init__.py": "import no_such_module\n"}, "No module named 'no_such_module'"},
		"illegal instruction": {map[string]string{"deepspeed/ops/cpu_adam_loaded.py": "import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n"}, "illegal instruction"},
	} {
		t.Run(name, func(t *testing.T) {
			bad := load(t, makeWheel(t, t.TempDir(), wheelOptions{files: c.files}))
			r := run(t, context.Background(), options(t, bad, servers, h))
			n := r.Nodes[0]
			if n.Status != report.Failed || n.Changed || !strings.Contains(n.Error, c.want) {
				t.Errorf("%+v", n)
			}
			if n.After == nil || n.After.SHA256 != old[0].Manifest.SHA256 || !strings.Contains(n.Error, "rolled back to DeepSpeed 0.19.7") {
				t.Errorf("after: %+v, error %q", n.After, n.Error)
			}
			e.mustBe(t, was)
			if left := e.leftovers(t); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}

func TestShadowIsNamed(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	e := newEnvironment(t, "2.15.0")
	was := e.snapshot(t)
	shadow := filepath.Join(t.TempDir(), "elsewhere")
	if err := os.MkdirAll(filepath.Join(shadow, "deepspeed"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(shadow, "deepspeed", "__init__.py"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	h, s := host(t, "gpu1", e, sshtest.Options{})
	h.Env = map[string]string{"PYTHONPATH": shadow}
	r := run(t, context.Background(), options(t, load(t, makeWheel(t, t.TempDir(), wheelOptions{})), []*sshtest.Server{s}, h))
	n := r.Nodes[0]
	if n.Status != report.Failed || n.Step != "verify" || !strings.Contains(n.Error, shadow) || !strings.Contains(n.Hint, "PYTHONPATH") {
		t.Errorf("%+v", n)
	}
	if n.After != nil || !strings.Contains(n.Error, "rolled back; DeepSpeed is not installed") {
		t.Errorf("after: %+v, error %q", n.After, n.Error)
	}
	e.mustBe(t, was)
}
