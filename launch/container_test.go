package launch

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// In a job of containers srun is told the image and the folders, or apptainer is;
// nothing on the way expands them.
func TestSlurmContainers(t *testing.T) {
	t.Parallel()
	for container, want := range map[string]func(dir string) []string{
		"pyxis": func(dir string) []string {
			return []string{"--container-image=nvcr.io#nvidia/pytorch:1", "--container-mounts=/a $(touch owned):/data:ro,/b:/b," + dir + ":" + dir, "--container-workdir=" + dir}
		},
		"apptainer": func(dir string) []string {
			return []string{"apptainer", "exec", "--nv", "--pwd", dir, "--bind", "/a $(touch owned):/data:ro", "--bind", "/b:/b", "--bind", dir, "nvcr.io#nvidia/pytorch:1", "bash", "-c"}
		},
	} {
		for _, kind := range []Launcher{Slurm, JAX} {
			flags := flagsOf("nodes=2", "container="+container, "image=nvcr.io#nvidia/pytorch:1")
			flags.Say("mount", "--mount", "/a $(touch owned):/data:ro", "/b:/b")
			j, err := New(Request{Kind: kind, Flags: flags, Command: []string{"t.py"}})
			if err != nil {
				t.Fatal(err)
			}
			files, err := j.Render()
			if err != nil {
				t.Fatal(err)
			}
			s := newStage(t, files)
			s.write(t, "bin/srun", tell)
			dir, err := filepath.EvalSymlinks(s.dir)
			if err != nil {
				t.Fatal(err)
			}
			out, log, code := s.run(t, "train.sbatch", "SLURM_SUBMIT_DIR="+dir)
			got := heard(t, out)[0].Argv
			words := want(dir)
			at := slices.Index(got, words[0])
			if code != 0 || at < 0 || len(got) < at+len(words) || !slices.Equal(got[at:at+len(words)], words) {
				t.Errorf("%s %s: %d\n%q\nwant\n%q\n%s", kind, container, code, got, words, log)
			}
		}
	}
}

func TestContainerMistakes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind        Launcher
		flags, want string
	}{
		{Slurm, "container=pyxis", "--container requires an image"},
		{Slurm, "image=a.sif", "--image requires --container"},
		{Slurm, "mount=/a:/b", "--mount requires --container"},
		{Slurm, "container=docker image=a", "want pyxis or apptainer"},
		{Slurm, "container=pyxis image=a;b", "want an image reference"},
		{Slurm, "container=pyxis image=a nodes=2 slurm-form=workers", "--form workers does not support containers"},
		{Slurm, "requeue=true nodes=2 slurm-form=workers", "the other jobs cannot find a requeued one"},
		{Slurm, "sbatch=--signal=B:USR1@90", "signal USR1 would end the batch script"},
		{Slurm, "requeue=true sbatch=--signal=B:TERM@90", "signal TERM cannot requeue the job"},
		{Slurm, "sbatch=--signal=B:", "want --signal=SIGNAL@SECONDS"},
		{Slurm, "requeue=true sbatch=--signal=USR1@90 sbatch=--signal=USR2@90", "given twice"},
		{JAX, "jax-form=manual container=pyxis image=a", "manually started jobs do not support containers"},
		{K8s, "image=a gang=kueue", "Kueue requires a queue"},
		{K8s, "image=a gang=volcano k8s-form=trainjob", "does not support Volcano"},
		{K8s, "image=a gang=coscheduling queue=a", "coscheduling has no queues"},
		{K8s, "image=a rdma=hca", "want a resource such as rdma/hca"},
		{K8s, "image=a rdma=rdma/hca=0", "want a resource such as rdma/hca"},
		{K8s, "image=a toleration=a:b", "want KEY, KEY=VALUE"},
		{K8s, "image=a toleration=$(id)", "want KEY, KEY=VALUE"},
		{K8s, "image=a memory=1T", "a size such as 256Gi"},
		{K8s, "image=a queue=A", "the name of a queue"},
		{K8s, "image=a#b", "want an image reference"},
	} {
		_, err := New(Request{Kind: c.kind, Flags: flagsOf(strings.Fields(c.flags)...), Command: []string{"t.py"}})
		var wrong *Error
		if !errors.As(err, &wrong) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s: %v, want %s", c.kind, c.flags, err, c.want)
		}
	}
	// A file is for all kinds: one that takes no notice of containers renders as before.
	if j, err := made(t, Slurm, "image: a\nmount: [/a:/b]\nscript: t.py\n", nil); err != nil || j.Image != "" || len(j.Mounts) > 0 {
		t.Errorf("%v %+v", err, j)
	}
}

// docker mounts the folder of the program where it is there, and says so where it is not.
func TestDockerCode(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		words, file, want string
	}{
		{"t.py", "t.py", `type=bind,"source=DIR","target=DIR"`},
		{"src/t.py", "src/t.py", `type=bind,"source=DIR","target=DIR"`},
		{"-m pkg.train", "pkg/train.py", `type=bind,"source=DIR","target=DIR"`},
		{"-m train", "train.py", `type=bind,"source=DIR","target=DIR"`},
		{"t.py", "other.py", ""},
		{"/app/t.py", "t.py", ""},
		{"../t.py", "t.py", ""},
	} {
		j, err := New(Request{Kind: Docker, Flags: flagsOf("image=x", "gpus=0"), Command: strings.Fields(c.words)})
		if err != nil {
			t.Fatal(err)
		}
		files, err := j.Render()
		if err != nil {
			t.Fatal(err)
		}
		s := newStage(t, files)
		s.write(t, c.file, "")
		out, log, code := s.run(t, "docker.sh")
		got := heard(t, out)[0].Argv
		want := strings.ReplaceAll(c.want, "DIR", s.dir)
		if code != 0 || slices.Contains(got, "--mount") != (want != "") || want != "" && !slices.Contains(got, want) {
			t.Errorf("%s with %s: %d %q\nwant %q\n%s", c.words, c.file, code, got, want, log)
		}
		if strings.Contains(log, "the image must contain it") != (want == "" && c.words == "t.py") {
			t.Errorf("%s: %s", c.words, log)
		}
	}
}
