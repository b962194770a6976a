package deploy_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/relay"
	"github.com/dsbuild/dsbuild/internal/remote/sshtest"
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
	opt := options(t, wheels, servers, hosts...)
	opt.Relay = relay.Options{Fanout: 1}
	count := &sshtest.CountingDialer{Dialer: opt.Dialer}
	opt.Dialer = count
	r := run(t, context.Background(), opt)
	if r.Err() != nil || count.Puts.Load() != 1 {
		t.Fatalf("%d uploads, %v: %+v", count.Puts.Load(), r.Err(), r.Nodes)
	}
	size := wheels[0].Manifest.Size
	for i, n := range r.Nodes {
		if len(n.From) != 1 || n.From[0].Bytes != size || n.Sent != size || (n.From[0].Node == "") != (i == 0) {
			t.Errorf("%s: %+v", n.Name, n.From)
		}
		if left := envs[i].leftovers(t); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	}
}
