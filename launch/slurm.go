package launch

import (
	"fmt"
	"slices"
	"strconv"
)

// SbatchFlag names the flag of dsbuild that stands for an option of sbatch; "" without one. Both are
// without their dashes.
func SbatchFlag(option string) string {
	same := []string{"nodes", "time", "partition", "account", "qos", "nodelist", "constraint", "mem", "exclusive", "requeue"}
	switch {
	case slices.Contains(same, option):
		return option
	case option == "job-name":
		return "name"
	case option == "gres" || option == "gpus" || option == "gpus-per-node":
		return "gpus"
	case option == "ntasks" || option == "ntasks-per-node":
		return "procs"
	case option == "cpus-per-task":
		return "cpus"
	case option == "output" || option == "error":
		return "log"
	case option == "chdir":
		return "workdir"
	case option == "export":
		return "env"
	}
	return ""
}

// Batch holds the files of a rendering that Slurm runs.
type Batch struct {
	// Script is for sbatch; of the form "workers" it is the master's.
	Script File
	// Worker is the script of the Workers other jobs; empty for one job of all
	// nodes.
	Worker  File
	Workers int
	// Beside are further files of the script.
	Beside []File
}

// Batch picks the scripts for Slurm out of a rendering; ok is false if there are
// none.
func (j *Job) Batch(files []File) (b Batch, ok bool) {
	for _, f := range files {
		switch {
		case j.hasWorkers() && f.Name == "submit.sh": // dsbuild does its work itself
		case j.hasWorkers() && f.Name == "worker.sbatch":
			b.Worker, b.Workers = f, j.Nodes.Max-1
		case j.hasWorkers() && f.Name == "master.sbatch", !j.hasWorkers() && f.Name == j.Name+".sbatch":
			b.Script, ok = f, true
		default:
			b.Beside = append(b.Beside, f)
		}
	}
	return b, ok
}

// WorkerEnv returns the environment of the workers for a master with this job number
// on this node, as submit.sh exports it.
func (j *Job) WorkerEnv(master, host string) ([]string, error) {
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
