package launch

import (
	"errors"
	"fmt"

	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/inventory"
)

// Part is one machine's share of a job.
type Part struct {
	// Node is the machine's name, or "" for the control node.
	Node string
	// Host is the node of the inventory, or nil for the control node.
	Host *inventory.Host
	// Main is the name of the file to run there. The other Files must be in the same directory.
	Main  string
	Files []File
	// Count is the number of processes. First is the rank of the first process, or -1 if the nodes agree on their
	// ranks.
	First, Count int
	// Python is the interpreter. If it is empty, the launcher on PATH is used.
	Python string
}

// Parts divides a rendering among the machines that run it: the nodes of the
// inventory, or this machine without an inventory. It returns an error for a job
// that cannot start this way.
func (j *Job) Parts(files []File) ([]Part, error) {
	if j.hasWorkers() {
		return nil, fault.WithHint(errors.New("--form workers consists of several jobs"),
			"use --output DIR in place of --submit, then run DIR/submit.sh")
	}
	if j.BySlurm() || j.Kind == K8s || j.Kind == AIStation || j.Kind == Docker {
		return nil, fmt.Errorf("cannot start a %s job on nodes", j.Kind)
	}
	if len(j.Hosts) == 0 {
		if j.Nodes.Max > 1 {
			return nil, fmt.Errorf("a job on %s nodes requires --inventory", j.Nodes)
		}
		return []Part{{Main: files[0].Name, Files: files, Count: j.Procs, Python: j.Python}}, nil
	}
	common := files[:len(files)-len(j.Hosts)]
	var parts []Part
	first := 0
	for i := range j.Hosts {
		h := &j.Hosts[i]
		block := files[len(common)+i]
		p := Part{
			Node: h.Name, Host: h, Main: block.Name, Files: append(common[:len(common):len(common)], block),
			First: first, Count: j.ProcsOf(*h), Python: j.pythonOf(*h),
		}
		if j.c10d() && j.Kind == Torchrun {
			p.First = -1
		}
		first += p.Count
		parts = append(parts, p)
	}
	return parts, nil
}

// Batch returns the script for sbatch and the other files of a rendering. ok is false if Slurm does not start the
// job, or if submit.sh submits it.
func (j *Job) Batch(files []File) (script File, others []File, ok bool) {
	for _, f := range files {
		if f.Name == j.Name+".sbatch" {
			script, ok = f, j.BySlurm() && !j.hasWorkers()
		} else {
			others = append(others, f)
		}
	}
	return script, others, ok
}
