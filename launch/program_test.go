package launch

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// What no launcher runs as a Python file is refused, with the command that would be
// right.
func TestProgramMistakes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ words, want, hint string }{
		{"python train.py --lr 1", `begins with "python"`, "omit the interpreter and its options: -- train.py"},
		{"python3.11 -u -X dev -m pkg.train", `begins with "python3.11"`, "or -- -m pkg.train"},
		{"/opt/venv/bin/python train.py", "begins with", "to choose an interpreter, use --python"},
		{"python -m torch.distributed.run t.py", "begins with", "-- -m pkg.train"},
		{"python -c pass", "begins with", "-- train.py"},
		{"torchrun --nproc-per-node 8 train.py --lr 1", `begins with the launcher "torchrun"`, "specify only the Python program"},
		{"accelerate launch train.py", "begins with the launcher", "specify only the Python program"},
		{"deepspeed --num_gpus 8 train.py", "begins with the launcher", "specify only the Python program"},
		{"/usr/bin/srun python train.py", "begins with the launcher", "specify only the Python program"},
		{"mpirun ./a.out", "begins with the launcher", "specify only the Python program: -- train.py --epochs 3"},
		{"bash run.sh", "is not a Python program", "specify only the Python program: -- train.py --epochs 3; to prepare its environment, use --python .venv"},
		{"./run.sh", "is not a Python program", "use --python .venv/bin/python or --setup"},
		{"env A=b train.py", "is not a Python program", "-- train.py"},
		{"conda run -n x python t.py", "is not a Python program", "-- train.py"},
		{"A=b train.py", "which sets a variable", "set it with --env A=VALUE"},
		{"-m", "looks like an option", ""},
		{"-m pkg/train.py", "is not the name of a Python module", "specify a module: -- -m pkg.train --epochs 3"},
		{"-m train.py", "is a file, but -m requires a module", "use -- train.py to run the file, or -- -m train"},
		{"train.ipynb", "not a Python file", "specify a Python file"},
		{"ds_config.json train.py", "not a Python file", "specify a Python file"},
		{"-m pkg.$(id)", "is not the name of a Python module", ""},
	} {
		_, err := made(t, Torchrun, "", nil, strings.Fields(c.words)...)
		var wrong *Error
		if !errors.As(err, &wrong) || wrong.ExitCode() != 2 || !strings.Contains(err.Error(), c.want) || !strings.Contains(wrong.Hint(), c.hint) {
			t.Errorf("%s:\n%v\nhint: %v\nwant\n%s\nhint: %s", c.words, err, wrong.Hint(), c.want, c.hint)
		}
	}
	for _, script := range []string{"python train.py", "train.py --epochs 3"} { // a line in one word
		if _, err := made(t, Slurm, "script: "+script+"\n", nil); err == nil {
			t.Errorf("%q is taken", script)
		}
	}
	if _, err := made(t, Slurm, "script: a.py\nmodule: a\n", nil); err == nil || !strings.Contains(err.Error(), "script and module are mutually exclusive") {
		t.Error(err)
	}
	for _, words := range [][]string{{"train"}, {"bin/my python.py"}, {"pythonize.py"}, {"src/torchrun.py"}, {"dir with space/it's.py"}, {"run.pyz"}} {
		if _, err := made(t, Torchrun, "", nil, words...); err != nil {
			t.Errorf("%q: %v", words, err)
		}
	}
}

// A module reaches each launcher as that takes one.
func TestModule(t *testing.T) {
	t.Parallel()
	for kind, want := range map[Launcher]string{
		Slurm: `"$@"' torchrun \` + "\n  -m pkg.train \\\n  --lr 1\n", Torchrun: "  -m pkg.train \\\n  --lr 1 \\\n", Docker: "  -m pkg.train \\\n", AIStation: "  -m pkg.train \\\n",
		K8s: "- \"-m\"\n                - \"pkg.train\"\n", JAX: "  -m pkg.train \\\n",
	} {
		for _, words := range [][]string{{"-m", "pkg.train", "--lr", "1"}, {"--module", "pkg.train", "--lr", "1"}} {
			j, err := made(t, kind, "image: a\n", nil, words...)
			if err != nil {
				t.Fatalf("%s: %v", kind, err)
			}
			files, err := j.Render()
			if err != nil || !strings.Contains(files[0].Text, want) {
				t.Errorf("%s: %v: no %q in\n%s", kind, err, want, files[0].Text)
			}
		}
	}
	j, err := made(t, Torchrun, "module: pkg.train\nargs: [--lr, 1]\n", nil)
	if err != nil || !slices.Equal(j.program(), []string{"-m", "pkg.train"}) || !slices.Equal(j.Args, []string{"--lr", "1"}) {
		t.Errorf("%v %+v", err, j)
	}
}
