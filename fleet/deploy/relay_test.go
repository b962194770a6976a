package deploy_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/internal/testkit/needs"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/inventory"
)

// Three nodes get a wheel from one upload, and the report says from whom each got it.
func TestNodesPassTheWheelOn(t *testing.T) {
	t.Parallel()
	wheels := largeWheel(t)
	var hosts []inventory.Host
	var servers []*sshtest.Server
	var envs []environment
	for i := range 3 {
		e := newEnvironment(t, "2.15.0")
		h, s := host(t, fmt.Sprint("gpu", i), e, sshtest.Options{})
		hosts, servers, envs = append(hosts, h), append(servers, s), append(envs, e)
	}
	mustPassOn(t, options(t, wheels, servers, hosts...), envs)
}

// Nodes connect to the addresses of the inventory, whatever addresses a node names.
func TestNodesConnectOnlyToAddressesOfTheInventory(t *testing.T) {
	t.Parallel()
	wheels := largeWheel(t)
	var hosts []inventory.Host
	var servers []*sshtest.Server
	for i := range 2 {
		h, s := host(t, fmt.Sprint("gpu", i), newEnvironment(t, "2.15.0"), sshtest.Options{})
		hosts, servers = append(hosts, h), append(servers, s)
	}
	trap, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	defer trap.Close()
	go func() {
		for {
			c, err := trap.Accept()
			if err != nil {
				return
			}
			t.Errorf("%s connected to the address that a node had named", c.RemoteAddr())
			c.Close()
		}
	}()
	lied := filepath.Join(t.TempDir(), "lied")
	hosts[0].ExecPrefix = lying(t, map[string]string{"relay": `
def named(message):
    if isinstance(message, dict) and "port" in message:
        open(` + strconv.QuoteToASCII(lied) + `, "w").close()
        return dict(message, port=` + strconv.Itoa(trap.Addr().(*net.TCPAddr).Port) + `, address="127.0.0.2", addresses=["127.0.0.2"] * 2000)
    return {k: named(v) for k, v in message.items()} if isinstance(message, dict) else message
honest(named)
`})
	opt := options(t, wheels, servers, hosts...)
	opt.Relay.Fanout = 1
	if r := run(t, context.Background(), opt); r.Err() != nil {
		t.Error(r.Err())
	}
	if _, err := os.Stat(lied); err != nil {
		t.Errorf("the node named no address: %v", err)
	}
}

// mustPassOn deploys a wheel by one upload, and makes sure that each node but the first got it from
// another one, and that nothing else is left there.
func mustPassOn(t *testing.T, opt deploy.Options, envs []environment) {
	t.Helper()
	opt.Relay.Fanout = 1
	count := &sshtest.CountingDialer{Dialer: opt.Dialer}
	opt.Dialer = count
	r := run(t, context.Background(), opt)
	if r.Err() != nil || count.Puts.Load() != 1 {
		t.Fatalf("%d uploads, %v: %+v", count.Puts.Load(), r.Err(), r.Nodes)
	}
	size := opt.Wheels[0].Manifest.Size
	for i, n := range r.Nodes {
		if len(n.From) != 1 || n.From[0].Bytes != size || n.Sent != size || (n.From[0].Node == "") != (i == 0) {
			t.Errorf("%s: %+v", n.Name, n.From)
		}
		if left := envs[i].leftovers(t); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	}
}

// Behind a jump host, nodes with setup lines pass a wheel on directly.
func TestNodesBehindAJumpHostPassTheWheelOn(t *testing.T) {
	needs.Time(t)
	t.Parallel()
	jump := sshtest.Start(t, sshtest.Options{Name: "jump"})
	text, err := os.ReadFile(jump.IdentityFile)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.ParsePrivateKey(text)
	if err != nil {
		t.Fatal(err)
	}
	servers := []*sshtest.Server{jump}
	var hosts []inventory.Host
	var envs []environment
	for i := range 2 {
		e := newEnvironment(t, "2.15.0")
		marked := filepath.Join(t.TempDir(), "ran")
		h, s := host(t, fmt.Sprint("gpu", i), e, sshtest.Options{Key: key.PublicKey()})
		h.IdentityFile = jump.IdentityFile
		h.ProxyJump = net.JoinHostPort(jump.Address, strconv.Itoa(jump.Port))
		h.Setup = "export MARKED=" + marked + "\ntouch \"$MARKED\""
		hosts, servers, envs = append(hosts, h), append(servers, s), append(envs, e)
		t.Cleanup(func() {
			if !exists(marked)() {
				t.Error("the setup lines did not run")
			}
		})
	}
	mustPassOn(t, options(t, largeWheel(t), servers, hosts...), envs)
}
