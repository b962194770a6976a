//go:build linux

package submit

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/testkit/slurm"
	"github.com/dsbuild/dsbuild/internal/testkit/slurm/slurmtest"
	"github.com/dsbuild/dsbuild/internal/ui"
)

// inside is the variable that tells this program its task on the login node of a cluster: it is
// copied there to call Slurm as a user's dsbuild would.
const inside = "DSBUILD_TEST_INSIDE"

func TestMain(m *testing.M) {
	if what := os.Getenv(inside); what != "" {
		onLoginNode(what)
		return
	}
	os.Exit(m.Run())
}

// seen is what the user of a watched job saw.
type seen struct {
	Ended []Result
	Err   string
	Log   string
	Said  string
}

// onLoginNode submits the scripts of the current folder.
func onLoginNode(what string) {
	var log, said strings.Builder
	s := Slurm{Report: ui.New(&said, ui.Options{}), Log: &log, Poll: 200 * time.Millisecond}
	ended, err := submitted(s, what)
	out := seen{Ended: ended, Log: log.String(), Said: said.String()}
	if err != nil {
		out.Err = err.Error()
	}
	_ = json.NewEncoder(os.Stdout).Encode(out)
}

func submitted(s Slurm, what string) ([]Result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	script, err := os.ReadFile("job.sbatch")
	if err != nil {
		return nil, err
	}
	if _, err := s.Test(ctx, script); err != nil {
		return nil, err
	}
	id, err := s.Submit(ctx, script)
	if err != nil {
		return nil, err
	}
	e, err := s.Watch(ctx, id)
	return []Result{e}, err
}

// login is the login node of a cluster, with this program on it.
type login struct {
	*slurm.Cluster
	program string
}

func newLogin(t *testing.T) login {
	t.Helper()
	c := slurmtest.Up(t, slurm.Options{Nodes: 3})
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(c.Home, "submit.test")
	if out, err := exec.Command("cp", self, program).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return login{c, program}
}

// run submits scripts from a separate folder.
func (l login) run(t *testing.T, what string, scripts map[string]string) seen {
	t.Helper()
	dir, err := os.MkdirTemp(l.Home, "job-")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range scripts {
		text = "#!/bin/bash\n#SBATCH --job-name=try --output=%x-%j.out --time=2\n" + text
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// The environment is that of another job: none of it may reach the new one.
	cmd := l.Command(t.Context(), "env", "-C", dir, inside+"="+what, "SLURM_JOB_ID=999", "SLURM_NNODES=7", "SLURM_NTASKS=50", l.program)
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	var got seen
	if err == nil {
		err = json.Unmarshal(out, &got)
	}
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return got
}

// Real jobs of a real Slurm: one that passes, one that fails on a node, one that can never run,
// and a group of jobs.
func TestSlurm(t *testing.T) {
	l := newLogin(t)
	t.Run("passes", func(t *testing.T) {
		got := l.run(t, "one", map[string]string{"job.sbatch": "#SBATCH --nodes=2\nsrun --label hostname\n"})
		if got.Err != "" || len(got.Ended) != 1 || !got.Ended[0].Passed() || got.Ended[0].Nodes != "node[01-02]" {
			t.Fatalf("%+v", got)
		}
		if !strings.Contains(got.Log, "0: node01\n") || !strings.Contains(got.Log, "1: node02\n") || !strings.Contains(got.Said, "is running on node[01-02]") {
			t.Errorf("%s\n%s", got.Log, got.Said)
		}
	})
	t.Run("fails on a node", func(t *testing.T) {
		got := l.run(t, "one", map[string]string{"job.sbatch": "#SBATCH --nodes=3\nsrun --kill-on-bad-exit=1 --label bash -c '[ $SLURM_PROCID != 1 ] || exit 3; sleep 30'\n"})
		if got.Err != "" || len(got.Ended) != 1 || got.Ended[0].Passed() || got.Ended[0].Code == 0 {
			t.Fatalf("%+v", got)
		}
		if e := got.Ended[0]; e.Blame.Nodes != "node02" || e.Blame.Why != "task 1: Exited with exit code 3" {
			t.Errorf("%s\n%s", e, got.Log)
		}
	})
	t.Run("can never run", func(t *testing.T) {
		got := l.run(t, "one", map[string]string{"job.sbatch": "#SBATCH --nodes=9\ntrue\n"})
		if !strings.Contains(got.Err, "job rejected by Slurm") || !strings.Contains(got.Err, "not available") {
			t.Errorf("%q", got.Err)
		}
	})
}
