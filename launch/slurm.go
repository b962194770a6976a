package launch

import (
	"fmt"
	"strconv"
)

// Batch is what of a rendering Slurm runs.
type Batch struct {
	// Script is given to sbatch; of the form "workers" it is the master's.
	Script File
	// Worker is the script of the others, of which there are Workers; empty
	// where there is one job of all nodes.
	Worker  File
	Workers int
	// Beside are files that the script finds where they were written.
	Beside []File
}

// Batch picks the scripts for Slurm out of a rendering; ok is false where it has
// none.
func (j *Job) Batch(files []File) (b Batch, ok bool) {
	for _, f := range files {
		switch {
		case f.Name == "submit.sh": // is done here
		case f.Name == "worker.sbatch":
			b.Worker, b.Workers = f, j.Nodes.Max-1
		case f.Name == "master.sbatch", f.Name == j.Name+".sbatch":
			b.Script, ok = f, true
		default:
			b.Beside = append(b.Beside, f)
		}
	}
	return b, ok
}

// Told is what submit.sh exports for the workers of a master: a job with this
// number, on this node.
func (j *Job) Told(master, host string) ([]string, error) {
	number, err := strconv.Atoi(master)
	if err != nil {
		return nil, fmt.Errorf("job number %q: %w", master, err)
	}
	port, rendezvous := j.Port, j.RdzvID
	if port == 0 {
		port = 10000 + number%20000 // as master.sbatch takes it
	}
	if rendezvous == "" {
		rendezvous = master
	}
	return []string{"MASTER_ADDR=" + host, "MASTER_PORT=" + strconv.Itoa(port), "MASTER_JOB=" + master, "RDZV_ID=" + rendezvous}, nil
}
