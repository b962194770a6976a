//go:build full && linux

package slurm_test

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/remotetest"
	ci "github.com/dsbuild/dsbuild/internal/testkit/slurm"
	"github.com/dsbuild/dsbuild/internal/testkit/slurm/slurmtest"
)

// dsbuild gives idle nodes back to Slurm, and gets them again over the same connection when
// there is work. The error for a node that another job has taken meanwhile says so.
func TestFullSlurmGivesBack(t *testing.T) {
	if os.Getenv(inside) == "" {
		asUser(t, slurmtest.Up(t, ci.Options{Nodes: 2}))
		return
	}
	opt := options(t, "node01", "node02")
	opt.Wait = 5 * time.Second
	d := newDialer(t, opt)
	first, second := remotetest.Dial(t, d, target("node01")), remotetest.Dial(t, d, target("node02"))
	hello := func(c remote.Conn) error {
		var out bytes.Buffer
		return c.Run(t.Context(), remote.Command{Argv: []string{"echo", "hello"}, Stdout: &out})
	}
	if err := hello(first); err != nil {
		t.Fatal(err)
	}
	jobs := func() string {
		out, err := exec.Command("squeue", "--noheader", "--name=dsbuild", "--format=%N").Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(out))
	}
	if has := jobs(); has != "node[01-02]" {
		t.Errorf("the job has %q", has)
	}
	begin := time.Now()
	slurmtest.Eventually(t, 3*time.Minute, "the nodes are given back", func() bool { return jobs() == "" })
	t.Logf("result: nodes on which nothing runs are given back after %.0f s", time.Since(begin).Seconds())
	batch(t, "node02")
	if err := hello(first); err != nil {
		t.Errorf("a node that is asked for again: %v", err)
	}
	if err := hello(second); err == nil || !strings.Contains(err.Error(), "allocation timed out after 5.0s") {
		t.Errorf("a node that was taken meanwhile: %v", err)
	}
}
