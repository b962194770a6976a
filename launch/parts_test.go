package launch

import (
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/inventory"
)

// Each machine gets what the rendering has for it, and its ranks follow those of
// the machines before it.
func TestParts(t *testing.T) {
	t.Parallel()
	hosts := []inventory.Host{{Name: "a", Node: "a", Address: "10.0.0.1", Python: "/a/python", Slots: 2}, {Name: "b", Node: "b", Address: "10.0.0.2", Python: "/b/python", Slots: 4}}
	for _, c := range []struct {
		kind  Launcher
		flags []string
		first int // of b
		files int // of b
	}{
		{Torchrun, nil, 2, 2},
		{Torchrun, []string{"rendezvous=c10d"}, -1, 2},
		{JAX, []string{"gpus=4", "procs=2"}, 2, 4},
	} {
		j, err := New(Request{Kind: c.kind, Flags: flagsOf(c.flags...), Command: []string{"train.py"}, Hosts: hosts})
		if err != nil {
			t.Fatal(err)
		}
		files, err := j.Render()
		if err != nil {
			t.Fatal(err)
		}
		parts, err := j.Parts(files)
		if err != nil || len(parts) != 2 {
			t.Fatalf("%s %v: %v: %d parts", c.kind, c.flags, err, len(parts))
		}
		b := parts[1]
		if b.Node != "b" || b.First != c.first || b.Count != j.ProcsOf(hosts[1]) || b.Main != "node-1-b.sh" || len(b.Files) != c.files || b.Python != "/b/python" || b.Host.Address != "10.0.0.2" {
			t.Errorf("%s %v: %+v", c.kind, c.flags, b)
		}
		for _, f := range b.Files {
			if strings.HasSuffix(f.Name, "-a.sh") {
				t.Errorf("%s: b is given %s", c.kind, f.Name)
			}
		}
	}
}

// What something else starts, and what needs nodes that nobody named, has no parts.
func TestNoParts(t *testing.T) {
	t.Parallel()
	two := []inventory.Host{{Name: "a", Node: "a", Address: "10.0.0.1", Python: "python3"}, {Name: "b", Node: "b", Address: "10.0.0.2", Python: "python3"}}
	for _, c := range []struct {
		kind  Launcher
		flags []string
		hosts []inventory.Host
		want  string
	}{
		{Torchrun, []string{"nodes=2"}, nil, "a job on 2 nodes requires --inventory"},
		{Slurm, []string{"slurm-form=workers", "nodes=3"}, nil, "consists of several jobs"},
		{Slurm, nil, nil, "job on nodes"},
		{Docker, []string{"image=x"}, two, "job on nodes"},
	} {
		j, err := New(Request{Kind: c.kind, Flags: flagsOf(c.flags...), Command: []string{"train.py"}, Hosts: c.hosts})
		if err != nil {
			t.Fatal(err)
		}
		files, err := j.Render()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := j.Parts(files); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %v: %v, want %q", c.kind, c.flags, err, c.want)
		}
	}
}

// Slurm's script is found by the job's name, also if that is a name of the form workers.
func TestBatchOfAnyName(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"train", "worker", "master"} {
		j, err := New(Request{Kind: Slurm, Flags: flagsOf("name=" + name), Command: []string{"train.py"}})
		if err != nil {
			t.Fatal(err)
		}
		files, err := j.Render()
		if err != nil {
			t.Fatal(err)
		}
		if script, beside, ok := j.Batch(files); !ok || script.Name != name+".sbatch" || len(beside) != 0 {
			t.Errorf("%s: %s, %v", name, script.Name, ok)
		}
	}
}

// The inventory's slots are the GPUs of a node, also if each process of JAX has several of them.
func TestSlotsOfJAX(t *testing.T) {
	t.Parallel()
	four := []inventory.Host{{Name: "a", Node: "a", Address: "10.0.0.1", Python: "python3", Slots: 4}}
	j, err := New(Request{Kind: JAX, Flags: flagsOf("procs=2"), Command: []string{"train.py"}, Hosts: four})
	if err != nil {
		t.Fatal(err)
	}
	if j.GPUs != 4 || j.Procs != 2 {
		t.Errorf("%d GPUs, %d processes", j.GPUs, j.Procs)
	}
}
