package launch

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fakeJAX stands in for JAX: it notes how the processes were to meet.
const fakeJAX = `
import os, sys, types
class distributed:
    @staticmethod
    def initialize(**said):
        assert said.pop("cluster_detection_method") == "deactivate"
        sys.stdout.write(f"initialize {sorted(said.items())}\n")  # one write: two processes have one output
        distributed.said = said
def process_count():
    return int(os.environ.get("FAKE_PROCESSES") or distributed.said["num_processes"])
def default_backend():
    return "gpu" if "FAKE_GPUS" in os.environ else "cpu"
def local_device_count():
    return int(os.environ["FAKE_GPUS"])
`

// program is a user's program that says what it finds.
const program = `
import os, sys
import dsbuild_jax as dist
import beside
said = ("program", sys.argv, __name__, dist.rank(), dist.world_size(), dist.local_rank(), dist.is_main(),
        os.environ.get("RANK"), os.environ.get("WORLD_SIZE"), os.environ.get("LOCAL_RANK"), beside.here)
sys.stdout.write(" ".join(map(str, said)) + "\n")
for batch in map(int, os.environ.get("BATCHES", "").split()):
    try:
        print(batch, dist.local_batch(batch))
    except ValueError as e:
        print(e)
if os.environ.get("FAIL") == str(dist.rank()):
    raise SystemExit(3)
`

// bootstrap is a folder with the bootstrap, a program and a stand-in for JAX.
func bootstrap(t *testing.T, files []File) *stage {
	t.Helper()
	s := newStage(t, files)
	source, err := pythonFiles.ReadFile("python/" + BootstrapName)
	if err != nil {
		t.Fatal(err)
	}
	s.write(t, BootstrapName, string(source))
	s.write(t, "lib/jax.py", fakeJAX)
	s.write(t, "my code/train.py", program)
	s.write(t, "my code/beside.py", "here = 'beside'\n")
	s.env = append(s.env, "PYTHONPATH="+filepath.Join(s.dir, "lib"), "PYTHONDONTWRITEBYTECODE=1")
	return s
}

// python runs the bootstrap with words.
func (s *stage) python(t *testing.T, env []string, words ...string) (out, log string, code int) {
	t.Helper()
	cmd := exec.Command("python3", append([]string{BootstrapName}, words...)...)
	cmd.Dir, cmd.Env = s.dir, append(slices.Clone(s.env), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		lack(t, "%v", err)
	}
	return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
}

func TestBootstrap(t *testing.T) {
	s := bootstrap(t, nil)
	meet := []string{"--coordinator-address=n1:10001", "--num-processes=4", "--process-id=2", "--local-rank=1", "--local-processes=2", "--gpus=4"}
	out, log, code := s.python(t, []string{"BATCHES=256 10 3 0"}, append(meet, "--", "my code/train.py", "--lr", "--", "a b")...)
	want := `initialize [('coordinator_address', 'n1:10001'), ('local_device_ids', [2, 3]), ('num_processes', 4), ('process_id', 2)]
program ['my code/train.py', '--lr', '--', 'a b'] __main__ 2 4 1 False 2 4 1 beside
256 64
a batch of 10 cannot be divided evenly among 4 processes: use 8 or 12
a batch of 3 cannot be divided evenly among 4 processes: use 4
a batch of 0 cannot be divided evenly among 4 processes: use 4
`
	if code != 0 || out != want {
		t.Errorf("%d\n%s\n%s\nwant\n%s", code, log, out, want)
	}
	// The code of the program is that of the process.
	if _, _, code := s.python(t, []string{"FAIL=2"}, append(meet, "--", "my code/train.py")...); code != 3 {
		t.Errorf("code %d, want 3", code)
	}
	for want, words := range map[string][]string{
		"missing program: add it after --":        meet,
		"7 GPUs cannot be divided evenly among 2": append(meet, "--gpus=7", "--", "x.py"),
		"the numbers start at 0":                  {"--coordinator-address=a:1", "--num-processes=2", "--process-id=2", "--", "x.py"},
		"required: --coordinator-address":         {"--num-processes=2", "--process-id=1", "--", "x.py"},
		"dsbuild_jax: error: missing program":     {"--coordinator-address=a:1", "--num-processes=2", "--process-id=1", "--"},
	} {
		if _, log, code := s.python(t, nil, words...); code == 0 || !strings.Contains(log, want) {
			t.Errorf("%q: %d %s", words, code, log)
		}
	}
	// A JAX that finds fewer GPUs than the node has would leave the others idle.
	if _, log, code := s.python(t, []string{"FAKE_GPUS=1"}, append(meet, "--", "my code/train.py")...); code == 0 || !strings.Contains(log, "JAX sees 1 GPUs, want 2") {
		t.Errorf("%d %s", code, log)
	}
	if _, log, code := s.python(t, []string{"JAX_PLATFORMS=cuda"}, append(meet[:5:5], "--", "my code/train.py")...); code == 0 || !strings.Contains(log, "2 processes per node require --gpus") {
		t.Errorf("%d %s", code, log)
	}
	// A JAX that goes its own way would train alone, each process for itself.
	if _, log, code := s.python(t, []string{"FAKE_PROCESSES=1"}, append(meet, "--", "my code/train.py")...); code == 0 || !strings.Contains(log, "JAX sees 1 processes, want 4") {
		t.Errorf("%d %s", code, log)
	}
}

// Without the bootstrap a program is the only process.
func TestBootstrapAlone(t *testing.T) {
	s := bootstrap(t, nil)
	cmd := exec.Command("python3", "my code/train.py")
	cmd.Dir = s.dir
	cmd.Env = append(slices.Clone(s.env), "PYTHONPATH="+s.dir, "BATCHES=7")
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != "program ['my code/train.py'] __main__ 0 1 0 True None None None beside\n7 7\n" {
		t.Errorf("%v\n%s", err, out)
	}
}

// jaxJob is the rendering of a JAX job that runs the program above.
func jaxJob(t *testing.T, flags ...string) []File {
	t.Helper()
	j, err := New(Request{Kind: JAX, Flags: flagsOf(flags...), Command: []string{"my code/train.py", "--text", "$HOME it's"}})
	if err != nil {
		t.Fatal(err)
	}
	files, err := j.Render()
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestJAXManual(t *testing.T) {
	s := bootstrap(t, jaxJob(t, "jax-form=manual", "nodes=2", "gpus=4", "procs=2"))
	env := []string{"NODE_RANK=1", "MASTER_ADDR=10.0.0.1"}
	out, log, code := s.run(t, "jax.sh", env...)
	if code != 0 {
		t.Fatalf("%d\n%s", code, log)
	}
	for _, want := range []string{
		"initialize [('coordinator_address', '10.0.0.1:29500'), ('local_device_ids', [0, 1]), ('num_processes', 4), ('process_id', 2)]",
		"initialize [('coordinator_address', '10.0.0.1:29500'), ('local_device_ids', [2, 3]), ('num_processes', 4), ('process_id', 3)]",
		`program ['my code/train.py', '--text', "$HOME it's"] __main__ 3 4 1 False 3 4 1`,
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%s\nis not in\n%s", want, out)
		}
	}
	// One that fails ends the others, and its code is that of all.
	s.write(t, "my code/train.py", "import dsbuild_jax, time\nif dsbuild_jax.rank() == 3: raise SystemExit(5)\ntime.sleep(60)\n")
	if _, log, code := s.run(t, "jax.sh", env...); code != 5 {
		t.Errorf("code %d, want 5\n%s", code, log)
	}
}

func TestJAXSlurm(t *testing.T) {
	s := bootstrap(t, jaxJob(t, "nodes=2"))
	out, log, code := s.run(t, "train.sbatch")
	if code != 0 {
		t.Fatalf("%d\n%s", code, log)
	}
	for _, want := range []string{
		"('coordinator_address', 'n1:10001'), ('local_device_ids', None), ('num_processes', 2), ('process_id', 0)]",
		"('coordinator_address', 'n1:10001'), ('local_device_ids', None), ('num_processes', 2), ('process_id', 1)]",
		`program ['my code/train.py', '--text', "$HOME it's"] __main__ 1 2 0 False 1 2 0`,
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%s\nis not in\n%s", want, out)
		}
	}
	if _, err := os.Stat(filepath.Join(s.dir, "example_train.py")); err != nil {
		t.Error(err)
	}
}

// A module is run as python -m runs it, from the folder that the job works in.
func TestBootstrapModule(t *testing.T) {
	s := bootstrap(t, nil)
	s.write(t, "pkg/__init__.py", "")
	s.write(t, "pkg/train.py", "import sys, dsbuild_jax\nfrom . import other\nprint('module', __name__, sys.argv[1:], dsbuild_jax.rank(), other.here)\n")
	s.write(t, "pkg/other.py", "here = 'other'\n")
	out, log, code := s.python(t, nil, "--coordinator-address=fd00::1:10001", "--num-processes=2", "--process-id=1", "--timeout=900", "--", "-m", "pkg.train", "--lr", "1")
	want := `initialize [('coordinator_address', '[fd00::1]:10001'), ('initialization_timeout', 900), ('local_device_ids', None), ('num_processes', 2), ('process_id', 1)]
module __main__ ['--lr', '1'] 1 other
`
	if code != 0 || out != want {
		t.Errorf("%d\n%s\n%s\nwant\n%s", code, log, out, want)
	}
}
