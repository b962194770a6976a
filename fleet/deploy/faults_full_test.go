//go:build full

package deploy_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dsbuild/dsbuild/fleet/deploy"
	"github.com/dsbuild/dsbuild/fleet/report"
	"github.com/dsbuild/dsbuild/fleet/verify"
	"github.com/dsbuild/dsbuild/internal/remote"
	"github.com/dsbuild/dsbuild/internal/testkit/sshtest"
	"github.com/dsbuild/dsbuild/inventory"
)

// 10% of 200 nodes are dead, in every way in which a node can be: each is named with
// its reason, none keeps the others from their wheel, and the next run over those
// that live has nothing to do.
func TestFullFaultsDeadNodes(t *testing.T) {
	const total, each = 200, 10 // every tenth is dead
	wheels := load(t, makeWheel(t, t.TempDir(), wheelOptions{}))
	first := newEnvironment(t, "2.15.0")
	var ways []kind
	for _, k := range unreachable() {
		if k.want != "" {
			ways = append(ways, k)
		}
	}
	var hosts []inventory.Host
	var servers []*sshtest.Server
	var want []string
	var environments []environment
	for i := range total {
		k, e := kind{}, environment{}
		if i%each == each-1 {
			k = ways[i/each%len(ways)]
		} else {
			e = first.copied(t, t.TempDir())
		}
		h, s := host(t, fmt.Sprintf("gpu%03d", i+1), e, k.opt)
		if k.change != nil {
			k.change(&h, s)
		}
		hosts, servers, want, environments = append(hosts, h), append(servers, s), append(want, k.want), append(environments, e)
	}
	opt := options(t, wheels, servers, hosts...)
	opt.Forks, opt.Verify = 32, verify.LevelFiles
	const patience = 10 * time.Second
	opt.Dialer = remote.NewSSH(remote.Options{Config: remote.NoConfig, AgentSocket: "none", Timeout: patience})
	begin := time.Now()
	d := deploy.New(opt)
	defer d.Close()
	if _, err := d.Survey(context.Background()); err != nil {
		t.Fatal(err)
	}
	surveyed := time.Since(begin)
	r := d.Apply(context.Background())
	took := time.Since(begin)
	dead := 0
	var slowest float64
	for i, n := range r.Nodes {
		switch {
		case want[i] == "" && (n.Status != report.OK || !n.Changed || environments[i].version(t) != wheels[0].Version):
			t.Errorf("%+v", n)
		case want[i] != "":
			dead++
			slowest = max(slowest, n.Seconds["connect"])
			if n.Status != report.Unreachable || !n.StateUnknown || !strings.Contains(n.Error, want[i]) || n.Hint == "" {
				t.Errorf("%s: %+v", want[i], n)
			}
		}
	}
	if dead != total/each || r.Summary.OK != total-dead || code(r.Err()) != 3 {
		t.Errorf("%+v, %v", r.Summary, r.Err())
	}
	// The dead are asked side by side with the others.
	if limit := 2 * patience.Seconds(); slowest > limit {
		t.Errorf("a dead node was given up after %.1f s", slowest)
	}
	if surveyed > time.Minute {
		t.Errorf("asking all took %s", surveyed)
	}
	t.Logf("result: %d of %d nodes dead in %d ways: each named with its reason, %d ok; asked within %.1f s, a dead one given up after %.1f s at most, all done after %.0f s", dead, total, len(ways), r.Summary.OK, surveyed.Seconds(), slowest, took.Seconds())
}
