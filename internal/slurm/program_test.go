package slurm

import (
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/internal/fault"
)

// A job that is submitted from within a job is a separate job in the same cluster.
func TestEnviron(t *testing.T) {
	got := Environ([]string{"PATH=/bin", "SLURM_JOB_ID=7", "SLURM_CONF=/etc/slurm.conf", "SLURMD_NODENAME=n1", "SBATCH_ACCOUNT=mine", "A=SLURM_X=1"})
	want := []string{"PATH=/bin", "SLURM_CONF=/etc/slurm.conf", "SBATCH_ACCOUNT=mine", "A=SLURM_X=1"}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// Nothing is asked of another cluster than that of slurm.conf.
func TestOneCluster(t *testing.T) {
	t.Setenv("SLURM_CLUSTERS", "gpu")
	_, _, err := Program{Name: "true"}.Output(t.Context())
	if fault.ExitCode(err) != 2 || !strings.Contains(fault.Hint(err), "SLURM_CONF") {
		t.Errorf("%v, hint %q; want exit code 2 and a hint with SLURM_CONF", err, fault.Hint(err))
	}
}
