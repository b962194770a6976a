//go:build linux

package remote_test

import (
	"cmp"
	"os"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
	"github.com/dsbuild/dsbuild/internal/testkit/remotetest"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
)

// way is the SSH implementation that a test uses.
type way remote.Client

const (
	native    = way(remote.Auto)
	byOpenSSH = way(remote.OpenSSH)
)

// options returns the options of a test that runs with both implementations.
func (w way) options(opt remote.Options) remote.Options {
	opt.AgentSocket, opt.Timeout = "none", cmp.Or(opt.Timeout, time.Minute)
	if w == native {
		return opt
	}
	program, err := os.Executable()
	if err != nil {
		panic(err)
	}
	opt.Client, opt.Askpass = remote.OpenSSH, program
	opt.Timeout = max(opt.Timeout, 4*time.Second) // a process starts more slowly than a goroutine
	return opt
}

// dialer uses nothing of this machine: no agent, no configuration.
func (w way) dialer() *remote.SSH {
	return remote.NewSSH(w.options(remote.Options{Config: remote.NoConfig}))
}

// trying is a dialer that tries several times, without a pause. Its time limits only end a test that hangs.
func (w way) trying(tries int) *remote.SSH {
	return remote.NewSSH(w.options(remote.Options{Config: remote.NoConfig, MaxAttempts: tries, Backoff: 5 * time.Millisecond}))
}

// quick tries once.
func (w way) quick() *remote.SSH { return w.trying(1) }

// impatient is a dialer for tests of silent nodes, which it gives up after 2 s.
func (w way) impatient() *remote.SSH {
	return remote.NewSSH(w.options(remote.Options{
		Config: remote.NoConfig, MaxAttempts: 3,
		Timeout: 2 * time.Second, KeepAlive: 200 * time.Millisecond, KeepAliveMax: 10, Backoff: 5 * time.Millisecond,
	}))
}

// attended is a dialer with a person who answers.
func (w way) attended(p remote.Prompter) *remote.SSH {
	return remote.NewSSH(w.options(remote.Options{Config: remote.NoConfig, Backoff: 5 * time.Millisecond, Answers: remote.NewAnswers(p)}))
}

// rider can only log in through a master.
func (w way) rider(config string) *remote.SSH {
	return remote.NewSSH(w.options(remote.Options{Config: config}))
}

// impatientRider is a rider that gives up a silent node after 4 s.
func (w way) impatientRider(config string) *remote.SSH {
	return remote.NewSSH(w.options(remote.Options{Config: config, KeepAlive: 500 * time.Millisecond, KeepAliveMax: 8}))
}

func dial(t *testing.T, d remote.Dialer, target remote.Target) remote.Conn {
	t.Helper()
	return remotetest.Dial(t, d, target)
}

func blob(n int, path string) (remote.Upload, []byte) { return remotetest.Blob(n, path) }

func noParts(t *testing.T, dir string) {
	t.Helper()
	remotetest.NoParts(t, dir)
}

func output(t *testing.T, c remote.Conn, cmd remote.Command) (stdout, stderr string, err error) {
	t.Helper()
	return remotetest.Output(t, c, cmd)
}

type writerFunc = remotetest.WriterFunc

func TestConformanceInProcess(t *testing.T) {
	t.Parallel()
	remotetest.Conformance(t, native.dialer(), func(t *testing.T) (remote.Target, string) {
		s := sshtest.Start(t, sshtest.Options{})
		return s.Target(), s.Home
	})
}

func TestConformanceOpenSSH(t *testing.T) {
	t.Parallel()
	f := nodestest.Up(t, nodes.Options{Count: 1, Env: nodes.NoPython})
	remotetest.Conformance(t, native.dialer(), func(*testing.T) (remote.Target, string) { return fleetTarget(f, 0), f.Nodes[0].Home })
}

func fleetTarget(f *nodes.Fleet, i int) remote.Target {
	n := f.Nodes[i]
	return remote.Target{
		Name: n.Name, Address: n.Address, Port: n.Port, User: f.User,
		IdentityFiles: []string{f.IdentityFile}, KnownHosts: []string{f.KnownHosts},
	}
}

func runTrue(t *testing.T, c remote.Conn) {
	t.Helper()
	if err := c.Run(t.Context(), remote.Command{Argv: []string{"true"}}); err != nil {
		t.Error(err)
	}
}
