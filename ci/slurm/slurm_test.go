//go:build linux

package slurm_test

import (
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/ci/slurm"
	"github.com/dsbuild/dsbuild/ci/slurm/slurmtest"
)

func TestJobOnFourNodes(t *testing.T) {
	begin := time.Now()
	c := slurmtest.Up(t, slurm.Options{GPUs: 2})
	t.Logf("up in %s", time.Since(begin))
	out, err := c.Command(t.Context(), "srun", "-N4", "--gres=gpu:2", "sh", "-c", "hostname; id; ls -la /tmp /dev; env|grep SLURM_GPUS; ps ax; sleep 1").CombinedOutput()
	t.Logf("%s %v", out, err)
	for _, n := range c.Nodes {
		if strings.Count(string(out), n.Name+"\n") != 1 {
			t.Errorf("%s is not there once", n.Name)
		}
	}
	t.Logf("done in %s", time.Since(begin))
}
