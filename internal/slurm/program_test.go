package slurm

import (
	"slices"
	"testing"
)

// A job that is submitted from within a job is a separate job in the same cluster.
func TestEnviron(t *testing.T) {
	got := Environ([]string{"PATH=/bin", "SLURM_JOB_ID=7", "SLURM_CONF=/etc/slurm.conf", "SLURMD_NODENAME=n1", "SBATCH_ACCOUNT=mine", "A=SLURM_X=1"})
	want := []string{"PATH=/bin", "SLURM_CONF=/etc/slurm.conf", "SBATCH_ACCOUNT=mine", "A=SLURM_X=1"}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
