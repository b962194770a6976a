package deploy_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/fault"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
)

// patch runs code at the start of every Python in the environment: once, for
// Python reads the folder of the hook twice where lib64 is a link to lib.
func (e environment) patch(t *testing.T, code string) (remove func()) {
	t.Helper()
	source := filepath.Join(t.TempDir(), "patch.py")
	if err := os.WriteFile(source, []byte(code), 0o600); err != nil {
		t.Fatal(err)
	}
	e.write(t, hookName, "import os; hasattr(os, 'patched') or exec(open('"+source+"').read(), {'os': os}); os.patched = True\n")
	return func() {
		if err := os.Remove(filepath.Join(e.site, hookName)); err != nil {
			t.Fatal(err)
		}
	}
}

// failing makes writing installed.json fail so many times in one process.
func failing(times string) string {
	return `
import errno
left, rename = [` + times + `], os.rename
def full(a, b, **k):
    if str(b).endswith("installed.json") and left[0] > 0:
        left[0] -= 1
        raise OSError(errno.ENOSPC, "No space left on device", b)
    return rename(a, b, **k)
os.rename = full
`
}

func TestWhatIsRecordedIsNotToldAsPutBack(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	for times, want := range map[string]string{"1": "is installed and recorded", "9": "is installed; the next run finishes recording it"} {
		e, opt, _ := withOld(t)
		remove := e.patch(t, failing(times))
		r := run(t, context.Background(), opt)
		n := r.Nodes[0]
		if n.Status != report.Failed || n.Step != "record" || !n.Changed || n.After == nil || n.After.SHA256 != opt.Wheels[0].Manifest.SHA256 || !strings.Contains(n.Error, want) || strings.Contains(n.Error, "rolled back") {
			t.Errorf("%s failures: %+v", times, n)
		}
		if got := e.version(t); got != opt.Wheels[0].Version {
			t.Errorf("an import finds %q", got)
		}
		remove()
		if r = run(t, context.Background(), opt); r.Err() != nil || r.Nodes[0].Changed || len(e.leftovers(t)) > 0 {
			t.Errorf("the next run: %+v, left %q", r.Nodes[0], e.leftovers(t))
		}
	}
}

func TestConnectionLostWhileRecording(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	e, opt, s := withOld(t)
	opt.Hosts[0].ExecPrefix = []string{"setsid", "--wait"} // outlives its connection, as under OpenSSH
	started := filepath.Join(t.TempDir(), "started")
	e.patch(t, "rename = os.rename\ndef slow(a, b, **k):\n    if str(b).endswith('installed.json'):\n        open('"+started+"', 'w').close()\n        import time\n        time.sleep(2)\n    return rename(a, b, **k)\nos.rename = slow\n")
	go func() {
		waitFor(t, "recording begins", exists(started))
		s.Cut()
	}()
	dead := &once{Dialer: opt.Dialer}
	opt.Dialer = dead
	r := run(t, context.Background(), opt)
	if n := r.Nodes[0]; n.Status != report.Failed || n.Step != "record" || !n.StateUnknown || n.After != nil || !strings.Contains(n.Error, "either version may be installed; deploy again") {
		t.Errorf("%+v", n)
	}
	waitFor(t, "the node finishes", func() bool { return len(e.leftovers(t)) == 0 })
	if got := e.version(t); got != opt.Wheels[0].Version {
		t.Errorf("an import finds %q", got)
	}
}

// once is a Dialer that reaches a node no second time.
type once struct {
	remote.Dialer
	dialled atomic.Bool
}

func (d *once) Dial(ctx context.Context, t remote.Target) (remote.Conn, error) {
	if d.dialled.Swap(true) {
		return nil, remote.ErrDial
	}
	return d.Dialer.Dial(ctx, t)
}

func TestAnotherDeployBetweenProbeAndLock(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	e, opt, _ := withOld(t)
	count := &sshtest.CountingDialer{Dialer: opt.Dialer}
	opt.Dialer = count
	survey := func(do func(*deploy.Deploy) error) *deploy.Deploy {
		d := deploy.New(opt)
		t.Cleanup(d.Close)
		if err := do(d); err != nil {
			t.Fatal(err)
		}
		return d
	}
	deployed := func(d *deploy.Deploy) error { _, err := d.Survey(context.Background()); return err }
	returned := func(d *deploy.Deploy) error { _, err := d.SurveyRollback(context.Background(), ""); return err }

	// The same wheel: nothing is left to do, and one step back is still 0.19.7.
	slower := survey(deployed)
	if r := run(t, context.Background(), opt); r.Err() != nil {
		t.Fatal(r.Err())
	}
	r := slower.Apply(context.Background())
	n := r.Nodes[0]
	if r.Err() != nil || n.Changed || n.Step != "verify" || n.Before == nil || *n.Before != *n.After || count.Puts.Load() != 1 {
		t.Errorf("%v: %+v; %d files sent", r.Err(), n, count.Puts.Load())
	}
	if r = back(t, opt); r.Err() != nil || !strings.HasPrefix(r.Nodes[0].After.Version, "0.19.7") {
		t.Errorf("%v: %+v", r.Err(), r.Nodes[0])
	}

	// Another wheel: that is what was before, and what comes back.
	slower = survey(deployed)
	other := opt
	other.Wheels = load(t, makeWheel(t, t.TempDir(), wheelOptions{version: "0.19.6"}))
	if r = run(t, context.Background(), other); r.Err() != nil {
		t.Fatal(r.Err())
	}
	if r = slower.Apply(context.Background()); r.Err() != nil || !strings.HasPrefix(r.Nodes[0].Before.Version, "0.19.6") {
		t.Errorf("%v: %+v", r.Err(), r.Nodes[0])
	}

	// A rollback brings back what its plan said, or nothing.
	slower = survey(returned)
	if r = run(t, context.Background(), other); r.Err() != nil {
		t.Fatal(r.Err())
	}
	was, before := e.snapshot(t), r.Nodes[0].Before.String()
	r = slower.Apply(context.Background())
	if n = r.Nodes[0]; n.Status != report.Failed || n.Changed || n.Hint == "" || !strings.Contains(n.Error, "would restore "+before+", not DeepSpeed 0.19.6") {
		t.Errorf("%+v", n)
	}
	e.mustBe(t, was)
}

func TestFollowerThatFailsSaysWhatItsEnvironmentKeeps(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	e, opt, first := withOld(t)
	shadow := t.TempDir()
	if err := os.Mkdir(filepath.Join(shadow, "deepspeed"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(shadow, "deepspeed", "__init__.py"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h, s := host(t, "gpu2", e, sshtest.Options{})
	h.Env = map[string]string{"PYTHONPATH": shadow}
	both := options(t, opt.Wheels, []*sshtest.Server{first, s}, opt.Hosts[0], h)
	r := run(t, context.Background(), both)
	if r.Nodes[0].Status != report.OK {
		t.Errorf("%+v", r.Nodes[0])
	}
	n := r.Nodes[1]
	if n.Status != report.Failed || n.Step != "verify" || !n.Changed || n.After == nil || n.After.SHA256 != opt.Wheels[0].Manifest.SHA256 ||
		!strings.HasSuffix(n.Error, "; the environment shared with gpu1 keeps the new wheel") || !strings.HasSuffix(n.Hint, fault.Command{Do: "rollback", Nodes: []string{"gpu1"}}.String()) {
		t.Errorf("%+v", n)
	}
	if got := e.version(t); got != opt.Wheels[0].Version {
		t.Errorf("an import finds %q", got)
	}
}
