package deploy_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/fleet/change"
	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/fleet/verify"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/inventory"
)

// hidesJobs is an exec_prefix: its node sees no processes but its own.
var hidesJobs = []string{"unshare", "--pid", "--fork", "--mount-proc", "--kill-child"}

// needsMounts skips a test without the right to mount.
func needsMounts(t *testing.T) {
	t.Helper()
	if exec.CommandContext(t.Context(), "unshare", "-m", "true").Run() != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("no right to mount")
		}
		t.Skip("a node with mounts of its own needs root and the right to mount")
	}
}

// mounted is a node that has an environment at another path, where the others have it there is another environment.
func mounted(t *testing.T, name string, e, other environment) (inventory.Host, *sshtest.Server) {
	t.Helper()
	at := filepath.Join(t.TempDir(), "ai")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	h, s := host(t, name, e, sshtest.Options{})
	h.Python = filepath.Join(at, "bin/python")
	h.ExecPrefix = []string{
		"unshare", "-m", "sh", "-c", `mount --bind "$1" "$2" && mount --bind "$3" "$1" && shift 3 && exec "$@"`, "sh", e.dir, at, other.dir,
	}
	return h, s
}

// Three nodes have one environment, one of them at another path, one read-only. A job on one of them counts for all, one
// installs and rolls back, and the commands at the other path start the Python of another environment.
func TestOneEnvironmentAtTwoPaths(t *testing.T) {
	needs.Time(t)
	needsMounts(t)
	t.Parallel()
	e, wheels := withInstalled(t, "0.19.7")
	other := newEnvironment(t, "2.15.0")
	h1, s1 := host(t, "gpu1", e, sshtest.Options{})
	h1.ExecPrefix = hidesJobs
	h2, s2 := mounted(t, "gpu2", e, other)
	h3, s3 := host(t, "gpu3", e, sshtest.Options{})
	h3.ExecPrefix = []string{"unshare", "-m", "sh", "-c", `mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@"`, "sh", e.dir}
	opt := options(t, load(t, makeWheel(t, t.TempDir(), wheelOptions{version: "0.19.8"})), []*sshtest.Server{s1, s2, s3}, h1, h2, h3)
	was, foreign := e.snapshot(t), other.snapshot(t)
	pid, end := e.train(t)
	r := run(t, t.Context(), opt)
	elsewhere := "shares an environment with gpu2: environment " + listProcesses(pid)
	for i, want := range []string{elsewhere, "environment " + listProcesses(pid), elsewhere} {
		if n := r.Nodes[i]; n.Status != report.Refused || n.Error != want {
			t.Errorf("with a job: %s %q, want %q", n.Status, n.Error, want)
		}
	}
	e.mustBe(t, was)
	end()
	r = run(t, t.Context(), opt)
	if r.Err() != nil || !r.Nodes[0].Changed || !r.Nodes[1].Changed || r.Nodes[1].Step != "verify" {
		t.Errorf("deploy: %v: %+v", r.Err(), r.Nodes)
	}
	r, err := verify.Run(t.Context(), verifyOptions(opt))
	if err != nil {
		t.Fatal(err)
	}
	if n := r.Nodes[1]; r.Nodes[0].Status != report.OK || n.Status != report.Differs ||
		!strings.HasSuffix(n.Error, "bin/ds_report starts the Python of another environment: "+e.python) || strings.Contains(n.Hint, e.dir) {
		t.Errorf("verify: %s, %s %q (hint %s)", r.Nodes[0].Status, n.Status, n.Error, n.Hint)
	}
	r = back(t, opt)
	if r.Err() != nil || r.Nodes[1].Step != "install" || r.Nodes[1].After == nil || r.Nodes[1].After.Version != wheels[0].Version {
		t.Errorf("rollback: %v: %+v", r.Err(), r.Nodes)
	}
	e.mustBe(t, was)
	other.mustBe(t, foreign)
}

// A job on a node outside --limit that has mounted the environment from the node to be changed counts, also one that
// starts late; nodes that do not answer are named.
func TestNodesOutsideTheLimit(t *testing.T) {
	needs.Time(t)
	needsMounts(t)
	t.Parallel()
	e := newEnvironment(t, "2.15.0")
	h1, s1 := host(t, "gpu1", e, sshtest.Options{})
	h2, s2 := host(t, "gpu2", e, sshtest.Options{})
	h3, s3 := host(t, "gpu3", newEnvironment(t, "2.15.0"), sshtest.Options{})
	h4, s4 := host(t, "gpu4", e, sshtest.Options{RefuseAuth: true})
	const exports = `mount -t tmpfs none /var/lib && mkdir /var/lib/nfs && printf '%s\t*(rw)\n' "$1" >/var/lib/nfs/etab && shift && exec "$@"`
	h1.ExecPrefix = slices.Concat(hidesJobs, []string{"unshare", "-m", "sh", "-c", exports, "sh", e.dir})
	opt := options(t, load(t, makeWheel(t, t.TempDir(), wheelOptions{})), []*sshtest.Server{s1, s2, s3, s4}, h1)
	opt.Outside = []inventory.Host{h2, h3, h4}
	was := e.snapshot(t)
	pid, end := e.train(t)
	r := run(t, context.Background(), opt)
	if n := r.Nodes[0]; n.Status != report.Refused || n.Error != "shares an environment with gpu2: environment "+listProcesses(pid) {
		t.Errorf("%s %q", n.Status, n.Error)
	}
	e.mustBe(t, was)
	opt.InUse = change.InUse{Wait: time.Minute}
	opt.Reporter = onWaiting{opt.Reporter, end}
	d := deploy.New(opt)
	defer d.Close()
	plan, err := d.Survey(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r = d.Apply(t.Context())
	const want, silent = "also changes gpu2, which shares the environment; on ", ", exported: cannot ask gpu4, which may use it"
	if notes := strings.Join(plan.Nodes[0].Notes, "; "); r.Err() != nil || !strings.Contains(notes, want) || !strings.Contains(notes, silent) {
		t.Errorf("%v: %q, want %q and %q", r.Err(), notes, want, silent)
	}
}

// What a run that was cut off has left in site-packages goes with the next change.
func TestLeftoversOfATrial(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t, "2.15.0")
	h, s := host(t, "gpu1", e, sshtest.Options{})
	e.write(t, ".dsbuild-try-old/WORD", "")
	if r := run(t, t.Context(), options(t, load(t, makeWheel(t, t.TempDir(), wheelOptions{})), []*sshtest.Server{s}, h)); r.Err() != nil {
		t.Error(r.Err())
	}
	if left, err := filepath.Glob(filepath.Join(e.site, ".dsbuild-try-*")); err != nil || len(left) > 0 {
		t.Errorf("left %q, %v", left, err)
	}
}
