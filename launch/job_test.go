package launch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/inventory"
)

// readText reads a job file that holds text.
func readText(t *testing.T, text string) (Settings, error) {
	t.Helper()
	return Read("-", strings.NewReader(text))
}

// made is the job of a file and of flags.
func made(t *testing.T, kind Launcher, file string, flags []string, command ...string) (*Job, error) {
	t.Helper()
	r := Request{Kind: kind, Flags: flagsOf(flags...), Command: command, ReadFile: os.ReadFile}
	if file != "" {
		var err error
		if r.File, err = readText(t, file); err != nil {
			return nil, err
		}
	}
	return New(r)
}

func TestFileAndFlags(t *testing.T) {
	const file = `
name: t5
preset: small
gpus: 4
time: 2:00:00
env: {HF_HOME: /data, DEBUG: true, N: 3.10}
script: train.py
args: [--lr, 5e-5, --name, x]
jax-form: manual
`
	j, err := made(t, Slurm, file, []string{"env=HF_HOME=/other", "env=WANDB_API_KEY"})
	if err != nil {
		t.Fatal(err)
	}
	if j.Nodes != (Nodes{2, 2}) || j.GPUs != 4 || j.Procs != 4 || j.CPUs != 18 || j.Time != "2:00:00" || j.WorldSize() != 8 {
		t.Errorf("%+v", j)
	}
	if !slices.Equal(j.Args, []string{"--lr", "5e-5", "--name", "x"}) || j.Script != "train.py" {
		t.Errorf("%q %q", j.Script, j.Args)
	}
	want := []Var{{Name: "DEBUG", Value: "true"}, {Name: "N", Value: "3.10"}, {Name: "HF_HOME", Value: "/other"}, {Name: "WANDB_API_KEY", FromEnv: true}}
	if !slices.Equal(j.Env, want) {
		t.Errorf("%+v", j.Env)
	}
	// A preset of a flag goes before what the file says of sizes.
	if j, err = made(t, Slurm, file, []string{"preset=large", "nodes=3"}, "other.py"); err != nil || j.Nodes.Max != 3 || j.GPUs != 8 || j.Script != "other.py" || len(j.Args) != 0 {
		t.Errorf("%v %+v", err, j)
	}
}

// A number of processes says that they are no GPUs, but under JAX, where a
// process may have several.
func TestProcesses(t *testing.T) {
	for _, c := range []struct {
		kind               Launcher
		flags              []string
		gpus, procs, world int
	}{
		{Slurm, nil, 8, 8, 8},
		{Torchrun, nil, 4, 4, 4},
		{AIStation, []string{"nodes=2:4"}, 1, 1, 4},
		{Slurm, []string{"procs=2", "nodes=2"}, 0, 2, 4},
		{Slurm, []string{"gpus=0"}, 0, 1, 1},
		{Slurm, []string{"gpus=8", "procs=4"}, 8, 4, 4},
		{JAX, nil, 8, 1, 1},
		{JAX, []string{"procs=4", "nodes=2"}, 8, 4, 8},
	} {
		j, err := made(t, c.kind, "", c.flags, "train.py")
		if err != nil || j.GPUs != c.gpus || j.Procs != c.procs || j.WorldSize() != c.world {
			t.Errorf("%s %v: %v, %d GPUs, %d processes, %d in all", c.kind, c.flags, err, j.GPUs, j.Procs, j.WorldSize())
		}
	}
}

func TestInventory(t *testing.T) {
	hosts := []inventory.Host{{Name: "a", Node: "a", Address: "10.0.0.1", Slots: 8}, {Name: "b", Node: "b", Address: "10.0.0.2", Slots: 4}}
	j, err := New(Request{Kind: Torchrun, Hosts: hosts, Command: []string{"t.py"}})
	if err != nil || j.Nodes.Max != 2 || j.Master != "10.0.0.1" || j.WorldSize() != 12 || j.ProcsOf(hosts[1]) != 4 {
		t.Errorf("%v %+v", err, j)
	}
	j, err = New(Request{Kind: Torchrun, Hosts: hosts, Command: []string{"t.py"}, Flags: flagsOf("nodes=1", "gpus=2")})
	if err != nil || len(j.Hosts) != 1 || j.WorldSize() != 2 {
		t.Errorf("%v %+v", err, j)
	}
	for want, r := range map[string]Request{
		"--nodes: the job needs 3 nodes, but the inventory has 2": {Flags: flagsOf("nodes=3"), Hosts: hosts},
		"a/x and a/y are the same node":                           {Hosts: []inventory.Host{{Name: "a/x", Node: "a", Address: "a"}, {Name: "a/y", Node: "a", Address: "a"}}},
		"localhost is a loopback address":                         {Hosts: []inventory.Host{{Name: "a", Node: "a", Address: "localhost"}, hosts[1]}},
	} {
		r.Kind, r.Command = Torchrun, []string{"t.py"}
		if _, err := New(r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	// Several nodes on one machine do meet there.
	local := []inventory.Host{{Name: "a", Node: "a", Address: "127.0.1.1"}, {Name: "b", Node: "b", Address: "127.0.1.2"}}
	if _, err := New(Request{Kind: Torchrun, Hosts: local, Command: []string{"t.py"}}); err != nil {
		t.Error(err)
	}
}

func TestFileMistakes(t *testing.T) {
	for text, want := range map[string]string{
		"gres: gpu:8":            "unknown key \"gres\"",
		"nodse: 2":               "stdin:1:1: unknown key \"nodse\" in the job file\n    1 | nodse: 2\n      | ^",
		"partitoin: x":           "unknown key \"partitoin\"",
		"gpus: [8]":              "stdin:1:7: gpus must be a string, not a list",
		"env: a":                 "",
		"env: [[a]]":             "stdin:1:7: an item of env must be a string",
		"env: {A: {B: c}}":       "the value of a variable must be a string",
		"preallocate: perhaps":   "preallocate must be true or false",
		"name: &a x":             "an anchor or alias",
		"mount: {a: b}":          "mount must be a list of strings, not a mapping",
		"":                       "empty job file",
		"- a":                    "the job file must be a mapping",
		"args: {a: b}":           "args must be a list of strings",
		"name: a\n---\nname: b":  "unexpected second YAML document",
		"script: [a]":            "script must be a string",
		"time: 20:00:00\nqos: 1": "",
	} {
		_, err := readText(t, text)
		var wrong *Error
		switch {
		case want == "" && err != nil:
			t.Errorf("%q: %v", text, err)
		case want != "" && (!errors.As(err, &wrong) || wrong.ExitCode() != 2 || !strings.Contains(err.Error(), want)):
			t.Errorf("%q:\n%v\nwant\n%s", text, err, want)
		}
	}
	if _, err := Read(filepath.Join(t.TempDir(), "no.yaml"), nil); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "cannot read the job") {
		t.Error(err)
	}
	for key, meant := range map[string]string{"partitio": "partition", "gres": "gpus", "ntasks-per-node": "procs", "cpus-per-task": "cpus", "output": "log", "chdir": "workdir"} {
		_, err := readText(t, key+": x")
		var wrong *Error
		if !errors.As(err, &wrong) || wrong.Hint() != fmt.Sprintf("did you mean %q?", meant) {
			t.Errorf("%s: %v, hint %q; want %s", key, err, fault.Hint(err), meant)
		}
	}
}

// An option that dsbuild sets itself leads to the key of a file that stands for it.
func TestSbatchKeyOfFile(t *testing.T) {
	for text, want := range map[string]string{
		"sbatch: --nodes=3\nscript: a.py":         "use nodes: 3",
		"sbatch: --gres=gpu:h100:4\nscript: a.py": "use gpus: gpu:h100:4",
		"sbatch: --export=NONE\nscript: a.py":     "use env:",
	} {
		if _, err := made(t, Slurm, text, nil); fault.Hint(err) != want {
			t.Errorf("%q: hint %q, want %q", text, fault.Hint(err), want)
		}
	}
	if j, err := made(t, Slurm, "sbatch: --exclusive=user\nscript: a.py", nil); err != nil || !slices.Equal(j.Sbatch, []string{"--exclusive=user"}) {
		t.Errorf("%v, options %q; want --exclusive=user as it is", err, j.Sbatch)
	}
}

func TestJobMistakes(t *testing.T) {
	for _, c := range []struct {
		kind  Launcher
		flags string
		want  string
	}{
		{Slurm, "nodes=0", `invalid value "0" for --nodes: want N or MIN:MAX`},
		{Slurm, "nodes=2-4", "want N or MIN:MAX"},
		{Slurm, "nodes=4:2", "minimum exceeds maximum"},
		{Slurm, "preset=smal", `invalid value "smal" for --preset: want small, medium or large`},
		{Slurm, "nodes=2:4 rendezvous=static", "elastic jobs (MIN:MAX) require c10d"},
		{Slurm, "nodes=2:4 max-restarts=0", "does not survive the loss of a node"},
		{Slurm, "slurm-form=workers", "workers requires at least two nodes"},
		{Slurm, "slurm-form=workers nodes=2 rendezvous=static", "one-node jobs have no fixed ranks"},
		{Slurm, "rendezvous=etcd", "want static or c10d"},
		{Slurm, "port=80", `invalid value "80" for --port: want a number from 1024 to 65535`},
		{Torchrun, "gpus=h100:8", "GPU types are only supported for Slurm jobs"},
		{Slurm, "gpus=h100:", `invalid value "h100:" for --gpus: want a number from 0 to 64`},
		{Slurm, "mem=200GB", `invalid value "200GB" for --mem: want a size such as 200G, or 0`},
		{Slurm, "sbatch=--time=1:00", "this option is set by dsbuild"},
		{Slurm, "sbatch=--gres=gpu:4", "this option is set by dsbuild"},
		{Slurm, "sbatch=--export=NONE", "this option is set by dsbuild"},
		{Slurm, "sbatch=--gpus-per-task=1", "this option is set by dsbuild"},
		{Slurm, "sbatch=-C", "want a long option"},
		{Slurm, "constraint=a#b", `invalid value "a#b" for --constraint: want`},
		{Slurm, "name=$(id)", `invalid value "$(id)" for --name: want letters`},
		{Slurm, "partition=a;b", `invalid value "a;b" for --partition: want names`},
		{Slurm, "nodelist=a`b", "invalid value \"a`b\" for --nodelist: want"},
		{Slurm, "log=a#b", `invalid value "a#b" for --log: want`},
		{Slurm, "time=1h", `invalid value "1h" for --time: want`},
		{Slurm, "account=a\nb", `invalid value "a\nb" for --account: want`},
		{Slurm, "setup=a\nb", "want one line"},
		{Slurm, "env=1A=b", "invalid variable name"},
		{Slurm, "env=A=b\nc", "must be one line"},
		{Slurm, "env=WORLD_SIZE=8", "variable WORLD_SIZE is reserved"},
		{Slurm, "env=MASTER_PORT=1", "variable MASTER_PORT is reserved"},
		{Slurm, "env=HF_TOKEN=hf_abc", "HF_TOKEN looks like a secret"},
		{Torchrun, "nodes=2 master=localhost", "localhost is a loopback address"},
		{Torchrun, "master=a b", `invalid value "a b" for --master: want`},
		{JAX, "nodes=1:2", "JAX requires a fixed number of nodes"},
		{JAX, "gpus=8 procs=3", "cannot divide 8 GPUs evenly among 3 processes"},
		{K8s, "", "missing --image"},
		{K8s, "image=a name=Train", `invalid value "Train" for --name: Kubernetes requires`},
		{K8s, "image=a k8s-form=trainjob nodes=1:2", "a TrainJob requires a fixed number of nodes"},
		{K8s, "image=a mount=UPPER:/d", `invalid mount source "UPPER"`},
		{K8s, "image=a rdzv-id=x", "only an elastic PyTorchJob"},
		{Docker, "image=a mount=/a", "want a source and an absolute path"},
		{Docker, "image=-v", `invalid value "-v" for --image: want`},
		{Docker, "", "missing --image"},
	} {
		flags := strings.Split(c.flags, " ")
		if c.flags == "" {
			flags = nil
		}
		if strings.HasPrefix(c.flags, "master=") {
			flags = []string{c.flags}
		}
		_, err := made(t, c.kind, "", flags, "train.py")
		var wrong *Error
		if !errors.As(err, &wrong) || wrong.ExitCode() != 2 || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %q:\n%v\nwant\n%s", c.kind, c.flags, err, c.want)
		}
	}
}

func TestCommandMistakes(t *testing.T) {
	for want, words := range map[string][]string{
		"missing script":       nil,
		"looks like an option": {"--epochs", "train"},
		"lists 2 data sets, but --dataset_config_name lists 1 configurations": {"p.py", "--dataset_name", "wikitext,b", "--dataset_config_name=wikitext-2-raw-v1"},
		"a NUL byte": {"p.py", "a\x00b"},
	} {
		if _, err := made(t, Torchrun, "", nil, words...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", words, err, want)
		}
	}
}

// A file's mistakes are shown where they stand, those of flags by their names.
func TestPlaces(t *testing.T) {
	_, err := made(t, Slurm, "name: t\nenv:\n  RANK: 3\n  A: 1\nnodes: many\n", []string{"gpus=x"}, "train.py")
	for _, want := range []string{"stdin:3:3: variable RANK is reserved", "    3 |   RANK: 3\n      |   ^", "stdin:5:8: invalid value \"many\" for nodes", `invalid value "x" for --gpus: want a number`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in\n%v", want, err)
		}
	}
}

// A refused value is one mistake: nothing that follows from it is another one. Its hint can be typed.
func TestRefusedOnce(t *testing.T) {
	for _, c := range []struct {
		kind       Launcher
		flag       string
		want, hint string
	}{
		{Slurm, "container=docker", `invalid value "docker" for --container: want pyxis or apptainer`, ""},
		{Torchrun, "config-arg=foo", `invalid value "foo" for --config-arg: want an option such as --deepspeed_config, or none`, ""},
		{K8s, "image=a b", `invalid value "a b" for --image: want an image reference`, ""},
		{JAX, "jax-platforms=foo", `invalid value "foo" for --platforms: want cuda, rocm, gpu, oneapi, tpu or cpu, several joined by commas`, ""},
		{Torchrun, "nodes=4:2", `invalid value "4:2" for --nodes: minimum exceeds maximum`, "use --nodes 2:4"},
		{Torchrun, "env==3", `--env: invalid variable name ""`, "use --env NAME=VALUE"},
	} {
		_, err := made(t, c.kind, "", []string{c.flag}, "train.py")
		var wrong *Error
		if !errors.As(err, &wrong) || len(wrong.Problems) != 1 || err.Error() != c.want || wrong.Hint() != c.hint {
			t.Errorf("%s: %v, hint %q", c.flag, err, wrong.Hint())
		}
	}
	if _, err := made(t, JAX, "", []string{"jax-platforms=cuda,cpu"}, "train.py"); err != nil {
		t.Error(err)
	}
}

// Flags of the same name never belong to one kind, and each key has its words.
func TestKeys(t *testing.T) {
	for _, k := range Kinds() {
		seen := map[string]bool{}
		for _, key := range Keys() {
			if !key.For(k.Kind) {
				continue
			}
			if seen[key.FlagName()] {
				t.Errorf("%s has two flags --%s", k.Kind, key.FlagName())
			}
			seen[key.FlagName()] = true
			if key.Help == "" || key.set == nil || (key.Placeholder == "") != key.IsBool() {
				t.Errorf("%s: %+v", key.Name, key)
			}
		}
	}
	for _, name := range fileKeys() {
		if keyNamed(name).Name != name {
			t.Error(name)
		}
	}
}

// Whatever a job file holds, it is a job that can be rendered, or a mistake with
// its place.
func FuzzJob(f *testing.F) {
	for _, seed := range []string{
		"script: a.py", "preset: small\nscript: t.py\nargs: ['$(x)', \"a'b\"]\nenv: {A: '`b`'}\n",
		"nodes: 1:2\nscript: a\nslurm-form: workers\n", "image: a\nmount: [/a:/b:ro]\nscript: x\nk8s-form: trainjob\n",
		"zero: 3\noffload: cpu\nscript: a\ntrain-batch: 8\n", "env: [A=b, C]\nscript: s\nsetup: module load x\n", "a: *b", "? x",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		settings, err := Read("-", strings.NewReader(string(data)))
		for _, k := range Kinds() {
			if err != nil {
				break
			}
			var job *Job
			if job, err = New(Request{Kind: k.Kind, File: settings, ReadFile: func(string) ([]byte, error) { return nil, os.ErrNotExist }}); err != nil {
				break
			}
			files, renderErr := job.Render()
			if renderErr != nil || len(files) == 0 {
				t.Fatalf("%s: %v", k.Kind, renderErr)
			}
			if !strings.HasSuffix(files[0].Text, "\n") {
				t.Errorf("%s: no newline at the end", k.Kind)
			}
		}
		var wrong *Error
		if err != nil && (!errors.As(err, &wrong) || len(wrong.Problems) == 0) {
			t.Fatalf("%#v", err)
		}
	})
}

// Every setup line runs, and each stops the job if it fails.
func TestSetupLines(t *testing.T) {
	j, err := made(t, Slurm, "setup: [module load cuda, source env/bin/activate]\n", nil, "train.py")
	if err != nil {
		t.Fatal(err)
	}
	files, err := j.Render()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"{\nmodule load cuda\n} || {", "{\nsource env/bin/activate\n} || {"} {
		if !strings.Contains(files[0].Text, want) {
			t.Errorf("%s has no %q:\n%s", files[0].Name, want, files[0].Text)
		}
	}
}

// A job needs the GPUs that were asked for, one where its launcher counts them, and none of NVIDIA's on other devices.
func TestNeededGPUs(t *testing.T) {
	for _, c := range []struct {
		kind  Launcher
		flags []string
		want  int
	}{
		{Torchrun, nil, 4},
		{JAX, nil, 1},
		{Torchrun, []string{"gpus=8"}, 8},
		{Torchrun, []string{"gpus=8", "procs=1"}, 8},
		{Torchrun, []string{"gpus=0"}, 0},
		{JAX, []string{"gpus=4"}, 4},
		{JAX, []string{"gpus=4", "jax-platforms=tpu"}, 0},
	} {
		if j, err := made(t, c.kind, "", c.flags, "train.py"); err != nil || j.NeededGPUs(nil) != c.want {
			t.Errorf("%s %q: %d GPUs, want %d (%v)", c.kind, c.flags, j.NeededGPUs(nil), c.want, err)
		}
	}
	hosts := []inventory.Host{{Name: "a", Node: "a", Address: "10.0.0.1", Slots: 4}, {Name: "b", Node: "b", Address: "10.0.0.2", Slots: 2}}
	j, err := New(Request{Kind: Torchrun, Hosts: hosts, Command: []string{"t.py"}})
	if err != nil || j.NeededGPUs(&hosts[0]) != 4 || j.NeededGPUs(&hosts[1]) != 2 {
		t.Errorf("slots: %v, want 4 and 2 GPUs", err)
	}
}

// An optimizer on the CPU gets more than one thread in each process.
func TestOffloadHasCPUs(t *testing.T) {
	for _, c := range []struct {
		flags []string
		want  int
	}{{[]string{"zero=3"}, 34}, {[]string{"zero=3", "offload=cpu"}, 66}, {[]string{"zero=3", "offload=cpu", "cpus=32"}, 32}} {
		if j, err := made(t, Slurm, "", c.flags, "train.py"); err != nil || j.CPUs != c.want {
			t.Errorf("%q: %d CPUs, want %d (%v)", c.flags, j.CPUs, c.want, err)
		}
	}
}

// The interpreter is one word, and the hint of a command names what to give instead.
func TestInterpreterIsNoCommand(t *testing.T) {
	_, err := made(t, Torchrun, "", []string{"python=uv run python"}, "train.py")
	var wrong *Error
	if !errors.As(err, &wrong) || !strings.Contains(err.Error(), `invalid interpreter "uv run python": contains arguments`) || !strings.Contains(wrong.Hint(), ".venv/bin/python") {
		t.Errorf("%v, want a refusal that names .venv/bin/python", err)
	}
	_, err = made(t, Torchrun, "", nil, "uv", "run", "train.py")
	if !errors.As(err, &wrong) || !strings.Contains(wrong.Hint(), "--python .venv/bin/python") {
		t.Errorf("hint %q, want it to name --python .venv/bin/python", wrong.Hint())
	}
}
