package relay

import (
	"fmt"
	"slices"
	"testing"

	"github.com/dsbuild/dsbuild/fleet"
	"github.com/dsbuild/dsbuild/inventory"
)

// A node cannot make others connect to any address that it likes.
func TestAddressesThatANodeNames(t *testing.T) {
	t.Parallel()
	var many []string
	for i := range 2000 {
		many = append(many, fmt.Sprintf("10.1.%d.%d", i/200, 1+i%200))
	}
	for name, c := range map[string]struct {
		inventory, named, want []string
	}{
		"many": {[]string{"10.1.0.9"}, many, append(slices.Clone(many[:maxOwnAddresses]), "10.1.0.9")},
		"names, loopback, other networks": {
			[]string{"10.1.0.9", "fd00:1::9"},
			[]string{"metadata", "127.0.0.1", "::1", "169.254.169.254", "10.2.0.1", "fd00:2::1", "fe80::1%eth0", "::ffff:10.1.2.3", "fd00:1::8", "224.0.0.1"},
			[]string{"::ffff:10.1.2.3", "fd00:1::8", "10.1.0.9"},
		},
		"an inventory of names": {[]string{"gpu01"}, []string{"localhost", "127.0.1.1", "192.168.1.2"}, []string{"192.168.1.2", "gpu01"}},
		"forwarded ports":       {[]string{"127.0.0.1"}, []string{"172.17.0.2"}, []string{"172.17.0.2", "127.0.0.1"}},
	} {
		var nodes []*fleet.Node
		for _, address := range append(slices.Clone(c.inventory), "gpu99") {
			nodes = append(nodes, &fleet.Node{Host: inventory.Host{Name: address, Address: address}})
		}
		r := New(Options{Fanout: 1})
		if !r.Announce(File{SHA256: name, Size: leastChosen}, nodes) {
			t.Fatal("the file is not announced")
		}
		if got := (&station{relay: r, node: nodes[0], own: c.named}).addresses(); !slices.Equal(got, c.want) {
			t.Errorf("%s: other nodes connect to %q, want %q", name, got, c.want)
		}
		r.Close()
	}
}
