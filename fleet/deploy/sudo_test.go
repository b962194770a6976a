//go:build linux

package deploy_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/fault"
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
	if _, err := d.SurveyRollback(t.Context(), ""); err != nil {
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

// Root is rejected in an environment of another account, which could redirect root by a link. With that account in sudo: the
// same node gets the wheel, and nothing of root's.
func TestRootInAnothersEnvironment(t *testing.T) {
	t.Parallel()
	nodestest.Sudo(t)
	e := newEnvironment(t, "2.15.0")
	openFolders(t, e)
	u, err := user.Lookup(nodestest.SudoUser)
	if err != nil {
		t.Fatal(err)
	}
	uid, _ := strconv.Atoi(u.Uid) //nolint:errcheck // a number on every Unix
	chown := func(path string, _ fs.DirEntry, err error) error { return errors.Join(err, os.Lchown(path, uid, uid)) }
	secret, link := t.TempDir(), filepath.Join(e.dir, ".dsbuild")
	err = errors.Join(filepath.WalkDir(e.dir, chown), os.Chmod(secret, 0o700), os.Symlink(secret, link), os.Lchown(link, uid, uid))
	if err != nil {
		t.Fatal(err)
	}
	h, s := host(t, "gpu1", e, sshtest.Options{})
	opt := options(t, load(t, makeWheel(t, t.TempDir(), wheelOptions{})), []*sshtest.Server{s}, h)
	opt.Dialer = remote.WithSudo(opt.Dialer, remote.NewAnswers(nil), remote.SudoLimit)
	n := run(t, context.Background(), opt).Nodes[0]
	if n.Status != report.Refused || n.Changed || !strings.Contains(n.Hint, fault.Set("sudo", nodestest.SudoUser).String()) {
		t.Errorf("as root: %+v, want a refusal with a hint", n)
	}
	if info, err := os.Stat(secret); err != nil || info.Mode().Perm() != 0o700 || info.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Errorf("%v, %v, want that root's directory is as it was", info, err)
	}
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	if err := exec.CommandContext(t.Context(), "sudo", "-n", "-u", u.Username, e.python, "-c", "").Run(); err != nil {
		t.Skipf("%s cannot run this machine's Python: %v", u.Username, err)
	}
	opt.Hosts[0].Sudo = nodestest.SudoUser
	if n := run(t, context.Background(), opt).Nodes[0]; n.Status != report.OK || !n.Changed {
		t.Fatalf("as the owner: %+v", n)
	}
	belongsTo(t, e.dir, uid)
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
