package launch

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/inventory"
)

var update = flag.Bool("update", false, "write the golden files anew")

// sample is a job whose rendering is kept in testdata/golden/NAME.
type sample struct {
	name  string
	kind  Launcher
	flags []string // KEY=VALUE
	args  []string
	nodes string // an inventory
}

const twoNodes = `
defaults: {python: /opt/train/venv/bin/python, user: train}
nodes:
  - {hosts: gpu01, address: 192.168.1.100, slots: 4, env: {GLOO_SOCKET_IFNAME: eth0}}
  - {hosts: gpu02, address: 192.168.1.101, slots: 4, setup: module load cuda}
`

// hostile are words that a shell, YAML or a launcher would take for its own.
func hostile() []string {
	return []string{"dir with space/train it's.py", "--text", "a $(touch owned) `touch owned` \"b\" 'c' \\ $HOME", "--glob=*", "--json={\"lr\": 0.1}", "; touch owned", "#", "~", "100%", "%h", "中文", "line\nbreak", ""}
}

func translation() []string {
	return []string{
		"examples/pytorch/translation/run_translation.py",
		"--deepspeed", "ds_config.json", "--model_name_or_path", "t5-large", "--per_device_train_batch_size", "4",
		"--output_dir", "output_dir", "--do_train", "--do_eval", "--max_train_samples", "500", "--num_train_epochs", "1",
		"--dataset_name", "wmt16", "--dataset_config_name", "ro-en", "--source_lang", "en", "--target_lang", "ro",
	}
}

func samples() []sample {
	train := []string{"train.py", "--epochs", "3", "--out", "my runs/a"}
	return slices.Concat(slurmSamples(train), handSamples(train), []sample{
		{"jax-slurm", JAX, []string{"name=jax", "nodes=2"}, train, ""},
		{"jax-slurm-procs", JAX, []string{"nodes=2", "procs=4", "nccl-debug=info", "preallocate=true"}, train, ""},
		{"jax-slurm-cpu", JAX, []string{"nodes=2", "gpus=0", "procs=2", "cpus=1"}, train, ""},
		{"jax-slurm-timeout", JAX, []string{"nodes=2", "join-timeout=1800"}, []string{"-m", "pkg.train"}, ""},
		{"jax-slurm-container", JAX, []string{"nodes=2", "container=apptainer", "image=docker://example.org/jax:1", "requeue=true"}, train, ""},
		{"jax-manual", JAX, []string{"jax-form=manual", "nodes=2", "gpus=0", "procs=2"}, train, ""},
		{"jax-nodes", JAX, []string{"gpus=8"}, train, twoNodes},
		{"aistation", AIStation, []string{"name=task-medical-qwen", "nodes=2", "cpus=15"}, []string{"main.py"}, ""},
		{"aistation-elastic", AIStation, []string{"nodes=2:8", "env=WANDB_API_KEY", "mount=/data/wiki:/data:ro", "nccl-debug=info"}, []string{"main.py"}, ""},
		{"aistation-offload", AIStation, []string{"nodes=2", "zero=2", "offload=cpu"}, []string{"main.py"}, ""},
		{"jax-slurm-rocm", JAX, []string{"nodes=2", "jax-platforms=rocm", "container=apptainer", "image=docker://example.org/jax-rocm:1"}, train, ""},
		{"k8s-pytorchjob", K8s, []string{"preset=small", "image=example.org/train:1", "mount=data:/data", "mount=/scratch:/scratch:ro", "env=A=$(B)", "env=HF_TOKEN", "workdir=/data/run"}, train, ""},
		{"k8s-pytorchjob-single", K8s, []string{"image=example.org/train:1", "gpus=0", "procs=2", "shm-size=8Gi"}, train, ""},
		{"k8s-pytorchjob-elastic", K8s, []string{"nodes=2:4", "gpus=1", "image=example.org/train:1", "namespace=team"}, train, ""},
		{"k8s-trainjob", K8s, []string{"k8s-form=trainjob", "preset=medium", "image=example.org/train:1", "mount=data:/data:ro", "env=HF_TOKEN", "env=A=b", "namespace=team", "python=/opt/venv/bin/python", "workdir=/data"}, train, ""},
		{"k8s-pytorchjob-queue", K8s, []string{"preset=small", "image=example.org/train:1", "queue=team-a", "memory=256Gi", "rdma=rdma/hca=8", "toleration=nvidia.com/gpu:NoSchedule", "toleration=team=nlp", "pull-secret=registry", "join-timeout=1800"}, train, ""},
		{"k8s-pytorchjob-volcano", K8s, []string{"nodes=2:4", "gang=volcano", "queue=team-a", "image=example.org/train:1", "join-timeout=1800"}, train, ""},
		{"k8s-trainjob-gang", K8s, []string{"k8s-form=trainjob", "nodes=2", "gang=coscheduling", "image=example.org/train:1", "rdma=rdma/hca", "memory=1Ti", "toleration=gpu", "pull-secret=registry", "join-timeout=1800"}, []string{"-m", "pkg.train"}, ""},
		{"k8s-trainjob-queue", K8s, []string{"k8s-form=trainjob", "nodes=2", "queue=team-a", "image=example.org/train:1"}, train, ""},
		{"docker-module", Docker, []string{"gpus=1", "image=example.org/train:1"}, []string{"-m", "pkg.train"}, ""},
		{"k8s-hostile", K8s, []string{"image=example.org/train:1", "env=A=$(B) \"x\": #"}, hostile(), ""},
		{"docker", Docker, []string{"preset=small", "image=example.org/train:1", "mount=/data/my wiki:/data:ro", "env=HF_TOKEN", "env=A=b c"}, train, ""},
		{"docker-nodes", Docker, []string{"image=example.org/train:1", "rendezvous=c10d", "shm-size=16Gi"}, train, twoNodes},
		{"docker-hostile", Docker, []string{"image=example.org/train:1", "gpus=0"}, hostile(), ""},
	})
}

func slurmSamples(train []string) []sample {
	return []sample{
		{"slurm-small", Slurm, []string{"preset=small"}, train, ""},
		{"slurm-medium", Slurm, []string{"preset=medium", "requeue=true", "sbatch=--signal=USR2@120", "rendezvous=c10d"}, train, ""},
		{"slurm-large", Slurm, []string{"preset=large", "gpus=gpu:h100:8", "constraint=h100&ib", "mem=0", "exclusive=true", "sbatch=--mail-type=END", `sbatch=--comment=the "team's" run #2`, "partition=gpu1", "account=nlp", "qos=long", "nodelist=gpu[01-08]", "time=2-00:00:00", "cpus=64"}, train, ""},
		{"slurm-single", Slurm, []string{"gpus=8", "partition=gpu1", "nodelist=g1001"}, []string{"main.py"}, ""},
		{"slurm-all", Slurm, []string{"name=all", "nodes=2", "gpus=8", "requeue=true", "sbatch=--signal=B:SIGUSR2@300", "setup=source /opt/conda/bin/activate train", "workdir=/work/my code", "python=/opt/my env/bin/python", "env=HF_HOME=/data/hf cache", "env=WANDB_API_KEY", "nccl-debug=info", "port=12345", "max-restarts=1"}, train, ""},
		{"slurm-elastic", Slurm, []string{"nodes=2:4", "gpus=8"}, train, ""},
		{"slurm-workers", Slurm, []string{"slurm-form=workers", "nodes=4", "gpus=8", "partition=gpu1"}, train, ""},
		{"slurm-workers-elastic", Slurm, []string{"slurm-form=workers", "nodes=2:4", "gpus=8", "port=12345", "rdzv-id=qwen", "python=/opt/venv/bin/python"}, train, ""},
		{"slurm-cpu", Slurm, []string{"nodes=4", "gpus=0", "procs=2", "cpus=1"}, train, ""},
		{"slurm-translation", Slurm, []string{"name=translation-train", "nodes=2", "gpus=8", "cpus=10"}, translation(), ""},
		{"slurm-zero", Slurm, []string{"nodes=2", "zero=2", "precision=bf16", "join-timeout=1800"}, []string{"-m", "pkg.train", "--lr", "1e-5"}, ""},
		{"slurm-pyxis", Slurm, []string{"nodes=2", "container=pyxis", "image=nvcr.io#nvidia/pytorch:26.01-py3", "mount=/data/my wiki:/data:ro", "requeue=true", "zero=2", "env=HF_HOME=/hf", "env=LD_LIBRARY_PATH=/x y"}, train, ""},
		{"slurm-apptainer", Slurm, []string{"nodes=2:4", "requeue=true", "container=apptainer", "image=/images/train.sif", "mount=/data:/data:ro", "mount=/scratch:/scratch"}, train, ""},
		{"slurm-hostile", Slurm, []string{"nodes=2", "env=A='$(touch owned)'"}, hostile(), ""},
	}
}

func handSamples(train []string) []sample {
	return []sample{
		{"torchrun", Torchrun, nil, train, ""},
		{"torchrun-nodes", Torchrun, nil, train, twoNodes},
		{"torchrun-c10d", Torchrun, []string{"nodes=2", "gpus=8", "rendezvous=c10d", "master=g3002", "rdzv-id=sft"}, train, ""},
		{"torchrun-c10d-nodes", Torchrun, []string{"rendezvous=c10d", "gpus=0", "procs=2"}, train, twoNodes},
		{"torchrun-elastic", Torchrun, []string{"nodes=1:3", "gpus=0", "procs=1"}, train, ""},
		{"torchrun-data", Torchrun, []string{"gpus=4", "setup=module load cuda"}, []string{"pretraining.py", "--train_file_dir", "data/pretrain", "--dataset_name", "wikitext,Linly-AI/Chinese-pretraining-dataset", "--dataset_config_name", "wikitext-2-raw-v1,none"}, ""},
		{"torchrun-zero", Torchrun, []string{"zero=2", "offload=cpu"}, []string{"pretraining.py", "--bf16"}, ""},
		{"torchrun-zero-nodes", Torchrun, []string{"zero=3", "ds-auto=false", "train-batch=128", "micro-batch=1", "workdir=/data/run"}, train, twoNodes},
		{"torchrun-hostile", Torchrun, nil, hostile(), ""},
	}
}

// job makes the job of a sample.
func (s sample) job(t *testing.T) *Job {
	t.Helper()
	r := Request{Kind: s.kind, Command: s.args, ReadFile: os.ReadFile}
	r.Flags = flagsOf(s.flags...)
	if s.nodes != "" {
		inv, err := inventory.Open(t.Context(), "-", inventory.Options{Stdin: strings.NewReader(s.nodes)})
		if err != nil {
			t.Fatal(err)
		}
		r.Hosts = inv.Hosts
	}
	j, err := New(r)
	if err != nil {
		t.Fatalf("%s: %v", s.name, err)
	}
	return j
}

// flagsOf are KEY=VALUE as flags would say them.
func flagsOf(words ...string) Settings {
	var s Settings
	for _, w := range words {
		key, value, _ := strings.Cut(w, "=")
		if i := slices.IndexFunc(s.All, func(said Setting) bool { return said.Key == key }); i >= 0 {
			s.All[i].Words = append(s.All[i].Words, Word{value, s.All[i].At})
			continue
		}
		k := keyNamed(key)
		s.Say(key, "--"+k.FlagName(), value)
	}
	return s
}

// Every rendering is what the golden files say, and none is left over.
func TestGolden(t *testing.T) {
	const root = "testdata/golden"
	if *update {
		if err := os.RemoveAll(root); err != nil {
			t.Fatal(err)
		}
	}
	known := map[string]bool{}
	for _, s := range samples() {
		files, err := s.job(t).Render()
		if err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		for _, f := range files {
			if strings.HasSuffix(f.Name, ".py") {
				continue // as it is in the folder python
			}
			path := filepath.Join(root, s.name, f.Name)
			known[path] = true
			golden(t, path, f)
		}
	}
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !known[path] {
			t.Errorf("%s belongs to no sample", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func golden(t *testing.T, path string, f File) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(f.Text), f.Mode); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != f.Text {
		t.Errorf("%s differs; go test ./launch -update shows how:\n%s", path, f.Text)
	}
}

// The page describes every kind.
func TestDocumentation(t *testing.T) {
	text, err := os.ReadFile("../docs/launch.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range Kinds() {
		if !strings.Contains(string(text), "\n### "+string(k.Kind)+"\n") {
			t.Errorf("docs/launch.md has no section on %s", k.Kind)
		}
	}
}
