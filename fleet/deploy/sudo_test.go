//go:build linux

package deploy_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/inventory"
)

// An environment that belongs to another user than who logs in is changed as that
// user, by real sudo: from the lock to the journal, and back.
func TestDeployBySudo(t *testing.T) {
	t.Parallel()
	e := newEnvironment(t, "2.15.0")
	openFolders(t, e)
	h, s := host(t, "gpu1", e, sshtest.Options{Shell: nodestest.SudoShell(t, nodestest.SudoUser+" ALL=(ALL) NOPASSWD: ALL")})
	opt := options(t, load(t, makeWheel(t, t.TempDir(), wheelOptions{})), []*sshtest.Server{s}, h)
	opt.Dialer = remote.WithSudo(opt.Dialer, remote.NewAnswers(nil), remote.SudoLimit)
	before := e.snapshot(t)
	if n := run(t, context.Background(), opt).Nodes[0]; n.Status != report.Refused || n.Changed {
		t.Errorf("without sudo: %+v", n)
	}

	opt.Hosts[0].Sudo = "root"
	if n := run(t, context.Background(), opt).Nodes[0]; n.Status != report.OK || !n.Changed {
		t.Fatalf("%+v", n)
	}
	if v := e.version(t); v == "" {
		t.Error("no DeepSpeed")
	}
	belongsTo(t, e.dir, 0)
	if left := e.leftovers(t); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	d := deploy.New(opt)
	defer d.Close()
	if _, err := d.SurveyRollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := d.Apply(t.Context()); r.Err() != nil {
		t.Fatal(r.Err())
	}
	e.mustBe(t, before)
	belongsTo(t, e.dir, 0)

	// sudo that does not do it is told before anything is looked at.
	opt.Hosts[0].Sudo = "no-such-user"
	n := run(t, context.Background(), opt).Nodes[0]
	if n.Status != report.Failed || n.Step != "connect" || !strings.Contains(n.Error, "unknown user") || n.Hint == "" {
		t.Errorf("%+v", n)
	}
}

// openFolders lets every user look into an environment.
func openFolders(t *testing.T, e environment) {
	t.Helper()
	for dir := e.dir; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// Nodes pass a wheel on as the user that sudo makes of who logs in.
func TestNodesPassTheWheelOnBySudo(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	var hosts []inventory.Host
	var servers []*sshtest.Server
	var envs []environment
	for i := range 2 {
		e := newEnvironment(t, "2.15.0")
		openFolders(t, e)
		h, s := host(t, fmt.Sprint("gpu", i), e, sshtest.Options{Shell: nodestest.SudoShell(t, nodestest.SudoUser+" ALL=(ALL) NOPASSWD: ALL")})
		h.Sudo = "root"
		hosts, servers, envs = append(hosts, h), append(servers, s), append(envs, e)
	}
	opt := options(t, largeWheel(t), servers, hosts...)
	opt.Dialer = remote.WithSudo(opt.Dialer, remote.NewAnswers(nil), remote.SudoLimit)
	mustPassOn(t, opt, envs)
	for _, e := range envs {
		belongsTo(t, e.dir, 0)
	}
}

// belongsTo fails for what is not a user's.
func belongsTo(t *testing.T, dir string, uid int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && int(info.Sys().(*syscall.Stat_t).Uid) != uid {
			t.Errorf("%s is another user's", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
