package deploy_test

import (
	"context"
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/internal/ui"
	"github.com/dsbuild/dsbuild/wheel"
)

// largeWheel is a wheel of about 4 MB that does not compress.
func largeWheel(t *testing.T) []wheel.Loaded {
	t.Helper()
	noise := make([]byte, 4<<20)
	rand.Read(noise)
	return load(t, makeWheel(t, t.TempDir(), wheelOptions{files: map[string]string{"deepspeed/noise.bin": string(noise)}}))
}

// A connection that breaks while the wheel is sent is opened again, in the same
// run, and the transfer goes on where it broke.
func TestALostTransferGoesOnInTheSameRun(t *testing.T) {
	t.Parallel()
	wheels := largeWheel(t)
	e := newEnvironment(t, "2.15.0")
	h, s := host(t, "gpu1", e, sshtest.Options{CutAfter: 3 << 20, Cuts: 1})
	opt := options(t, wheels, []*sshtest.Server{s}, h)
	var said strings.Builder
	opt.Reporter = ui.New(&said, ui.Options{})
	r := run(t, context.Background(), opt)
	if n := r.Nodes[0]; n.Status != report.OK || !n.Changed {
		t.Errorf("%+v", n)
	}
	if s.Connections() != 2 {
		t.Errorf("%d connections", s.Connections())
	}
	if !strings.Contains(said.String(), "gpu1: lost connection") || !strings.Contains(said.String(), "reconnecting to resume the transfer") {
		t.Errorf("said:\n%s", said.String())
	}
	if left := e.leftovers(t); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// A node that loses its connection in the middle of pip keeps the wheel, so that
// the next run need not send it again.
func TestWhatHasArrivedIsNotSentAgain(t *testing.T) {
	t.Parallel()
	wheels := largeWheel(t)
	e := newEnvironment(t, "2.15.0")
	h, s := host(t, "gpu1", e, sshtest.Options{})
	h.ExecPrefix = []string{"setsid", "--wait"} // outlives its connection, as under OpenSSH
	opt := options(t, wheels, []*sshtest.Server{s}, h)
	started, remove := e.hook(t, "import time; time.sleep(60)")
	done := make(chan struct{})
	go func() {
		defer close(done)
		waitFor(t, "pip has started", exists(started))
		s.Cut()
	}()
	if n := run(t, context.Background(), opt).Nodes[0]; n.Status != report.Failed || n.Step != "install" {
		t.Errorf("%+v", n)
	}
	<-done
	remove()
	whole := e.own("inbox", filepath.Base(wheels[0].Path))
	waitFor(t, "the node puts itself back", func() bool { return !exists(e.own("change.json"))() })
	if !exists(whole)() {
		t.Fatalf("%s is gone; left: %q", whole, e.leftovers(t))
	}
	for path, want := range map[string]os.FileMode{filepath.Dir(whole): 0o700, whole: 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s has the mode %v, want %v; %v", path, info.Mode(), want, err)
		}
	}
	count := &sshtest.CountingDialer{Dialer: opt.Dialer}
	opt.Dialer = count
	if n := run(t, context.Background(), opt).Nodes[0]; n.Status != report.OK || !n.Changed {
		t.Errorf("%+v", n)
	}
	if count.Puts.Load() > 1 { // pip's own wheel may be one
		t.Errorf("%d files were sent", count.Puts.Load())
	}
	if left := e.leftovers(t); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// A file in the inbox that is not what is wanted is neither used nor kept.
func TestTheInboxIsNotTrusted(t *testing.T) {
	t.Parallel()
	wheels := load(t, makeWheel(t, t.TempDir(), wheelOptions{}))
	e := newEnvironment(t, "2.15.0")
	inbox := e.own("inbox")
	if err := os.MkdirAll(filepath.Join(inbox, "folder.part"), 0o777); err != nil {
		t.Fatal(err)
	}
	outside := filepath.Join(t.TempDir(), "outside")
	for name, text := range map[string]string{filepath.Base(wheels[0].Path): "other", "old.whl.part": "old"} {
		if err := os.WriteFile(filepath.Join(inbox, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(outside, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(inbox, filepath.Base(wheels[0].Path)+remote.PartSuffix)); err != nil {
		t.Fatal(err)
	}
	h, s := host(t, "gpu1", e, sshtest.Options{})
	if n := run(t, context.Background(), options(t, wheels, []*sshtest.Server{s}, h)).Nodes[0]; n.Status != report.OK {
		t.Errorf("%+v", n)
	}
	if got := e.version(t); got != wheels[0].Version {
		t.Errorf("an import finds %q", got)
	}
	if b, err := os.ReadFile(outside); err != nil || string(b) != "mine" {
		t.Errorf("a link was followed: %q, %v", b, err)
	}
	if left := e.leftovers(t); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestBandwidthIsSharedByAllNodes(t *testing.T) {
	t.Parallel()
	wheels := largeWheel(t)
	a, b := newEnvironment(t, "2.15.0"), newEnvironment(t, "2.15.0")
	h1, s1 := host(t, "gpu1", a, sshtest.Options{})
	h2, s2 := host(t, "gpu2", b, sshtest.Options{})
	opt := options(t, wheels, []*sshtest.Server{s1, s2}, h1, h2)
	opt.Bandwidth = rate.NewLimiter(4<<20, 1<<20)
	begin := time.Now()
	if r := run(t, context.Background(), opt); r.Err() != nil {
		t.Error(r.Err())
	}
	// Twice 4 MB at 4 MiB/s, but for the first MiB.
	if d := time.Since(begin); d < 1600*time.Millisecond {
		t.Errorf("done in %s", d)
	}
}
