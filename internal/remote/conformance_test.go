//go:build linux

package remote_test

import (
	"os"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes"
	"github.com/dsbuild/dsbuild/internal/testkit/nodes/nodestest"
	"github.com/dsbuild/dsbuild/internal/testkit/remotetest"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
)

// dialer uses nothing of this machine: no agent, no configuration.
func dialer() *remote.SSH {
	return remote.NewSSH(thisWay(remote.Options{Config: remote.NoConfig, AgentSocket: "none"}))
}

// thisWay returns the options of a test that runs with both SSH implementations.
func thisWay(opt remote.Options) remote.Options {
	if os.Getenv(openSSHWay) == "" {
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

// openSSHWay is the variable that makes a test use OpenSSH.
const openSSHWay = "DSBUILD_TEST_OPENSSH"

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
	remotetest.Conformance(t, dialer(), func(t *testing.T) (remote.Target, string) {
		s := sshtest.Start(t, sshtest.Options{})
		return s.Target(), s.Home
	})
}

func TestConformanceOpenSSH(t *testing.T) {
	f := nodestest.Up(t, nodes.Options{Count: 1, Env: nodes.NoPython})
	remotetest.Conformance(t, dialer(), func(*testing.T) (remote.Target, string) { return fleetTarget(f, 0), f.Nodes[0].Home })
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
