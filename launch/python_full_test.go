//go:build full

package launch

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
)

// realJAX says what a JAX has when the bootstrap is done: which devices it may use,
// how many it has, and a sum over all processes.
const realJAX = `
import jax, jax.numpy as jnp
from jax._src import config
from jax.experimental import multihost_utils
total = multihost_utils.process_allgather(jnp.ones(())).sum()
print("real", jax.process_index(), config.config._read('jax_cuda_visible_devices'), config.config._read('jax_rocm_visible_devices'),
      jax.local_device_count(), jax.device_count(), int(total), flush=True)
`

// Under Slurm's variables a real JAX uses all devices of its node, also those that
// are GPUs: none is left out because of its rank there.
func TestFullLaunchBootstrap(t *testing.T) {
	interpreter := filepath.Join(environment(t, "jax==0.10.2"), "bin", "python")
	_, files := sampleNamed(t, "jax-slurm")
	for name, c := range map[string]struct {
		env  []string
		want string
	}{
		"one process": {nil, "all all 8 16 2"},
		// As with "sbatch --ntasks-per-node=4": each process has its own two GPUs.
		"four processes": {[]string{"SLURM_NTASKS_PER_NODE=4", "SLURM_JOB_NUM_NODES=2"}, "4,5 4,5 8 16 2"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, files)
			port := freePort(t)
			s.write(t, "train.py", realJAX)
			// As srun of Slurm, for the third process of each node where there are four.
			s.write(t, "bin/srun", `#!/bin/bash
while [[ $1 == --* ]]; do shift; done
for node in 0 1; do
  SLURM_NODEID=$node SLURM_PROCID=$node SLURM_NTASKS=2 SLURM_LOCALID=$((${SLURM_NTASKS_PER_NODE:-1} / 2)) SLURM_STEP_NODELIST='n[1-2]' SLURM_STEP_NUM_NODES=2 "$@" &
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || exit 1; done
`)
			s.write(t, "bin/scontrol", "#!/bin/bash\necho 127.0.0.1\n")
			script := files[0]
			s.write(t, script.Name, strings.ReplaceAll(strings.ReplaceAll(script.Text, "export PYTHON=python3", "export PYTHON="+interpreter), "$((10000 + SLURM_JOB_ID % 20000))", port))
			env := append(c.env, "JAX_PLATFORMS=cpu", "XLA_FLAGS=--xla_force_host_platform_device_count=8", "PYTHONDONTWRITEBYTECODE=1")
			out, log, code := s.run(t, script.Name, env...)
			for _, rank := range []string{"0", "1"} {
				if want := "real " + rank + " " + c.want + "\n"; code != 0 || !strings.Contains(out, want) {
					t.Errorf("%d, no %q\n%s\n%s", code, want, out, log)
				}
			}
		})
	}
}

// freePort is a port of this machine that nobody listens on.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// What is rendered for Kubernetes is what the operators' own schemas allow, in each release.
func TestFullLaunchSchemas(t *testing.T) {
	checkManifests(t, func(all []release) []release { return all })
}
