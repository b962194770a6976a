package launch

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/dsbuild/dsbuild/inventory"
)

// What an inventory says is never a command: a script that would hold it otherwise
// is not rendered.
func TestHostileInventory(t *testing.T) {
	t.Parallel()
	plain := func() []inventory.Host {
		return []inventory.Host{
			{Name: "a", Node: "a", Address: "10.0.0.1", Python: "/opt/venv/bin/python", Slots: 2},
			{Name: "b", Node: "b", Address: "10.0.0.2", Python: "/opt/venv/bin/python", Slots: 2},
		}
	}
	hostile := []string{"fe80::1%$(touch owned)", "fe80::1%eth0`touch owned`", "a;touch owned", "$(touch owned)", "a}$(touch owned)", "-oProxyCommand=touch owned", "a b", "a\nb", "a'b", `a"b`}
	for _, kind := range byHand() {
		for _, word := range hostile {
			for what, put := range map[string]func(*inventory.Host){
				"address": func(h *inventory.Host) { h.Address = word },
				"user":    func(h *inventory.Host) { h.User = word },
			} {
				for at := range 2 {
					hosts := plain()
					put(&hosts[at])
					_, err := New(Request{Kind: kind, Hosts: hosts, Command: []string{"t.py"}, Flags: flagsOf("image=x", "jax-form=manual")})
					var wrong *Error
					if !errors.As(err, &wrong) || !strings.Contains(err.Error(), "cannot be used in a launch script") {
						t.Errorf("%s: the %s %q: %v", kind, what, word, err)
					}
				}
			}
		}
	}
}

// What may be any text is quoted: paths, values of variables, prefixes. The scripts
// of all nodes run here and leave no trace of it.
func TestHostileWords(t *testing.T) {
	t.Parallel()
	evil := "a $(touch owned) `touch owned` '; touch owned; ' \" } #"
	for _, c := range []struct {
		kind   Launcher
		script string
		flags  []string
	}{
		{Torchrun, "torchrun.sh", nil},
		{Torchrun, "torchrun.sh", []string{"rendezvous=c10d"}},
		{JAX, "jax.sh", []string{"jax-form=manual"}},
		{Docker, "docker.sh", []string{"image=x", "mount=/a}$(touch owned):/b"}},
	} {
		for _, nodes := range []bool{true, false} {
			r := Request{Kind: c.kind, Command: []string{evil + ".py", evil}, Flags: flagsOf(append([]string{"env=A=" + evil, "python=/x/" + evil}, c.flags...)...)}
			if nodes {
				r.Hosts = []inventory.Host{{Name: "a", Node: "a", Address: "10.0.0.1", Python: "/y/" + evil, User: "train", Env: map[string]string{"B": evil}}}
			}
			j, err := New(r)
			if err != nil {
				t.Fatalf("%s: %v", c.kind, err)
			}
			files, err := j.Render()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range files {
				if strings.HasSuffix(f.Name, ".sh") {
					s := newStage(t, files)
					s.run(t, f.Name) // there is no such interpreter: only what else is run counts
				}
			}
		}
	}
}

// sbatch may be told another number of CPUs: srun takes that one.
func TestSlurmCPUs(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"slurm-small", "slurm-elastic", "jax-slurm"} {
		_, files := sampleNamed(t, name)
		for env, want := range map[string]string{"A=": "--cpus-per-task=34", "SLURM_CPUS_PER_TASK=64": "--cpus-per-task=64"} {
			s := newStage(t, files)
			s.write(t, "bin/srun", tell)
			out, log, code := s.run(t, files[0].Name, env)
			if got := heard(t, out)[0]; !slices.Contains(got.Argv, want) || slices.ContainsFunc(got.Argv, func(w string) bool { return strings.HasPrefix(w, "--cpus-per-task") && w != want }) {
				t.Errorf("%s, %s: %d %q, want %s\n%s", name, env, code, got.Argv, want, log)
			} else if name == "slurm-small" && got.Env["OMP_NUM_THREADS"] != map[string]string{"A=": "4", "SLURM_CPUS_PER_TASK=64": "8"}[env] {
				t.Errorf("%s: %q", env, got.Env)
			}
		}
	}
}
