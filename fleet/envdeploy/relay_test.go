package envdeploy_test

import (
	"crypto/rand"
	"fmt"
	"testing"

	"github.com/dsbuild/dsbuild/fleet/envdeploy"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/internal/testkit/wheelindex"
	"github.com/dsbuild/dsbuild/inventory"
)

// relayedTo deploys an environment to nodes that pass its large files on, and returns the report and
// the number of uploads.
func relayedTo(t *testing.T, opt envdeploy.Options) (*report.Report, int) {
	t.Helper()
	opt.Relay.Fanout = 1
	count := &sshtest.CountingDialer{Dialer: opt.Dialer}
	opt.Dialer = count
	r := run(t, t.Context(), opt)
	if r.Err() != nil || !r.Consistent {
		t.Fatalf("%v, %+v", r.Err(), r.Differences)
	}
	return r, int(count.Puts.Load())
}

// from returns how many bytes a node got from another one, or from dsbuild ("").
func from(n report.Node, source string) int64 {
	for _, s := range n.From {
		if s.Node == source {
			return s.Bytes
		}
	}
	return 0
}

// Nodes pass on the large file of an environment, and dsbuild sends the small ones to each. The
// report says who got how much from whom.
func TestNodesPassAnEnvironmentOn(t *testing.T) {
	t.Parallel()
	x := newSite(t)
	noise := make([]byte, 2<<20)
	rand.Read(noise)
	x.Add(t, wheelindex.Wheel{Name: "alpha", Version: "1.0", Files: map[string]string{"alpha-1.0.data/platlib/alpha/noise.bin": string(noise)}})
	l, files := x.lock(t, small)
	var hosts []inventory.Host
	var servers []*sshtest.Server
	for i := range 3 {
		h, s := host(t, fmt.Sprint("gpu", i), sshtest.Options{})
		hosts, servers = append(hosts, h), append(servers, s)
	}
	set := l.Sets[0]
	r, uploads := relayedTo(t, options(t, l, files, servers, hosts...))
	size, all := set.File("alpha").Size, set.Size()+set.Installer.Size
	each := len(set.All()) // of one node
	large := 0
	for _, f := range set.All() {
		if f.Size >= 1<<20 {
			large++
		}
	}
	if want := 3*(each-large) + large; uploads != want || large == 0 {
		t.Errorf("%d uploads instead of %d, %d large files", uploads, want, large)
	}
	for i, n := range r.Nodes {
		if n.Sent != all || i > 0 && (from(n, fmt.Sprint("gpu", i-1)) < size || from(n, "")+from(n, fmt.Sprint("gpu", i-1)) != all) || i == 0 && from(n, "") != all {
			t.Errorf("%s: %d of %d bytes, %+v", n.Name, n.Sent, all, n.From)
		}
		if left := leftovers(t, servers[i]); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	}
}

// The archive of a Python goes from node to node too, except to a node that has no Python yet.
func TestNodesPassAPythonOn(t *testing.T) {
	t.Parallel()
	x, text := siteWithPython(t)
	l, files := x.lock(t, text)
	h0, s0 := host(t, "gpu0", sshtest.Options{})
	h1, s1 := host(t, "gpu1", sshtest.Options{})
	h2, s2 := host(t, "bare", bare(t))
	r, _ := relayedTo(t, options(t, l, files, []*sshtest.Server{s0, s1, s2}, h0, h1, h2))
	size := l.Sets[0].Python.Size
	if got := from(r.Nodes[1], "gpu0") + from(r.Nodes[0], "gpu1"); got < size {
		t.Errorf("the nodes with a Python passed %d bytes on, its archive has %d: %+v", got, size, r.Nodes)
	}
	if got := from(r.Nodes[2], ""); got < size {
		t.Errorf("the node without any Python got %d bytes from dsbuild: %+v", got, r.Nodes[2].From)
	}
	for _, s := range []*sshtest.Server{s0, s1, s2} {
		if got := broughtTo(t, s); len(got) != 1 {
			t.Errorf("in the folder of Pythons: %q", got)
		}
	}
}
