package slurm

import (
	"slices"
	"testing"
)

// A job submitted from within a job is one of its own; the cluster stays.
func TestEnviron(t *testing.T) {
	got := Environ([]string{"PATH=/bin", "SLURM_JOB_ID=7", "SLURM_CONF=/etc/slurm.conf", "SLURMD_NODENAME=n1", "SBATCH_ACCOUNT=mine", "A=SLURM_X=1"})
	want := []string{"PATH=/bin", "SLURM_CONF=/etc/slurm.conf", "SBATCH_ACCOUNT=mine", "A=SLURM_X=1"}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
